// SPDX-License-Identifier: Apache-2.0
// What filters keep of 10,000 rows of 20 kinds, beside a sort and sums of long doubles.
#include <specagg/rows/process.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

constexpr int kinds = 20;
double logit_of(numbers& random, int kind, std::size_t v, std::size_t size) {
  const double x = random.bell(), place = double(v) / double(size), u = random.uniform();
  switch (kind) {
    case 0: return 2.5 * x;
    case 1: return -1.3 * std::log(1 + double(random.below(std::uint32_t(size)))) + 0.3 * x;
    case 2: return -2.2 * std::log(1 + double(random.below(std::uint32_t(size)))) + 0.3 * x;
    case 3: return std::round(2.5 * x);
    case 4: return double(v % 2);
    case 5: return 1;
    case 6: return v == size / 3 ? 50 : x;
    case 7: return u < 0.5 ? -std::numeric_limits<double>::infinity() : x;
    case 8: return v == size / 2 ? 3. : -std::numeric_limits<double>::infinity();
    case 9: return 20 * place;
    case 10: return -20 * place;
    case 11: return -double(v) * 0.01;
    case 12: return u < 0.01 ? 8 + x : -8 + x;
    case 13: return 1e-40 * x;
    case 14: return 1e4 * x;
    case 15: return 1 + double(random.below(3)) * 0x1p-23;
    case 16: return double(v / 64 % 7);
    case 17: return v % 100 == 0 ? 5 : -5;
    case 18: return std::log(u + 1e-9);
    default: return x * x * x;
  }
}
// The number of tokens that a cutoff keeps, a prefix of `order`. Masked ones have no mass.
template <class T>
std::size_t length_of(const cutoff<T>& cut, const std::vector<T>& l,
                      const std::vector<std::size_t>& order) {
  const auto kept = [&](std::size_t i) {
    const T x = l[order[i]];
    return x > -std::numeric_limits<T>::infinity() && cut.keeps(x, order[i]);
  };
  std::size_t n = 0;
  while (n < order.size() && kept(n)) ++n;
  bool prefix = true;
  for (std::size_t i = n; i < order.size(); ++i) prefix = prefix && !kept(i);
  REQUIRE(prefix);
  return n;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "of rows of 20 kinds filters keep what sorting keeps, but for a mass within its stated error",
    "[more]", float, double) {
  using T = TestType;
  numbers random(23);
  constexpr int rows_of_kind = 250;  // and as many of the other type
  std::array<int, kinds> differ{};
  for (int row = 0; row < rows_of_kind * kinds; ++row) {
    const int kind = row % kinds;
    const std::size_t size = 1 + random.below(row % 50 == 0 ? 20000 : 3000);
    std::vector<T> l(size);
    for (std::size_t v = 0; v < size; ++v) l[v] = T(logit_of(random, kind, v, size));
    const double temperature = std::array{1., 0.6, 2., 0.05}[random.below(4)];
    const double share = random.below(4) == 0 ? 0.95 : 0.001 + 0.998 * random.uniform();
    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      return l[a] > l[b] || (l[a] == l[b] && a < b);
    });
    using real = long double;
    std::vector<real> mass(size + 1);
    for (std::size_t i = 0; i < size; ++i)
      mass[i + 1] = mass[i] + std::exp((real(l[order[i]]) - real(l[order[0]])) / real(temperature));
    CAPTURE(row, kind, size, temperature, share);
    // a row of one token, or of one kind of logit, has a total all the same
    const auto kept = [&](const sampling& how) {
      const auto normal = normalise(processed_row<T>(std::span<const T>(l), how));
      REQUIRE(normal.why() == status::ok);
      return length_of(normal.restriction, l, order);
    };
    const std::size_t n = kept({.temperature = temperature, .top_p = share});
    const auto due =
        std::size_t(std::lower_bound(mass.begin() + 1, mass.end() - 1, real(share) * mass[size]) -
                    mass.begin());
    if (n != due) {
      const real least = mass[std::min(n, due)] / mass[size],
                 most = mass[std::max(n, due) - 1] / mass[size],
                 error = real(3 * softmax_error<T>(size) + 1.5e-8);
      CHECK(least >= real(share) - error);
      CHECK(most <= real(share) + error);
      ++differ[std::size_t(kind)];
    }
    // top-k is exact; so is min-p but for the rounding of one bound
    const std::size_t k = 1 + random.below(std::uint32_t(size));
    const auto finite = std::size_t(std::ranges::count_if(l, [](T x) { return x > -1e300; }));
    if (k < size) CHECK(kept({.temperature = temperature, .top_k = std::uint32_t(k)}) >= 1);
    if (k < size)
      CHECK(kept({.temperature = temperature, .top_k = std::uint32_t(k)}) ==
            std::min(k, std::max(finite, std::size_t(1))));
    const double fraction = random.uniform();
    const std::size_t m = kept({.temperature = temperature, .min_p = fraction});
    std::size_t due_m = 0;
    const real bound = real(l[order[0]]) + real(temperature) * std::log(real(fraction));
    const real slack = std::fabs(bound) * std::numeric_limits<T>::epsilon() + 1e-300L;
    while (due_m < size && real(l[order[due_m]]) >= bound) ++due_m;
    if (m != due_m) {
      const real at = real(l[order[std::min(m, due_m)]]);
      CHECK(std::fabs(at - bound) <= slack);
    }
  }
  // Rows whose sums end at a tie of thousands differ now and then; no kind does so often.
  for (const int d : differ) CHECK(d <= rows_of_kind / 10);
}
