// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/prefix.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <specagg/kernel/logits_in_memory.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::logits_in_memory;
using specagg::mass;
using specagg::mass_unit;
using specagg::prefix;
using specagg::shortlist;

namespace {

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T lowest = std::numeric_limits<T>::lowest();

// Rows on which searches go wrong.
constexpr int shapes = 13;
template <class T>
std::vector<T> row(numbers& random, std::size_t size, int shape) {
  std::vector<T> l(size);
  for (std::size_t v = 0; v < size; ++v) {
    double x = 3 * random.bell();
    if (shape == 1) x = std::round(x);               // thousands of ties
    if (shape == 2) x = 2.5;                         // all equal
    if (shape == 3) x = random.below(2) ? 1 : 1.25;  // two logits
    if (shape == 4) x *= 1e-5;                       // nearly equal
    if (shape == 5) x = -2 * std::log(1. + double(random.below(size)));
    if (shape == 6) x = double(v) / 64;  // ascending
    if (shape == 7 && random.below(20) > 0) x = -INFINITY;
    if (shape == 8) x = 10 + 1e-6 * std::round(x);                          // neighbouring numbers
    if (shape == 9 && v % 1024 / 16 != (29 + v / 1024 * 37) % 64) x -= 40;  // in no first sample
    if (shape == 10) x = v % 1000 == 7 ? 200 : x;  // few far above the others
    if (shape == 11) x = random.below(2) ? -0. : 0.;
    if (shape == 12) x *= double(std::numeric_limits<T>::min()) / 64;  // subnormal
    l[v] = T(x);
  }
  if (shape == 7) l[size / 3] = 0;
  return l;
}

// The same by sorting. All but the mass of a prefix of `enough` or of all tokens.
template <class T>
struct sorted_row {
  std::vector<std::size_t> order;
  std::vector<mass> masses;
  mass all = 0;
  template <class Weight>
  sorted_row(const std::vector<T>& l, const mass_unit<T>& unit, const Weight& weight)
      : order(l.size()) {
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return l[a] > l[b]; });
    for (const std::size_t v : order) {
      masses.push_back(unit.whole(weight(specagg::vec<T, 1>(l[v])).v));
      all += masses.back();
    }
  }
  // The number of tokens of the prefix, and its mass.
  std::pair<std::size_t, mass> reaching(mass enough) const {
    std::size_t n = 0;
    mass sum = 0;
    for (std::size_t i = 0; i < order.size() && sum < enough; ++i) {
      if (masses[i] == 0) continue;
      sum += masses[i];
      n = i + 1;
    }
    return {n, sum};
  }
};

template <class T>
void check(const std::vector<T>& l, const prefix<T>& got, const shortlist<T>& list,
           const sorted_row<T>& sorted, mass enough) {
  const auto [n, kept] = sorted.reaching(enough);
  CHECK(got.kept == kept);
  REQUIRE(n > 0);
  CHECK(got.cut.logit == l[sorted.order[n - 1]]);
  CHECK(got.cut.last == sorted.order[n - 1]);
  std::size_t ties = 0;
  for (std::size_t i = 0; i < n; ++i) ties += l[sorted.order[i]] == got.cut.logit;
  CHECK(got.ties == ties);
  if (list.size == 0) return;
  std::vector<std::size_t> due(sorted.order.begin(), sorted.order.begin() + std::ptrdiff_t(n));
  std::ranges::sort(due);
  CHECK(std::ranges::equal(due, std::span(list.ids).first(list.size),
                           [](std::size_t a, specagg::token_id b) { return a == std::size_t(b); }));
}

// A share of a row: from next to nothing to all.
double some_share(numbers& random) {
  constexpr double all[] = {1e-12, 0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 1 - 1e-7, 1};
  return all[random.below(std::size(all))];
}

}  // namespace

TEMPLATE_TEST_CASE(
    "the shortest prefix is the one that sorting gives, whatever is said of the row's mass and of "
    "its lightest tokens",
    "", float, double) {
  using T = TestType;
  numbers random(1);
  std::size_t listed = 0, rows = 0;
  for (const std::size_t size : {1u, 17u, 1000u, 4096u, 4097u, 9000u, 40000u, 150000u})
    for (int shape = 0; shape < shapes; ++shape)
      for (int i = 0; i < (size > 20000 ? 1 : 6); ++i) {
        const auto l = row<T>(random, size, shape);
        const mass_unit<T> unit(size);
        const T largest = *std::ranges::max_element(l);
        const specagg::softmax_weights<T> weight(largest, i % 3 == 0 ? 1 : i % 3 == 1 ? 0.3 : 20);
        const sorted_row<T> sorted(l, unit, weight);
        const auto enough =
            std::max<mass>(1, mass(some_share(random) * double(sorted.all >> 1)) << 1);
        const double said = random.below(3) ? unit.sum(sorted.all) : 1e-3 * random.uniform();
        const T lightest = random.below(2) ? lowest<T> : largest - T(20 * random.uniform());
        CAPTURE(size, shape, i, enough, sorted.all, said, lightest);
        shortlist<T> list;
        logits_in_memory<T> in(l.data(), size);
        if (i % 2) CHECK(in.largest() == largest);  // which notes the largest of each part
        const auto got = in.shortest_prefix(std::min(enough, sorted.all), lowest<T>, said, lightest,
                                            unit, weight, list);
        check(l, got, list, sorted, std::min(enough, sorted.all));
        listed += list.size > 0;
        ++rows;
      }
  CHECK(listed > rows / 4);
  CHECK(listed < rows);
}

TEMPLATE_TEST_CASE("the shortest prefix by count is the k largest, for any k", "", float, double) {
  using T = TestType;
  numbers random(2);
  for (const std::size_t size : {1000u, 9000u, 60000u})
    for (int shape = 0; shape < shapes; ++shape)
      for (const std::size_t k : {std::size_t(1), std::size_t(1025), size / 3, size - 1}) {
        const auto l = row<T>(random, size, shape);
        const mass_unit<T> unit(size);
        const specagg::count_of_tokens count;
        const sorted_row<T> sorted(l, unit, count);
        const mass enough = std::min(unit.at_least(double(k)), sorted.all);
        CAPTURE(size, shape, k);
        shortlist<T> list;
        check(l,
              logits_in_memory<T>{l.data(), size}.shortest_prefix(
                  enough, lowest<T>, unit.sum(sorted.all), lowest<T>, unit, count, list),
              list, sorted, enough);
      }
}

TEMPLATE_TEST_CASE("the first tokens of a row are listed, nearly always", "", float, double) {
  using T = TestType;
  numbers random(5);
  std::size_t rows = 0, not_listed = 0;
  for (const std::size_t size : {1u, 17u, 1000u, 4096u, 4097u, 9000u, 40000u, 150000u})
    for (int shape = 0; shape < shapes; ++shape)
      for (const std::size_t k : {1u, 40u, 256u, 257u, 1000u, 1536u, 3072u, 3073u}) {
        auto l = row<T>(random, size, shape);
        logits_in_memory<T> in(l.data(), size);
        const sorted_row<T> sorted(l, mass_unit<T>(size), specagg::count_of_tokens());
        std::size_t n = 0;
        while (n < k && n < size && sorted.masses[n] > 0) ++n;
        std::vector<std::size_t> due(sorted.order.begin(),
                                     sorted.order.begin() + std::ptrdiff_t(n));
        std::ranges::sort(due);
        shortlist<T> list;
        specagg::cutoff<T> cut;
        CAPTURE(size, shape, k);
        rows += k <= list.capacity * 3 / 4;
        if (in.list_first(k, list, cut)) {
          const std::span ids = std::span(list.ids).first(list.size);
          CHECK(std::ranges::equal(due, ids, {}, {},
                                   [](specagg::token_id v) { return std::size_t(v); }));
          for (std::size_t i = 0; i < list.size; ++i) CHECK(list.logits[i] == l[due[i]]);
          CHECK(
              (n < k || (cut.logit == l[sorted.order[n - 1]] && cut.last == sorted.order[n - 1])));
        } else {
          not_listed += k <= list.capacity * 3 / 4;
        }
        for (const T bad : {std::numeric_limits<T>::quiet_NaN(), infinity<T>}) {
          l[random.below(size)] = bad;
          list.size = 0;
          CHECK_FALSE(in.list_first(k, list, cut));
          for (std::size_t v = random.below(size); v < size; ++v) l[v] = bad;  // more than fit
          list.size = 0;
          CHECK_FALSE(in.list_first(k, list, cut));
        }
      }
  CHECK(not_listed * 20 < rows);
}

TEMPLATE_TEST_CASE("pivots chosen at random find the same prefix", "", float, double) {
  using T = TestType;
  numbers random(3);
  for (int shape = 0; shape < shapes; ++shape) {
    const std::size_t size = 5000 + random.below(3000);
    const auto l = row<T>(random, size, shape);
    const mass_unit<T> unit(size);
    const specagg::softmax_weights<T> weight(*std::ranges::max_element(l), 1);
    logits_in_memory<T> logits(l.data(), size);
    const mass all = logits.mass_from(unit, weight, lowest<T>);
    if (shape % 2) (void)logits.largest();
    CHECK(all == sorted_row<T>(l, unit, weight).all);
    const mass enough = 1 + mass(random.uniform() * double(all - 1));
    shortlist<T> list;
    const auto due =
        logits.shortest_prefix(enough, lowest<T>, unit.sum(all), lowest<T>, unit, weight, list);
    // the least logit from which on there is not enough; the pivots are logits of the row
    T low = lowest<T>, high = infinity<T>;
    for (int i = 0; i < 400; ++i) {
      const T pivot = l[random.below(size)];
      if (!(pivot > low && pivot < high)) continue;
      (logits.mass_from(unit, weight, pivot) >= enough ? low : high) = pivot;
    }
    for (const T x : l)
      if (x > low && x < high) (logits.mass_from(unit, weight, x) >= enough ? low : high) = x;
    CAPTURE(shape, enough, all);
    CHECK(due.cut.logit == low);
    CHECK(due.kept - mass(due.ties) * unit.whole(weight(specagg::vec<T, 1>(low)).v) ==
          logits.mass_from(unit, weight, high));
  }
}

TEMPLATE_TEST_CASE("a list is shortened to the prefix that sorting gives", "", float, double) {
  using T = TestType;
  numbers random(4);
  for (int i = 0; i < 1500; ++i) {
    const std::size_t size = 1 + random.below(i % 2 ? 64 : shortlist<T>::capacity);
    const auto l = row<T>(random, size, i % shapes);
    const mass_unit<T> unit(size);
    const specagg::softmax_weights<T> weight(*std::ranges::max_element(l), 1);
    const sorted_row<T> sorted(l, unit, weight);
    shortlist<T> list;
    list.size = size;
    for (std::size_t v = 0; v < size; ++v) {
      list.logits[v] = l[v];
      list.ids[v] = specagg::token_id(v);
    }
    // also more than there is: then all that has a mass
    const auto enough = 1 + mass(some_share(random) * 1.1 * double(sorted.all));
    CAPTURE(i, size, enough, sorted.all);
    const auto got = list.shorten(enough, unit, weight);
    REQUIRE(list.size > 0);
    check(l, got, list, sorted, enough);
  }
}
