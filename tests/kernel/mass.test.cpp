// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/mass.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::mass;
using specagg::mass_unit;

namespace {

// Weights of every size: 1, just below it, halves of the unit (ties), and much smaller.
template <class T>
std::vector<T> some_weights(numbers& random, std::size_t n) {
  std::vector<T> w(n);
  for (T& x : w) {
    const double scale = std::ldexp(1., -int(random.below(60)));
    x = T(random.below(4) ? scale * (0.5 + 0.5 * random.uniform()) : scale);
    if (random.below(8) == 0) x = T(std::ldexp(double(2 * random.below(1000) + 1), -45));
  }
  return w;
}
template <class T>
mass sum_of(const mass_unit<T>& unit, const std::vector<T>& w) {
  using V = specagg::vec<T, 16>;
  return unit.whole(
      specagg::reduce_blocks<specagg::detail::add>(w.size(), [&](std::size_t begin, std::size_t n) {
        return specagg::reduce_block<specagg::detail::add>(n, [&](std::size_t k, int lanes) {
          return unit.divide(lanes == 16 ? V::load(w.data() + begin + k)
                                         : V::load_partial(w.data() + begin + k, lanes, 0));
        });
      }));
}

}  // namespace

TEMPLATE_TEST_CASE("a weight is the nearest whole number of units, a half of one the even number",
                   "", float, double) {
  using T = TestType;
  numbers random(1);
  for (const std::size_t V : {1000u, 1u << 18, (1u << 18) + 1, 1u << 20}) {
    const int bits = V <= 1u << 18 ? 44 : V <= 1u << 19 ? 43 : 42;
    const mass_unit<T> unit(V);
    for (const T w : some_weights<T>(random, 20000)) {
      const auto due = mass(std::nearbyint(std::ldexp(double(w), bits)));
      const auto parts = unit.divide(specagg::vec<T, 1>(w));
      if (unit.whole(w) != due ||
          unit.whole({double(parts.first.v),
                      {double(parts.second.first.v), double(parts.second.second.v)}}) != due)
        FAIL("weight " << double(w) << " of " << V);
    }
    CHECK(unit.whole(T(0)) == 0);
    CHECK(unit.whole(T(1)) == mass(1) << bits);
    CHECK(unit.sum(mass(3) << (bits - 1)) == 1.5);
  }
}

TEMPLATE_TEST_CASE("a mass is the same in any order of its tokens", "", float, double) {
  using T = TestType;
  numbers random(2);
  for (const std::size_t n : {1u, 16u, 1000u, 1024u, 5000u, 262144u}) {
    const mass_unit<T> unit(n);
    auto w = some_weights<T>(random, n);
    if (n == 5000) std::ranges::fill(w, T(1));  // the largest sums of a block
    if (n == 262144) std::ranges::fill(w, std::nextafter(T(1), T(0)));
    mass due = 0;
    for (const T x : w) due += unit.whole(x);
    CAPTURE(n);
    CHECK(sum_of(unit, w) == due);
    for (std::size_t i = n; i > 1; --i) std::swap(w[i - 1], w[random.below(i)]);
    CHECK(sum_of(unit, w) == due);
  }
}

TEST_CASE("masses of the largest rows stay below 2^63, and a share is never rounded down") {
  for (const std::size_t V : {std::size_t(1) << 18, std::size_t(1) << 25, std::size_t(1) << 31}) {
    const mass_unit<float> unit(V);
    CHECK(unit.whole(1.f) <= (mass(1) << 62) / mass(V));
    CHECK(unit.at_least(double(V)) == mass(V) * unit.whole(1.f));
  }
  const mass_unit<float> unit(1000);
  CHECK(unit.at_least(0) == 0);
  CHECK(unit.at_least(1e-320) == 1);
  CHECK(unit.at_least(2) == mass(2) << 44);
  CHECK(unit.at_least(2 + 0x1p-45) == (mass(2) << 44) + 1);
  CHECK(unit.at_least(0x1p-44) == 1);
}

TEMPLATE_TEST_CASE("the weight of a masked token is 0, counted or not, and others count 1", "",
                   float, double) {
  using V = specagg::vec<TestType, 1>;
  const specagg::count_of_tokens count;
  constexpr auto lowest = std::numeric_limits<TestType>::lowest();
  CHECK(count(V(-std::numeric_limits<TestType>::infinity())).v == 0);
  CHECK(count(V(lowest)).v == 1);
  const specagg::softmax_weights<TestType> weight(2, 0.5);
  CHECK(weight(V(2)).v == 1);
  CHECK(weight(V(-std::numeric_limits<TestType>::infinity())).v == 0);
  CHECK(std::fabs(double(weight(V(1)).v) - std::exp(-2.)) < 1e-7);
}
