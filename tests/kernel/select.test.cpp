// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/select.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

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
      for (const std::size_t k :
           {std::size_t(1), std::size_t(2), std::size_t(40), specagg::most_listed}) {
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
        const std::size_t most = k + k / 8 * (k % 2);
        const T bound = specagg::detail::reached_by(x.data(), n, k, most);
        const auto reach =
            std::size_t(std::ranges::count_if(x, [&](T each) { return each >= bound; }));
        const auto above =
            std::size_t(std::ranges::count_if(x, [&](T each) { return each > bound; }));
        CAPTURE(n, shape, k, bound);
        CHECK(reach >= std::min(k, some));
        CHECK((some < k ? bound == std::numeric_limits<T>::lowest() : reach <= most || above < k));
      }
    }
}

#if defined(__SSE2__)
TEST_CASE("a bound of numbers up to 0 is right where subnormals are 0") {
  numbers random(9);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> x(64);
    for (float& each : x) each = -float(random.below(6));
    const std::size_t k = 1 + random.below(64);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    const float bound = specagg::detail::reached_by(x.data(), x.size(), k, k);
    _mm_setcsr(mode);
    const auto reach = [&](auto test) { return std::size_t(std::ranges::count_if(x, test)); };
    CHECK(reach([=](float each) { return each >= bound; }) >= k);
    CHECK(reach([=](float each) { return each > bound; }) <= k);
    CHECK((bound == 0 || std::abs(bound) >= std::numeric_limits<float>::min()));
  }
}
#endif

TEMPLATE_TEST_CASE("a pass leaves the largest logit of each part", "", float, double) {
  using T = TestType;
  numbers random(8);
  for (const std::size_t size : {1u, 17u, 1024u, 5000u, 262144u, 300001u})
    for (int shape = 0; shape < 8; ++shape) {
      const auto l = row<T>(random, size, shape);
      std::vector<T> due(16 * std::min<std::size_t>((size + 1023) / 1024, 256), -infinity<T>);
      for (std::size_t v = 0; v < size; ++v) {
        T& part = due[v / 1024 % 256 * 16 + v % 16];
        part = std::max(part, l[v]);
      }
      specagg::part_maxima<T> maxima, of_sum;
      (void)specagg::find_largest(l.data(), size, &maxima);
      specagg::row_sums none;
      (void)specagg::sum_exponentials(l.data(), size, 1, {}, none, &of_sum);
      CAPTURE(size, shape);
      CHECK(std::ranges::equal(due, std::span(maxima.of).first(maxima.size)));
      CHECK(std::ranges::equal(due, std::span(of_sum.of).first(of_sum.size)));
      const std::size_t v = random.below(size);
      CHECK(maxima.may_reach(v / 1024, l[v]));
      CHECK_FALSE(maxima.may_reach(0, infinity<T>));
    }
}

TEMPLATE_TEST_CASE("the lanes of a mask are stored one after the other", "", float, double) {
  using T = TestType;
  using V = specagg::vec<T, 16>;
  numbers random(9);
  for (int i = 0; i < 2000; ++i) {
    T x[16], stored[16];
    std::vector<T> due;
    for (T& each : x) {
      each = T(random.bell());
      if (each > T(i % 5) - 2) due.push_back(each);
    }
    const V all = V::load(x);
    const std::size_t n = specagg::detail::store_some(all, all > V(T(i % 5) - 2), stored);
    CHECK(std::ranges::equal(due, std::span(stored).first(n)));
  }
}

TEMPLATE_TEST_CASE("a list has room only if 64 more tokens fit", "", float, double) {
  shortlist<TestType> list;
  list.size = list.capacity - 64;
  CHECK(list.has_room());
  ++list.size;
  CHECK_FALSE(list.has_room());
}
