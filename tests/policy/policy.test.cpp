// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/policy.hpp>

#include <array>
#include <cmath>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

using one = vec<double, 1>;

struct plain {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return at.p; };
  }
};
struct declared {
  double weight = 0;
  static constexpr bool reads_draft = false, reads_confidence = false;
  bool valid() const { return weight >= 0; }
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return at.p; };
  }
};
struct no_policy {};

static_assert(reads_draft<plain> && reads_confidence<plain>);
static_assert(!reads_draft<declared> && !reads_confidence<declared>);
static_assert(TargetPolicy<plain> && TargetPolicy<declared, double> && !TargetPolicy<no_policy>);

// A pair of rows of 2500 tokens (three blocks), one in seven of which the draft never draws.
struct pair_of_rows {
  std::vector<double> q = std::vector<double>(2500), p = q;
  normal_form<dense_row<double>> q_row, p_row;
  pair_of_rows() {
    double q_sum = 0, p_sum = 0;
    for (std::size_t v = 0; v < q.size(); ++v) {
      q_sum += q[v] = double(v % 7);
      p_sum += p[v] = double(1 + v % 5);
    }
    for (std::size_t v = 0; v < q.size(); ++v) {
      q[v] /= q_sum;
      p[v] /= p_sum;
    }
    q_row = normalise(dense_row<double>(q));
    p_row = normalise(dense_row<double>(p));
    REQUIRE((q_row.why() == status::ok && p_row.why() == status::ok));
  }
};

}  // namespace

TEST_CASE("a policy is valid unless it says no") {
  CHECK((valid(plain{}) && valid(declared{1}) && !valid(declared{-1})));
}
TEST_CASE(
    "passes over a pair of rows: one sum or two, a maximum, the first largest token, what the "
    "draft may draw") {
  const pair_of_rows x;
  const row_pair rows(x.q_row, x.p_row);
  double product = 0, overlap = 0;
  for (std::size_t v = 0; v < x.q.size(); ++v) {
    product += x.q[v] * x.p[v];
    overlap += std::min(x.q[v], x.p[v]);
  }
  CHECK(rows.size() == 2500);
  CHECK(rows.sum([](auto at) { return at.q * at.p; }) == Approx(product).epsilon(1e-12));
  const auto [a, b] = rows.sum([](auto at) { return both(at.q * at.p, min(at.q, at.p)); });
  CHECK(a == Approx(product).epsilon(1e-12));
  CHECK(b == Approx(overlap).epsilon(1e-12));
  CHECK(rows.sum_where_drafted([](auto at) { return min(at.q, at.p); }) == b);
  CHECK(rows.max([](auto at) { return at.q; }) == Approx(x.q[6]).epsilon(1e-14));
  CHECK(rows.argmax([](auto at) { return at.q; }) == 6);
  // the first where v % 5 = 4 and v % 7 >= 5
  CHECK(rows.argmax([](auto at) { return min(at.q, at.p); }) == 19);
}
TEST_CASE("weights are convex if none is negative and they sum to 1") {
  CHECK((is_convex(std::array{1.}) && is_convex(std::array{0.25, 0.75, 0.}) &&
         is_convex(std::array{0.1, 0.2, 0.7})));
  CHECK_FALSE((is_convex(std::array{0.5, 0.4}) || is_convex(std::array{0.5, 0.6}) ||
               is_convex(std::array{-0.5, 1.5})));
  CHECK_FALSE((is_convex(std::array{double(NAN), 1.}) || is_convex(std::array<double, 0>{})));
  CHECK(all_finite(std::array{-1., 1e300}));
  CHECK_FALSE(
      (all_finite(std::array{0., double(INFINITY)}) || all_finite(std::array{double(NAN)})));
}
TEST_CASE("0 log 0 is 0. Entropy and e^z - 1 keep their digits") {
  CHECK(weighted_log(one(0), one(0)).v == 0);
  CHECK(weighted_log(one(2), one(0.5)).v == Approx(-2 * std::log(2.)).epsilon(1e-15));
  CHECK(weighted_log(one(-2), one(0.5)).v == Approx(2 * std::log(2.)).epsilon(1e-15));
  CHECK(entropy_term(one(0)).v == 0);
  CHECK(4 * entropy_term(one(0.25)).v == Approx(std::log(4.)).epsilon(1e-15));
  // subnormal numbers, as stored probabilities may be
  for (const double small : {0x1p-1022, 0x1p-1023, 0x1p-1074}) {
    CHECK(entropy_term(one(small)).v >= 0);
    CHECK(entropy_term(one(small)).v < 1e-300);
    CHECK(std::fabs(weighted_log(one(small), one(2 * small)).v) < 1e-300);
    CHECK(std::fabs(weighted_log(one(-small), one(small)).v) < 1e-300);
  }
  CHECK(std::isnan(entropy_term(one(std::nan(""))).v));
  CHECK(std::isnan(weighted_log(one(std::nan("")), one(1)).v));
  for (const double z : {0., -1e-300, -1e-17, -1e-9, -1e-3, -0.5, -3., -40., -800., -infinity})
    CHECK(exp_minus_1(one(z)).v == Approx(std::expm1(z)).epsilon(4e-15));
}
TEST_CASE("normalised weights sum to 1, and are NaN where no token has weight") {
  const pair_of_rows x;
  const row_pair rows(x.q_row, x.p_row);
  const auto product = normalised(rows, [](auto at) { return at.q * at.p; });
  CHECK(rows.sum(product) == Approx(1).epsilon(1e-13));
  CHECK(product(at(rows, 3)).v / product(at(rows, 4)).v ==
        Approx(3. * 4 / (4. * 5)).epsilon(1e-13));
  CHECK(std::isnan(normalised(rows, [](auto at) { return at.q - at.q; })(at(rows, 0)).v));
}
