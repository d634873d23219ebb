// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/reduce.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::both;
using specagg::vec;

namespace {

// Rows of two arrays, as the library's own are; only the lanes asked for are read.
template <class T>
struct two_arrays {
  using value_type = T;
  std::vector<T> x, y;
  std::size_t size() const { return x.size(); }
  template <class V>
  struct view {
    V x, y;
  };
  struct block {
    const T *x, *y;
    template <class V>
    view<V> operator()(std::size_t k, int lanes) const {
      return {V::load_partial(x + k, lanes, T(1e30)),
              V::load_partial(y + k, lanes, T(-1e30))};  // lanes after the last: to be ignored
    }
  };
  block open(std::size_t begin, std::size_t) const { return {x.data() + begin, y.data() + begin}; }
};

// The promised order once more, one number at a time.
template <class T, class Combine>
double in_order(const std::vector<T>& x, T identity, Combine combine) {
  std::array<double, 32> of_blocks;
  of_blocks.fill(double(identity));
  for (std::size_t begin = 0; begin < x.size(); begin += 1024) {
    std::array<std::array<T, 16>, 4> a;
    for (auto& lanes : a) lanes.fill(identity);
    for (std::size_t i = begin; i < x.size() && i < begin + 1024; ++i) {
      T& accumulator = a[(i - begin) / 16 % 4][i % 16];
      accumulator = combine(accumulator, x[i]);
    }
    for (std::size_t l = 0; l < 16; ++l)
      a[0][l] = combine(combine(a[0][l], a[1][l]), combine(a[2][l], a[3][l]));
    for (std::size_t half = 8; half > 0; half /= 2)
      for (std::size_t l = 0; l < half; ++l) a[0][l] = combine(a[0][l], a[0][l + half]);
    double& lane = of_blocks[begin / 1024 % 32];
    lane = combine(lane, double(a[0][0]));
  }
  for (std::size_t half = 16; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l)
      of_blocks[l] = combine(of_blocks[l], of_blocks[l + half]);
  return of_blocks[0];
}
const auto add = [](auto a, auto b) { return a + b; };
const auto larger = [](auto a, auto b) { return b > a ? b : a; };

template <class T>
T random_value(numbers& random) {
  return std::ldexp(T(random.bell()), int(random.below(24)) - 12);
}

}  // namespace

TEMPLATE_TEST_CASE(
    "sums and maxima have the bits of the promised order, for every length to 2100 and a real "
    "vocabulary",
    "", float, double) {
  using T = TestType;
  numbers random(1);
  two_arrays<T> rows;
  const auto check = [&] {
    const auto sum =
        specagg::one_thread::reduce<specagg::detail::add>(rows, [](auto at) { return at.x; });
    const auto max =
        specagg::one_thread::reduce<specagg::detail::larger>(rows, [](auto at) { return at.y; });
    const auto [a, bc] = specagg::one_thread::reduce<specagg::detail::add>(
        rows, [](auto at) { return both(at.y, both(at.x, at.x - at.y)); });
    std::vector<T> difference(rows.size());
    for (std::size_t v = 0; v < rows.size(); ++v) difference[v] = rows.x[v] - rows.y[v];
    return same(sum, in_order(rows.x, T(0), add)) &&
           same(max, in_order(rows.y, -std::numeric_limits<T>::infinity(), larger)) &&
           same(a, in_order(rows.y, T(0), add)) && same(bc.first, sum) &&
           same(bc.second, in_order(difference, T(0), add));
  };
  for (std::size_t n = 1; n <= 2100; ++n) {
    rows.x.push_back(random_value<T>(random));
    rows.y.push_back(random_value<T>(random));
    if (check()) continue;
    CAPTURE(n);
    FAIL("another order");
  }
  while (rows.x.size() < 151936) {
    rows.x.push_back(random_value<T>(random));
    rows.y.push_back(random_value<T>(random));
  }
  CHECK(check());
}

TEMPLATE_TEST_CASE("a product is rounded before it is summed, with any contraction by the compiler",
                   "", float, double) {
  using T = TestType;
  numbers random(2);
  two_arrays<T> rows;
  std::vector<T> products;
  for (std::size_t n = 0; n < 3000; ++n) {
    rows.x.push_back(random_value<T>(random));
    rows.y.push_back(random_value<T>(random));
    volatile T product = rows.x[n] * rows.y[n];
    products.push_back(T(product));
  }
  const auto sum =
      specagg::one_thread::reduce<specagg::detail::add>(rows, [](auto at) { return at.x * at.y; });
  CHECK(same(sum, in_order(products, T(0), add)));
}

TEMPLATE_TEST_CASE("a sum of terms of one sign is within its stated error", "", float, double) {
  using T = TestType;
  numbers random(3);
  two_arrays<T> rows;
  double worst = 0;
  for (const std::size_t n : {1u, 16u, 100u, 1024u, 1025u, 5000u, 151936u})
    for (const int shape : {0, 1, 2}) {
      rows.x.resize(n);
      rows.y.resize(n);
      long double exact = 0;
      for (std::size_t v = 0; v < n; ++v) {
        rows.x[v] = shape == 0   ? T(random.uniform())
                    : shape == 1 ? std::ldexp(T(random.uniform()), -int(random.below(30)))
                    // every addition loses its term
                    : v % 1024 / 64 > 0 ? std::numeric_limits<T>::epsilon() * T(0.499)
                                        : T(1);
        exact += static_cast<long double>(rows.x[v]);
      }
      const double sum =
          specagg::one_thread::reduce<specagg::detail::add>(rows, [](auto at) { return at.x; });
      worst = std::max(worst, double(std::fabs(sum - exact) / exact) / specagg::sum_error<T>(n));
    }
  CHECK(worst <= 1);
  CHECK(worst > 0.5);
  CHECK(specagg::sum_error<float>(151936) < 1.4e-6);
  CHECK(specagg::sum_error<double>(151936) < 2e-14);
}

TEMPLATE_TEST_CASE("NaN makes a sum NaN and loses a maximum, in any lane of any block", "", float,
                   double) {
  using T = TestType;
  const T nothing = std::numeric_limits<T>::quiet_NaN();
  for (const std::size_t n : {1u, 15u, 17u, 64u, 100u, 1024u, 1030u, 2100u})
    for (std::size_t v = 0; v < n; v += n > 200 ? 13 : 1) {
      two_arrays<T> rows{std::vector<T>(n, T(0.5)), std::vector<T>(n, T(-2))};
      rows.x[v] = rows.y[v] = nothing;
      const double sum =
          specagg::one_thread::reduce<specagg::detail::add>(rows, [](auto at) { return at.x; });
      const double max =
          specagg::one_thread::reduce<specagg::detail::larger>(rows, [](auto at) { return at.y; });
      if (std::isnan(sum) && max == (n == 1 ? -std::numeric_limits<double>::infinity() : -2))
        continue;
      CAPTURE(n, v, sum, max);
      FAIL("NaN was lost, or won");
    }
  SUCCEED();
}

TEMPLATE_TEST_CASE(
    "the largest of rows is the first that has the maximum, in any lane of any block. NaN loses",
    "", float, double) {
  using T = TestType;
  const auto first = [](const two_arrays<T>& rows) {
    return specagg::one_thread::largest(rows, [](auto at) { return at.x; });
  };
  numbers random(9);
  for (const std::size_t n : {1u, 15u, 17u, 64u, 100u, 1024u, 1030u, 2100u, 5000u})
    for (int trial = 0; trial < 50; ++trial) {
      two_arrays<T> rows{std::vector<T>(n), std::vector<T>(n)};
      // many ties, or hardly one
      for (T& x : rows.x) x = T(random.below(trial < 25 ? 5 : 100000)) - 7;
      if (trial % 3 == 0) rows.x[random.below(n)] = std::numeric_limits<T>::quiet_NaN();
      std::size_t due = n;
      for (std::size_t v = 0; v < n; ++v)
        if (rows.x[v] > (due < n ? rows.x[due] : -std::numeric_limits<T>::infinity())) due = v;
      REQUIRE(first(rows) == (due < n ? due : 0));
    }
  CHECK(first({std::vector<T>(3000, -std::numeric_limits<T>::infinity()), std::vector<T>(3000)}) ==
        0);
  CHECK(first({std::vector<T>(3000, std::numeric_limits<T>::quiet_NaN()), std::vector<T>(3000)}) ==
        0);
  CHECK(first({}) == 0);
}

TEST_CASE("nothing sums to 0 and has the maximum -inf, and blocks count themselves") {
  const two_arrays<float> none;
  CHECK(specagg::one_thread::reduce<specagg::detail::add>(none, [](auto at) { return at.x; }) == 0);
  CHECK(specagg::one_thread::reduce<specagg::detail::larger>(none, [](auto at) { return at.x; }) ==
        -INFINITY);
  CHECK(specagg::block_count(0) == 0);
  CHECK(specagg::block_count(1) == 1);
  CHECK(specagg::block_count(1024) == 1);
  CHECK(specagg::block_count(1025) == 2);
  CHECK(specagg::block_count(151936) == 149);
  CHECK(specagg::block_count(std::size_t(1) << 40) == std::size_t(1) << 30);
}

TEST_CASE("one token of the rows is the lane of its block") {
  numbers random(4);
  two_arrays<double> rows;
  for (int n = 0; n < 1100; ++n) {
    rows.x.push_back(random.bell());
    rows.y.push_back(random.bell());
  }
  bool equal = true;
  for (std::size_t v = 0; v < rows.size(); ++v)
    equal = equal && specagg::as_double(specagg::at(rows, v).x) == rows.x[v] &&
            specagg::as_double(specagg::at(rows, v).y) == rows.y[v];
  CHECK(equal);
}
