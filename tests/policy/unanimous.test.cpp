// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/unanimous.hpp>

#include <array>
#include <cmath>

#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

static_assert(is_unanimous<mixture<3>> && is_unanimous<ensemble> && is_unanimous<power_mean<3>> &&
              is_unanimous<power>);
static_assert(is_unanimous<minimum<>> && is_unanimous<maximum<3>>);
static_assert(!may_be_unanimous<lossless> && !may_be_unanimous<opt> && !may_be_unanimous<token_v3>);
static_assert(!may_be_unanimous<contrastive> && !may_be_unanimous<arithmetic<3>> &&
              !may_be_unanimous<arithmetic<2>>);
// no valid parameters
static_assert(unanimous_here(ensemble{0.3}) && !unanimous_here(ensemble{-1}));
// Their parameters decide.
static_assert(!is_unanimous<geometric> && may_be_unanimous<geometric>);
static_assert(!is_unanimous<log_linear<3>> && may_be_unanimous<log_linear<3>>);
static_assert(unanimous_here(geometric{0}) && unanimous_here(geometric{1}) &&
              !unanimous_here(geometric{1.1}) && !unanimous_here(geometric{-0.1}));
static_assert(unanimous_here(log_linear<3>{{0.2, 0.5, 0.3}}) &&
              !unanimous_here(log_linear<3>{{0.5, 0.5, 0.5}}) &&
              !unanimous_here(log_linear<3>{{2, -1, 0}}));

// How often F decreases in one of its arguments, or F(s x) is not s F(x), in 2,000 places.
template <std::size_t N, class Policy>
int defects(const Policy& policy) {
  const auto F = [&](const std::array<double, N>& x) {
    return double(policy.unnormalised(view_of(x)).v);
  };
  numbers n(5);
  int found = 0;
  for (int i = 0; i < 2000; ++i) {
    std::array<double, N> x, more, scaled;
    for (double& v : x) v = n.between(0.01, 1);
    more = scaled = x;
    more[n.below(N)] += n.between(0, 1);
    const double s = n.between(0.1, 10);
    for (double& v : scaled) v *= s;
    found += F(more) < F(x) * (1 - 1e-12) || std::fabs(F(scaled) - s * F(x)) > 1e-12 * s * F(x);
  }
  return found;
}

struct difference {  // decreases in its second argument, and says that it is unanimous
  static constexpr bool unanimous = true;
  template <class At>
  auto unnormalised(At at) const {
    return fma(model<0>(at), 2, -model<1>(at)) + 1;
  }
};

}  // namespace

TEST_CASE("combiners that say they are unanimous are increasing and 1-homogeneous") {
  CHECK(defects<2>(ensemble{0.3}) == 0);
  CHECK(defects<3>(mixture<3>{{0.2, 0.5, 0.3}}) == 0);
  CHECK(defects<2>(minimum<2>{}) == 0);
  CHECK(defects<3>(maximum<3>{}) == 0);
  for (const double a : {-2.0, -0.5, 0.5, 2.0}) {
    CHECK(defects<2>(power{0.4, a}) == 0);
    CHECK(defects<3>(power_mean<3>{{0.2, 0.5, 0.3}, a}) == 0);
  }
  CHECK(defects<2>(geometric{0.4}) == 0);
  CHECK(defects<3>(log_linear<3>{{0.2, 0.5, 0.3}}) == 0);
}
TEST_CASE("one that is not is found, and so is a geometric mean whose parameters forbid it") {
  STATIC_REQUIRE(is_unanimous<difference>);  // it says so
  CHECK(defects<2>(difference{}) > 1000);
  CHECK(defects<2>(geometric{1.5}) > 100);
}
