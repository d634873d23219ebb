// SPDX-License-Identifier: Apache-2.0
// Every float there is.
#include <specagg/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "support/catch.hpp"

using V = specagg::vec<float, 16>;

namespace {

struct found {
  double worst = 0, largest_fall = 0;  // relative
  float where = 0, falls_at = 0;
};

// f against due for every float from a to b, both of one sign. `towards`: 1 if f is to rise on this
// way, -1 if to fall.
template <class F, class Due>
found sweep(float a, float b, int towards, F f, Due due) {
  found r;
  float x[16], y[16],
      before = towards > 0 ? -std::numeric_limits<float>::infinity()
                           : std::numeric_limits<float>::infinity();
  const std::uint64_t end = std::bit_cast<std::uint32_t>(b);
  for (std::uint64_t i = std::bit_cast<std::uint32_t>(a); i <= end; i += 16) {
    for (std::uint64_t k = 0; k < 16; ++k)
      x[k] = std::bit_cast<float>(std::uint32_t(std::min(i + k, end)));
    f(V::load(x)).store(y);
    for (int k = 0; k < 16; ++k) {
      const double right = due(double(x[k]));
      const double error =
          right == 0 ? std::fabs(double(y[k])) : std::fabs((double(y[k]) - right) / right);
      if (!(error <= r.worst)) {
        r.worst = error;
        r.where = x[k];
      }
      if (!(towards > 0 ? y[k] >= before : y[k] <= before)) {
        const double fall = std::fabs((double(y[k]) - double(before)) / double(before));
        if (!(fall <= r.largest_fall)) {
          r.largest_fall = fall;
          r.falls_at = x[k];
        }
      }
      before = y[k];
    }
  }
  return r;
}

void check(const found& r, double bound, double fall) {
  CAPTURE(r.where, r.falls_at);
  CHECK(r.worst <= bound);
  CHECK(r.largest_fall <= fall);
}

const auto library_exp = [](V x) { return exp(x); };
const auto exact_exp = [](double x) { return std::exp(x); };
constexpr double one_place = std::numeric_limits<float>::epsilon();

}  // namespace

TEST_CASE(
    "exp of every float from its cut to 0 is within its stated error and falls by one place at "
    "most") {
  check(sweep(-0.f, -0x1.5bf0aap6f, -1, library_exp, exact_exp), specagg::exp_error<float>,
        one_place);
}

TEST_CASE(
    "exp of every float from 0 to the largest is within its stated error and falls by one place at "
    "most") {
  check(sweep(0.f, 0x1.62e42ep6f, 1, library_exp, exact_exp), specagg::exp_error<float>, one_place);
}

TEST_CASE("log of every positive normal float is within its stated error and never falls") {
  check(sweep(
            std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), 1,
            [](V x) { return log(x); }, [](double x) { return std::log(x); }),
        specagg::log_error<float>, 0);
}
