// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::cutoff;
using specagg::log_sum_exp;
using specagg::softmax_error;

namespace {

template <class T>
constexpr T masked = -std::numeric_limits<T>::infinity();

template <class T>
std::vector<T> logits(numbers& random, std::size_t size, double spread, double centre = 0) {
  std::vector<T> l(size);
  for (T& x : l) x = T(centre + spread * random.bell());
  return l;
}

template <class T>
long double exact_log_sum_exp(const std::vector<T>& l, double temperature) {
  const long double max = *std::ranges::max_element(l);
  long double total = 0;
  for (const T x : l)
    total += std::exp((static_cast<long double>(x) - max) / static_cast<long double>(temperature));
  return max / static_cast<long double>(temperature) + std::log(total);
}

// The error of log_sum_exp in units of its bound.
template <class T>
double error_in_bounds(const std::vector<T>& l, double temperature) {
  const double got = log_sum_exp(l, temperature);
  const double bound =
      softmax_error<T>(l.size()) + 0x1p-52 * std::fabs(double(std::ranges::max(l)) / temperature);
  return double(std::fabs(got - exact_log_sum_exp(l, temperature))) / bound;
}

template <class T>
specagg::softmax_factors<T> factors(const specagg::softmax_sum<T>& sum, double temperature) {
  return {sum.max, temperature, sum.total};
}
// Every probability of a row, read 16 at a time from blocks.
template <class T>
std::vector<T> elements(const std::vector<T>& l, double temperature, const cutoff<T>& cut = {}) {
  using V = specagg::vec<T, 16>;
  const auto f =
      factors(specagg::sum_exponentials(l.data(), l.size(), temperature, cut), temperature);
  std::vector<T> p(l.size() + 16);
  for (std::size_t begin = 0; begin < l.size(); begin += specagg::block_size) {
    const std::size_t count = std::min(l.size() - begin, specagg::block_size);
    const specagg::softmax_block<T> block(l.data(), begin, count, f, cut);
    for (std::size_t k = 0; k < count; k += 16)
      block.template operator()<V>(k, int(std::min(count - k, std::size_t(16))))
          .store(&p[begin + k]);
  }
  // lanes after the last token
  for (std::size_t v = l.size(); v < (l.size() + 15) / 16 * 16; ++v) CHECK(p[v] == 0);
  p.resize(l.size());
  return p;
}

}  // namespace

TEMPLATE_TEST_CASE("log_sum_exp is within its stated error for every size, spread and temperature",
                   "", float, double) {
  using T = TestType;
  numbers random(1);
  double worst = 0;
  for (const std::size_t size :
       {1u, 2u, 15u, 16u, 17u, 63u, 65u, 1000u, 1024u, 1025u, 2048u, 5000u, 32000u, 151936u})
    for (const double spread : {0., 1e-3, 1., 5., 100.})
      for (const double temperature : {1e-3, 0.1, 0.7, 1., 2., 1e3}) {
        if (size > 5000 && spread != 5 && temperature != 1) continue;  // long doubles are slow
        worst = std::max(
            worst,
            error_in_bounds(logits<T>(random, size, spread, size % 2 ? 20 : -300), temperature));
      }
  CHECK(worst <= 1);
  CHECK(worst > 0.01);
}

TEMPLATE_TEST_CASE("log_sum_exp is within its stated error where rounding goes one way", "", float,
                   double) {
  using T = TestType;
  double worst = 0;
  // the maximum, and all the others at one distance below it
  for (const double below_max : {3., 5.2, 7., 9.5, 12.})
    for (const std::size_t size : {1024u, 20000u})
      for (const double centre : {0.1, 5.3, 1000.7}) {
        std::vector<T> l(size, T(centre - below_max));
        l[size / 2] = T(centre);
        worst = std::max(worst, error_in_bounds(l, 1));
      }
  // each block's maximum above the one before: all is scaled again
  for (const double step : {1e-2, 0.4, 3., 9.}) {
    std::vector<T> l(100 * 1024);
    for (std::size_t v = 0; v < l.size(); ++v)
      l[v] = T(step * double(v / 1024) - (v % 1024 ? 5. : 0.));
    worst = std::max(worst, error_in_bounds(l, 1));
  }
  CHECK(worst <= 1);
  CHECK(worst > 0.01);
}

TEST_CASE("log_sum_exp of rows like a model's is within 1e-6 of the exact one") {
  numbers random(6);
  double worst = 0;
  for (const std::size_t size : {32000u, 128256u, 151936u})
    for (const double temperature : {0.3, 0.6, 0.7, 0.9, 1., 1.4})
      for (const double spread : {2., 6.}) {
        const auto l = logits<float>(random, size, spread, 10);
        const double got = log_sum_exp(std::span(l).first(size), temperature);
        worst = std::max(worst, double(std::fabs(got - exact_log_sum_exp(l, temperature))));
      }
  CHECK(worst <= 1e-6);
}

TEMPLATE_TEST_CASE("a block far above all before it, however far, counts as if it came first", "",
                   float, double) {
  using T = TestType;
  for (const T far : {T(1), T(80), T(1e4), T(1e30), std::numeric_limits<T>::max() / 8}) {
    std::vector<T> l(5000, T(0));
    for (std::size_t v = 2048; v < 4096; ++v) l[v] = far;
    std::vector<T> turned(l.rbegin(), l.rend());
    for (const double temperature : {0.3, 1., 7.}) {
      CHECK(error_in_bounds(l, temperature) <= 1);
      CHECK(error_in_bounds(turned, temperature) <= 1);
    }
    l[3000] = std::numeric_limits<T>::quiet_NaN();
    CHECK(std::isnan(log_sum_exp(l)));
  }
}

TEMPLATE_TEST_CASE("masked tokens add nothing, be it one, whole blocks, or the tail", "", float,
                   double) {
  using T = TestType;
  numbers random(2);
  for (const std::size_t size : {5u, 1024u, 4000u, 5120u})
    for (int mask = 0; mask < 5; ++mask) {
      auto l = logits<T>(random, size, 5);
      for (std::size_t v = 0; v < size; ++v)
        if (mask == 0   ? v % 3 == 1
            : mask == 1 ? v != size / 2
            : mask == 2 ? v / 1024 % 2 == 0 && v != 3
            : mask == 3 ? v / 1024 == (size - 1) / 1024 && v != 0
                        : v != size - 1)
          l[v] = masked<T>;
      CAPTURE(size, mask);
      CHECK(error_in_bounds(l, 0.7) <= 1);
      const auto p = elements(l, 0.7);
      bool zero = true;
      for (std::size_t v = 0; v < size; ++v) zero = zero && (p[v] == 0) == (l[v] == masked<T>);
      CHECK(zero);
    }
}

TEMPLATE_TEST_CASE("a row with NaN or +inf anywhere, or without a finite logit, has no sum", "",
                   float, double) {
  using T = TestType;
  const T nothing = std::numeric_limits<T>::quiet_NaN();
  for (const std::size_t size : {1u, 7u, 1024u, 1030u, 3100u})
    // masked: in a block where nothing else is finite, too
    for (const T background : {T(0.5), masked<T>})
      for (const T bad : {nothing, -nothing, -masked<T>})
        for (std::size_t v = 0; v < size; v += size > 100 ? 37 : 1) {
          std::vector<T> l(size, background);
          if (v >= 1024) l[0] = 3;
          l[v] = bad;
          if (std::isnan(log_sum_exp(std::span(l).first(size)))) continue;
          CAPTURE(size, background, bad, v);
          FAIL("a bad logit was not found");
        }
  const std::vector<T> none(2000, masked<T>);
  CHECK(std::isnan(log_sum_exp(none)));
  CHECK(std::isnan(log_sum_exp(std::span(none).first(1))));
  CHECK(std::isnan(log_sum_exp(std::span(none).first(0))));
  for (const double temperature : {1e-30, 1e30, 1e33, sizeof(T) == 4 ? 3e35 : 1e300}) {
    CAPTURE(temperature);
    CHECK(std::isnan(log_sum_exp(none, temperature)));
    CHECK(std::isnan(specagg::sum_exponentials(none.data(), 1, temperature).total));
  }
}

TEMPLATE_TEST_CASE("a cutoff does not hide NaN", "", float, double) {
  using T = TestType;
  std::vector<T> l(2000, T(1));
  l[700] = 5;
  l[1500] = std::numeric_limits<T>::quiet_NaN();
  CHECK(std::isnan(specagg::sum_exponentials(l.data(), l.size(), 1, cutoff<T>{5, 700}).total));
}

TEMPLATE_TEST_CASE("logits of any size and the coldest temperatures do not overflow", "", float,
                   double) {
  using T = TestType;
  const T huge = T(1e30), largest = std::numeric_limits<T>::max();
  for (const auto& l : {std::vector<T>{huge, -huge, huge},
                        {largest, -largest},
                        {-largest, -largest},
                        {T(1e-30), T(2e-30)}})
    for (const double temperature : {1e-30, 1e-3, 1., 1e3}) {
      CAPTURE(l, temperature);
      const double got = log_sum_exp(l, temperature);
      const long double due = exact_log_sum_exp(l, temperature);
      if (std::fabs(due) <= std::numeric_limits<double>::max())
        CHECK(error_in_bounds(l, temperature) <= 1);
      else CHECK(std::isinf(got));
      const auto p = elements(l, temperature);
      CHECK(*std::ranges::max_element(p) <= 1);
      CHECK(*std::ranges::min_element(p) >= 0);
    }
  const auto p = elements(std::vector<T>{1, above(T(1)), 1}, 1e-12);  // all the mass, however close
  CHECK((sizeof(T) == 8 || (p[0] == 0 && p[1] == 1 && p[2] == 0)));
  CHECK(elements(std::vector<T>{T(-7)}, 0.3) == std::vector<T>{1});
}

TEMPLATE_TEST_CASE(
    "the elements of a row are the softmax, sum to 1, and are the same 16 at a time and alone", "",
    float, double) {
  using T = TestType;
  numbers random(3);
  for (const std::size_t size : {1u, 16u, 100u, 1025u, 5000u, 151936u})
    for (const double temperature : {0.05, 0.7, 1., 3.}) {
      const auto l = logits<T>(random, size, 6, 2);
      const auto p = elements(l, temperature);
      const auto f = factors(specagg::sum_exponentials(l.data(), size, temperature), temperature);
      const long double norm = exact_log_sum_exp(l, temperature);
      const double unit = double(std::numeric_limits<T>::epsilon()) / 2;
      long double sum = 0;
      double worst = 0;
      bool equal = true;
      for (std::size_t v = 0; v < size; ++v) {
        sum += static_cast<long double>(p[v]);
        const long double log_p =
            static_cast<long double>(l[v]) / static_cast<long double>(temperature) - norm;
        // of an element: the error of the total, an exponential, and those of l - max and of 1 /
        // temperature
        const double bound =
            softmax_error<T>(size) + unit * (6 + 2 * double(f.max - l[v]) / temperature);
        if (p[v] > 0)
          worst = std::max(
              worst,
              double(std::fabs(static_cast<long double>(p[v]) / std::exp(log_p) - 1)) / bound);
        else equal = equal && log_p < -85;
        if (size < 10000 || v % 97 == 0)
          equal = equal && specagg::softmax_block<T>(l.data(), v, 1, f, {})
                                   .template operator()<specagg::vec<T, 1>>(0, 1)
                                   .v == p[v];
      }
      CAPTURE(size, temperature);
      CHECK(equal);
      CHECK(worst <= 1);
      CHECK(std::fabs(double(sum - 1)) <= 2 * softmax_error<T>(size));
    }
}

TEMPLATE_TEST_CASE("no probability is subnormal: hosts that flush those to zero see the same row",
                   "", float, double) {
  using T = TestType;
  std::vector<T> l(70000, 0);
  for (std::size_t v = 0; v < 3000; ++v) l[v] = T(-double(v) * (sizeof(T) == 4 ? 0.03 : 0.25));
  const auto p = elements(l, 1);
  CHECK(std::ranges::count(p, T(0)) > 0);
  CHECK(std::ranges::all_of(p, [](T x) { return x == 0 || x >= std::numeric_limits<T>::min(); }));
}

TEMPLATE_TEST_CASE("rows may begin anywhere in memory, and nothing beside them is read", "", float,
                   double) {
  using T = TestType;
  numbers random(4);
  const fenced<T> memory(5000);
  for (const std::size_t size : {1u, 5u, 16u, 100u, 1000u, 1024u, 1025u, 4999u})
    for (T* const at : {memory.begin(), memory.end() - size, memory.end() - size - 1}) {
      const auto l = logits<T>(random, size, 3);
      std::ranges::copy(l, at);
      CHECK(log_sum_exp(std::span(at, size)) == log_sum_exp(std::span(l).first(size)));
    }
}

TEMPLATE_TEST_CASE("a cutoff keeps the larger logits, and of its ties those up to the last id", "",
                   float, double) {
  using T = TestType;
  numbers random(5);
  for (const std::size_t size : {1u, 20u, 1024u, 1030u, 3000u})
    for (int round = 0; round < 40; ++round) {
      std::vector<T> l(size);
      for (T& x : l) x = T(random.below(6));
      const std::size_t last = round % 4 ? random.below(size) : std::size_t(-1);
      const cutoff<T> cut{l[random.below(size)], round % 4 == 1 ? 1023 : last};
      long double total = 0;
      bool kept_any = false;
      for (std::size_t v = 0; v < size; ++v)
        if (cut.keeps(l[v], v)) {
          total += std::exp(static_cast<long double>(l[v] - std::ranges::max(l)));
          kept_any = true;
        }
      CAPTURE(size, round, cut.logit, cut.last);
      if (!kept_any) continue;
      const auto sum = specagg::sum_exponentials(l.data(), size, 1, cut);
      CHECK(std::fabs(double(sum.total / total - 1)) <= softmax_error<T>(size));
      const auto p = elements(l, 1, cut);
      bool right = true;
      for (std::size_t v = 0; v < size; ++v)
        right = right && (p[v] > 0) == (l[v] > cut.logit || (l[v] == cut.logit && v <= cut.last)) &&
                same(specagg::softmax_block<T>(l.data(), v, 1, factors(sum, 1), cut)
                         .template operator()<specagg::vec<T, 1>>(0, 1)
                         .v,
                     p[v]);
      CHECK(right);
    }
  CHECK(cutoff<T>{}.keeps_all());
  CHECK(cutoff<T>{}.keeps(masked<T>, 5));
  CHECK_FALSE(cutoff<T>{0}.keeps_all());
}
