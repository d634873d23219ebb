// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/select.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::shortlist;
using specagg::token_id;

namespace {

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();

// Rows on which selections go wrong: random, few levels (ties), all equal, rising, falling, one far
// above, masks, nearly all masked.
template <class T>
std::vector<T> row(numbers& random, std::size_t size, int shape) {
  std::vector<T> l(size);
  for (std::size_t v = 0; v < size; ++v)
    l[v] = shape == 0                           ? T(5 * random.bell())
           : shape == 1                         ? T(random.below(5)) - 2
           : shape == 2                         ? T(3)
           : shape == 3                         ? T(1e-4) * T(v)
           : shape == 4                         ? -T(1e-4) * T(v)
           : shape == 5                         ? (v == size / 2 ? T(1e30) : T(random.bell()))
           : random.below(shape == 6 ? 4 : 500) ? -infinity<T>
                                                : T(random.bell());
  if (shape >= 6) l[size / 3] = 0;
  return l;
}

// Ids in the order (larger logit, then lower id), the masked ones left out.
template <class T>
std::vector<std::size_t> order(const std::vector<T>& l) {
  std::vector<std::size_t> ids(l.size());
  std::iota(ids.begin(), ids.end(), std::size_t(0));
  std::ranges::stable_sort(ids, [&](std::size_t a, std::size_t b) { return l[a] > l[b]; });
  std::erase_if(ids, [&](std::size_t v) { return l[v] == -infinity<T>; });
  return ids;
}
template <class T>
std::vector<std::size_t> listed(const shortlist<T>& list) {
  return {list.ids.begin(), list.ids.begin() + std::ptrdiff_t(list.size)};
}
std::vector<std::size_t> ascending(std::vector<std::size_t> ids, std::size_t n) {
  ids.resize(std::min(n, ids.size()));
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

TEMPLATE_TEST_CASE("the largest logit is found with its lowest id, and what makes a row invalid",
                   "", float, double) {
  using T = TestType;
  numbers random(1);
  const fenced<T> memory(5000);
  for (const std::size_t size : {1u, 15u, 17u, 64u, 1023u, 1024u, 1025u, 5000u})
    for (int shape = 0; shape < 7; ++shape) {
      const auto l = row<T>(random, size, shape);
      T* const at = shape % 2 ? memory.begin() : memory.end() - size;
      std::ranges::copy(l, at);
      const auto top = specagg::find_largest(at, size);
      CAPTURE(size, shape);
      CHECK(top.valid);
      CHECK(top.id == order(l)[0]);
      CHECK(top.logit == l[top.id]);
      for (const T bad : {std::numeric_limits<T>::quiet_NaN(), infinity<T>}) {
        const std::size_t v = random.below(size);
        const T before = at[v];
        at[v] = bad;
        CHECK_FALSE(specagg::find_largest(at, size).valid);
        at[v] = before;
      }
    }
  CHECK_FALSE(specagg::find_largest(std::vector<T>(2000, -infinity<T>).data(), 2000).valid);
  CHECK_FALSE(specagg::find_largest<T>(nullptr, 0).valid);
}

TEMPLATE_TEST_CASE(
    "the k largest are those that sorting puts first, however often the list runs over", "", float,
    double) {
  using T = TestType;
  numbers random(2);
  for (const std::size_t size : {1u, 17u, 1000u, 2048u, 2049u, 30000u})
    for (int shape = 0; shape < 8; ++shape) {
      auto l = row<T>(random, size, shape);
      const auto sorted = order(l);
      for (const std::size_t k : {1u, 2u, 40u, 1024u}) {
        shortlist<T> list;
        specagg::cutoff<T> cut;
        CAPTURE(size, shape, k);
        REQUIRE(specagg::list_largest(l.data(), size, k, list, cut));
        CHECK(listed(list) == ascending(sorted, k));
        bool right = true;
        for (std::size_t i = 0; i < sorted.size(); ++i)
          right = right && cut.keeps(l[sorted[i]], sorted[i]) == (i < k);
        CHECK(right);
      }
      for (const T bad : {std::numeric_limits<T>::quiet_NaN(), infinity<T>}) {
        l[random.below(size)] = bad;
        shortlist<T> list;
        specagg::cutoff<T> cut;
        CHECK_FALSE(specagg::list_largest(l.data(), size, 40, list, cut));
      }
    }
}

TEMPLATE_TEST_CASE("a bound is reached by k numbers, and by few more", "", float, double) {
  using T = TestType;
  numbers random(7);
  for (const std::size_t n : {1u, 16u, 17u, 320u, 2048u})
    for (int shape = 0; shape < 8; ++shape) {
      const auto x = row<T>(random, n, shape);
      const std::size_t some = order(x).size();
      for (const std::size_t k : {std::size_t(1), (n + 7) / 8, n}) {
        const T bound = specagg::detail::reached_by(x.data(), n, k);
        const auto reach =
            std::size_t(std::ranges::count_if(x, [&](T each) { return each >= bound; }));
        const auto above =
            std::size_t(std::ranges::count_if(x, [&](T each) { return each > bound; }));
        CAPTURE(n, shape, k, bound);
        CHECK(reach >= std::min(k, some));
        CHECK((some < k ? bound == std::numeric_limits<T>::lowest()
                        : reach <= k + k / 8 || above < k));
      }
    }
}

TEMPLATE_TEST_CASE("the shortest prefix of few tokens is that of many", "", float, double) {
  using T = TestType;
  numbers random(8);
  for (int i = 0; i < 3000; ++i) {
    shortlist<T> list;
    list.size = 1 + random.below(64);
    for (std::size_t j = 0; j < list.size; ++j) {
      list.logits[j] = T(random.below(i % 2 ? 4 : 4000)) / 8 - 1;
      list.ids[j] = token_id(3 * j);
    }
    const auto weight = [&](T l) {
      return i % 3 == 0 ? 1. : i % 3 == 1 ? double(l) + 1 : std::max(0., double(l));
    };
    double total = 0;  // of numbers that add without rounding
    for (std::size_t j = 0; j < list.size; ++j) total += weight(list.logits[j]);
    if (total == 0) continue;
    // also more than there is, and nothing
    const double enough = total * double(random.below(10)) / 8;
    const auto due =
        specagg::detail::shortest_prefix(list.logits.data(), list.size, {}, enough, weight);
    const std::size_t last = std::size_t(list.ids[due.last]);
    const auto got = list.shorten(enough, weight);
    CAPTURE(i, enough, total);
    CHECK(got.logit == due.logit);
    CHECK(got.last == last);
  }
}

TEMPLATE_TEST_CASE(
    "what is listed holds the token at which a share of the mass is reached, or does not fit", "",
    float, double) {
  using T = TestType;
  numbers random(3);
  int full = 0, lists = 0;
  for (const std::size_t size : {1u, 100u, 2048u, 40000u})
    for (int shape = 0; shape < 7; ++shape)
      for (const double p :
           {1e-9, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999})
        for (const double temperature : {0.1, 1., 10.}) {
          const auto l = row<T>(random, size, shape);
          const auto all = specagg::sum_exponentials(l.data(), size, temperature);
          shortlist<T> list;
          double above = 0;
          ++lists;
          if (!specagg::list_crossing(specagg::logits_in_memory<T>{l.data(), size}, all,
                                      temperature, p * all.total, list, above)) {
            ++full;
            continue;
          }
          // the listed tokens are a run of the sorted ones, and the crossing lies within it
          const auto sorted = order(l);
          const auto weight = [&](std::size_t v) {
            return std::exp(double(l[v] - all.max) / temperature);
          };
          const auto in = listed(list);
          double before = 0, mass = 0;
          const T most = list.size
                             ? *std::max_element(list.logits.begin(),
                                                 list.logits.begin() + std::ptrdiff_t(list.size))
                             : T(0);
          for (const std::size_t v : sorted)
            if (l[v] > most) before += weight(v);
          for (const std::size_t v : in) mass += weight(v);
          CAPTURE(size, shape, p, temperature);
          CHECK(std::fabs(before - above) <= 1e-5 * all.total);
          CHECK(before <= p * all.total * (1 + 1e-5));
          CHECK(before + mass >= p * all.total * (1 - 1e-5));
        }
  CHECK(full > 0);
  CHECK(full < lists / 5);
}

TEMPLATE_TEST_CASE("the smallest logit with a weight is found, the largest at most", "", float,
                   double) {
  using T = TestType;
  const std::vector<T> l = {1, T(-1.5), 3, 0, T(2.5)};
  const specagg::softmax_factors<T> weight(3, 1, 1);
  CHECK(specagg::smallest_with(specagg::logits_in_memory<T>{l.data(), 5}, weight, 1) == 3);
  CHECK(specagg::smallest_with(specagg::logits_in_memory<T>{l.data(), 5}, weight, 0.999) == 3);
  CHECK(specagg::smallest_with(specagg::logits_in_memory<T>{l.data(), 5}, weight, 0.6) == T(2.5));
  CHECK(specagg::smallest_with(specagg::logits_in_memory<T>{l.data(), 5}, weight, 0.1) == 1);
  CHECK(specagg::smallest_with(specagg::logits_in_memory<T>{l.data(), 5}, weight, 1e-30) ==
        T(-1.5));
}
