// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/process.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <specagg/policy/policy.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::penalties;
using specagg::penalty_options;
using specagg::processed_row;
using specagg::sampling;
using specagg::status;
using specagg::token_id;

namespace {

template <class T>
std::vector<double> row_of(const std::vector<T>& logits, const sampling& s) {
  const auto row = normalise(processed_row<T>(logits, s));
  REQUIRE(row.why() == status::ok);
  std::vector<double> p(logits.size());
  for (std::size_t v = 0; v < p.size(); ++v) p[v] = double(row[v]);
  return p;
}

// The same by sorting, in long double. `nudge` moves the thresholds of top-p and min-p by that
// relative amount.
template <class T>
std::vector<double> sorted_row(const std::vector<T>& logits, const sampling& s, double nudge) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  if (s.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  const auto weight = [&](std::size_t v) {
    return std::exp(
        (static_cast<long double>(logits[v]) - static_cast<long double>(logits[order[0]])) /
        static_cast<long double>(s.temperature));
  };
  const auto total = [&] {
    long double sum = 0;
    for (const std::size_t v : order) sum += weight(v);
    return sum;
  };
  if (s.top_k > 0) order.resize(std::min(order.size(), std::size_t(s.top_k)));
  if (s.top_p < 1) {
    const long double enough = s.top_p * (1 + nudge) * total();
    long double sum = 0;
    std::size_t n = 0;
    while (n < order.size() && (n == 0 || sum < enough)) sum += weight(order[n++]);
    order.resize(n);
  }
  if (s.min_p > 0)
    std::erase_if(order,
                  [&](std::size_t v) { return weight(v) < std::min(1., s.min_p * (1 + nudge)); });
  const long double sum = total();
  for (const std::size_t v : order) p[v] = double(weight(v) / sum);
  return p;
}

bool same_row(const std::vector<double>& got, const std::vector<double>& due, double error) {
  for (std::size_t v = 0; v < got.size(); ++v)
    if ((got[v] > 0) != (due[v] > 1e-37) || std::fabs(got[v] - due[v]) > error * due[v])
      return false;
  return true;
}
template <class T>
constexpr double row_error = sizeof(T) == 4 ? 4e-6 : 1e-13;

std::vector<token_id> kept(const std::vector<double>& p) {
  std::vector<token_id> ids;
  for (std::size_t v = 0; v < p.size(); ++v)
    if (p[v] > 0) ids.push_back(token_id(v));
  return ids;
}
template <class T>
std::vector<token_id> kept(const std::vector<T>& logits, const sampling& s) {
  return kept(row_of(logits, s));
}
std::vector<token_id> first(token_id n) {
  std::vector<token_id> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
template <class T>
std::vector<T> logs(std::initializer_list<double> probabilities) {
  std::vector<T> l;
  for (const double p : probabilities) l.push_back(T(std::log(p)));
  return l;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "every combination of temperature and filters is the row that sorting gives, ties and masks "
    "included",
    "", float, double) {
  using T = TestType;
  numbers random(1);
  int on_a_threshold = 0, rows = 0;
  for (const std::size_t size : {1u, 2u, 7u, 50u, 1500u})
    for (const double temperature : {0., 1e-30, 0.5, 1., 2.})
      for (const std::uint32_t top_k : {0u, 1u, 3u, 40u, 1500u, 4000000000u})
        for (const double top_p : {1., 0.999, 0.9, 0.5, 0.013, 1e-9})
          for (const double min_p : {0., 0.01, 0.3, 1.}) {
            const int levels = rows % 3 == 0 ? 3 : rows % 3 == 1 ? 12 : 1000;  // few: many ties
            std::vector<T> l(size);
            for (T& x : l) {
              const int level = int(random.below(std::size_t(levels))) - levels / 2;
              x = level == 0 && random.below(2) ? T(-0.0) : T(level) * T(7) / T(levels);
              if (random.below(10) == 0) x = -std::numeric_limits<T>::infinity();
            }
            l[random.below(size)] = T(random.below(2)) * 3;
            const sampling s{temperature, top_k, top_p, min_p};
            const auto got = row_of(l, s), low = sorted_row(l, s, -1e-6),
                       high = sorted_row(l, s, 1e-6);
            ++rows;
            on_a_threshold += kept(low) != kept(high);
            if (same_row(got, low, row_error<T>) || same_row(got, high, row_error<T>)) continue;
            CAPTURE(size, temperature, top_k, top_p, min_p, levels, kept(got), kept(low),
                    kept(high));
            FAIL("another row");
          }
  CHECK(rows == 5 * 5 * 6 * 6 * 4);
  CHECK(on_a_threshold < rows / 20);
}

TEMPLATE_TEST_CASE(
    "the filters act in the order top-k, top-p, min-p, each on the renormalised row before it", "",
    float, double) {
  using T = TestType;
  const auto l = logs<T>({0.4, 0.3, 0.2, 0.1});
  // of 4/7 and 3/7; top-p first would keep two
  CHECK(kept(l, {.top_k = 2, .top_p = 0.55}) == first(1));
  CHECK(kept(l, {.top_k = 2, .top_p = 0.6}) == first(2));
  CHECK(kept(l, {.top_p = 0.65, .min_p = 0.6}) == first(2));
  CHECK(kept(l, {.top_k = 3, .min_p = 0.45}) == first(3));
  CHECK(kept(l, {.temperature = 0.5, .top_p = 0.5}) ==
        first(1));  // 16, 9, 4, 1 of 30: temperature comes before the filters
  CHECK(kept(l, {.temperature = 2, .min_p = 0.499}) == first(4));
  CHECK(std::fabs(row_of(l, {.top_k = 2})[0] - 4. / 7) < 1e-6);
}

TEMPLATE_TEST_CASE("top-p keeps the token that crosses it, at least one, and all at 1", "", float,
                   double) {
  using T = TestType;
  const auto l = logs<T>({0.2, 0.5, 0.3});
  CHECK(kept(l, {.top_p = 0.49}) == std::vector<token_id>{1});
  CHECK(kept(l, {.top_p = 0.51}) == std::vector<token_id>{1, 2});
  CHECK(kept(l, {.top_p = 0.81}) == first(3));
  for (const double tiny : {1e-9, 1e-300, std::numeric_limits<double>::denorm_min()})
    CHECK(kept(l, {.top_p = tiny}) == std::vector<token_id>{1});
  const std::vector<T> long_tail = {0, -60, -80};
  CHECK(kept(long_tail, {.top_p = 1}) == first(3));
  CHECK(kept(long_tail, {.top_p = 0.999}) == first(1));
}

TEMPLATE_TEST_CASE("of ties the lower ids are kept, by every filter and at temperature 0", "",
                   float, double) {
  using T = TestType;
  const std::vector<T> equal(2000, T(0));  // sums of these are exact
  CHECK(kept(equal, {.temperature = 0}) == first(1));
  CHECK(kept(equal, {.top_k = 7}) == first(7));
  CHECK(kept(equal, {.top_k = 1500}) == first(1500));
  CHECK(kept(equal, {.top_p = 0.5}) == first(1000));
  CHECK(kept(equal, {.top_p = 0.5 + 1e-9}) == first(1001));
  CHECK(kept(equal, {.min_p = 1}) == first(2000));
  CHECK(kept(equal, {.temperature = 1e-20, .top_k = 5, .top_p = 0.5}) == first(3));
  std::vector<T> l = {1, 0, T(-0.0), 2, T(-0.0), 0};
  CHECK(kept(l, {.top_k = 4}) == first(4));  // -0 and 0 are one logit
  CHECK(kept(l, {.top_k = 5}) == first(5));
  l = {-1, T(-0.0), 0};
  CHECK(kept(l, {.temperature = 0}) == std::vector<token_id>{1});
  CHECK(kept(l, {.min_p = 1}) == std::vector<token_id>{1, 2});
  CHECK(kept(equal, {.top_k = 2000}) == first(2000));
  CHECK(kept(equal, {.top_k = 2001}) == first(2000));
  const auto half = kept(std::vector<T>(2000, T(-3.25)), {.top_p = 0.5});
  CHECK((half == first(1000) || half == first(1001)));
}

TEMPLATE_TEST_CASE(
    "temperature 0 is the largest logit as a one-hot row, whose confidence is the softmax at "
    "temperature 1",
    "", float, double) {
  using T = TestType;
  numbers random(2);
  for (const std::size_t size : {1u, 5u, 1025u, 5000u}) {
    std::vector<T> l(size);
    for (T& x : l) x = T(random.bell());
    const auto top = std::size_t(std::ranges::max_element(l) - l.begin());
    const auto greedy = normalise(
        processed_row<T>(l, {.temperature = 0, .top_k = 3, .top_p = 0.5, .min_p = 0.5}), true);
    const auto plain = specagg::normalise(specagg::softmax_row<T>(l));
    REQUIRE(greedy.why() == status::ok);
    REQUIRE(plain.why() == status::ok);
    bool right = true;
    for (std::size_t v = 0; v < size; ++v)
      right = right && greedy[v] == (v == top) &&
              greedy.open(v, 1).template confidence<specagg::vec<T, 1>>(0, 1).v == plain[v];
    CHECK(right);
  }
  const std::vector<T> masked = {-std::numeric_limits<T>::infinity(), -1e30f,
                                 -std::numeric_limits<T>::infinity()};
  CHECK(kept(masked, {.temperature = 0}) == std::vector<token_id>{1});
}

TEMPLATE_TEST_CASE("temperatures too small to divide by are greedy, small ones share between ties",
                   "", float, double) {
  using T = TestType;
  const std::vector<T> l = {1, 3, 2, 3};
  for (const double temperature : {0., 1e-310, 1e-320})
    CHECK(kept(l, {.temperature = temperature}) == std::vector<token_id>{1});
  for (const double temperature : {1e-30, 1e-10, 1e-3}) {
    const auto p = row_of(l, {.temperature = temperature});
    CHECK(p == std::vector<double>{0, 0.5, 0, 0.5});
  }
  const auto hot = row_of(l, {.temperature = 1e30});
  CHECK(same_row(hot, {0.25, 0.25, 0.25, 0.25}, 1e-6));
}

TEMPLATE_TEST_CASE("a row without filters has the bits of the softmax row", "", float, double) {
  using T = TestType;
  numbers random(3);
  std::vector<T> l(3000);
  for (T& x : l) x = T(5 * random.bell());
  const auto processed = normalise(processed_row<T>(l, {.temperature = 0.7}), true);
  const auto plain = specagg::normalise(specagg::softmax_row<T>(l, 0.7), true);
  CHECK(processed.why() == status::ok);
  CHECK(plain.why() == status::ok);
  bool same = true;
  for (std::size_t v = 0; v < l.size(); ++v) same = same && processed[v] == plain[v];
  CHECK(same);
  const auto unset = normalise(processed_row<T>(l));
  CHECK(unset.why() == status::ok);
  CHECK(unset.temperature() == 1);
}

TEMPLATE_TEST_CASE(
    "parameters out of their range, and bad logits under any filters, have their "
    "status",
    "", float, double) {
  using T = TestType;
  using L = std::numeric_limits<double>;
  const auto of = [](const std::vector<T>& l, const sampling& s) {
    return normalise(processed_row<T>(l, s), true).why();
  };
  const std::vector<T> good = {1, 2, 3};
  for (const double bad : {-1., -1e-300, L::quiet_NaN(), L::infinity(), -L::infinity()}) {
    CHECK(of(good, {.temperature = bad}) == status::invalid_parameter);
    CHECK(of(good, {.top_p = bad}) == status::invalid_parameter);
    CHECK(of(good, {.min_p = bad}) == status::invalid_parameter);
  }
  CHECK(of(good, {.top_p = 0}) == status::invalid_parameter);
  CHECK(of(good, {.top_p = above(1.)}) == status::invalid_parameter);
  CHECK(of(good, {.min_p = above(1.)}) == status::invalid_parameter);
  const T infinity = std::numeric_limits<T>::infinity(),
          nothing = std::numeric_limits<T>::quiet_NaN();
  for (const sampling& s : {sampling{},
                            {.temperature = 0},
                            {.temperature = 0.5, .top_k = 1},
                            {.top_p = 0.1},
                            {.min_p = 1}}) {
    for (const T bad : {nothing, -nothing, infinity})
      for (const std::size_t v : {0u, 1u, 1030u, 2099u}) {
        std::vector<T> l(2100, T(1));
        l[5] = 30;
        l[v] = bad;
        CHECK(of(l, s) == status::invalid_row);
      }
    CHECK(of(std::vector<T>(2100, -infinity), s) == status::invalid_row);
    CHECK(of({}, s) == status::invalid_row);
    CHECK(of({-infinity, 0, -infinity}, s) == status::ok);
  }
  CHECK(normalise(processed_row<T>()).why() == status::invalid_row);
}

TEMPLATE_TEST_CASE("filters of a real vocabulary keep what a partial sort keeps", "", float,
                   double) {
  using T = TestType;
  numbers random(4);
  std::vector<T> l(151936);
  for (T& x : l) x = T(std::round(random.bell() * 2000) / 200);  // about 190 ties each
  for (const std::uint32_t top_k : {1u, 50u, 1000u, 100000u}) {
    const sampling s{.temperature = 0.8, .top_k = top_k};
    CHECK(same_row(row_of(l, s), sorted_row(l, s, 0), row_error<T>));
  }
  const sampling s{.temperature = 0.8, .top_p = 0.8123, .min_p = 0.01};
  CHECK(same_row(row_of(l, s), sorted_row(l, s, 0), row_error<T>));
}

TEST_CASE(
    "top-p of thousands of ties, and of more tokens than are ever listed, keeps what sorting "
    "keeps") {
  std::vector<float> l(30000, 1.f);
  for (std::size_t v = 0; v < l.size(); v += 7) l[v] = 0;
  CHECK(same_row(row_of(l, {.top_p = 0.4}), sorted_row(l, {.top_p = 0.4}, 0), row_error<float>));
  for (const std::uint32_t top_k : {0u, 1500u, 29000u})
    for (const double top_p : {1., 0.97, 0.3}) {
      const sampling s{
          .temperature = 1.3, .top_k = top_k, .top_p = top_p, .min_p = top_k ? 0. : 0.01};
      for (std::size_t v = 0; v < l.size(); ++v) l[v] = float(v * 7919 % 30011) * 2e-4f;  // no ties
      const auto got = row_of(l, s), low = sorted_row(l, s, -1e-6), high = sorted_row(l, s, 1e-6);
      CAPTURE(top_k, top_p);
      CHECK((same_row(got, low, row_error<float>) || same_row(got, high, row_error<float>)));
    }
}

TEMPLATE_TEST_CASE(
    "a row that keeps few tokens is drawn from without the others, with the same bits", "", float,
    double) {
  using T = TestType;
  numbers random(5);
  constexpr auto itself = [](auto v) { return v; };
  const specagg::random_streams chooser(1);
  for (const std::size_t size : {1u, 16u, 100u, 4097u, 49152u, 262144u, 300001u}) {
    std::vector<T> l(size), other(size);
    for (T& x : l) x = T(random.bell());
    for (T& x : other) x = T(random.bell());
    for (int i = 0; i < 20; ++i) l[random.below(size)] += T(9 + random.bell());
    // a mask
    for (std::size_t v = 1; v < size; v += 1 + random.below(9))
      l[v] = -std::numeric_limits<T>::infinity();
    std::vector<double> all(specagg::block_count(size)), few(all);
    for (const sampling& s : {sampling{.temperature = 0},
                              {.top_k = 1},
                              {.top_k = 40},
                              {.temperature = 0.5, .top_p = 0.9},
                              {.top_k = 40, .top_p = 0.95}}) {
      CAPTURE(size, s.temperature, s.top_k, s.top_p, s.min_p);
      const auto row = normalise(processed_row<T>(l, s));
      REQUIRE(row.why() == status::ok);
      if (s.top_k > 0 && s.top_k >= size) continue;  // nothing is filtered
      if (!row.keeps_few()) FAIL("the row does not know what it keeps");
      using normal = specagg::normal_form<processed_row<T>>;
      const specagg::detail::terms_of_row<normal> terms(row);
      const auto due = specagg::weigh(terms, itself, all);
      const specagg::few_of_row<normal, decltype(terms), specagg::row_itself> read{row, terms, {}};
      const auto got = specagg::weigh(read, itself, few);
      CHECK(same(got.total, due.total));
      CHECK(std::ranges::equal(few, all));
      for (std::uint32_t i = 0; i < 50; ++i) {
        const specagg::moment m{specagg::stream::draft, i, i};
        const token_id y = specagg::draw(row, m, chooser, few);
        CHECK(y == chooser.draw(m, due));
        CHECK(row.may_keep(std::size_t(y) / 16 * 16));
      }
      // the residual against a draft
      const auto q = normalise(processed_row<T>(other));
      const specagg::row_pair pair(q, row);
      const auto left = [](auto at) { return specagg::positive(at.p - at.q); };
      const auto due_left = specagg::weigh(pair, left, all);
      specagg::weigh_where_kept(row, pair, left, few, [&](const auto& read_left) {
        CHECK(same(read_left.total, due_left.total));
        const specagg::moment m{specagg::stream::residual, 0, 0};
        CHECK(chooser.draw(m, read_left) == chooser.draw(m, due_left));
      });
      CHECK(std::ranges::equal(few, all));
      std::size_t read_groups = 0;
      for (std::size_t v = 0; v < size; v += 16) read_groups += row.may_keep(v);
      // of each place, all groups
      CHECK(read_groups <= 64 * std::bit_ceil((size + 32767) / 32768));
    }
    for (const sampling& s : {sampling(), {.top_k = 1000}, {.min_p = 1e-3}}) {
      const auto row = normalise(processed_row<T>(l, s));
      REQUIRE(row.why() == status::ok);
      CHECK_FALSE(row.keeps_few());
    }
  }
}

// ---- 16-bit logits ------------------------------------------------------------------------------

namespace {

template <class S>
bool same_as_floats(const S* stored, std::size_t size, const sampling& s) {
  std::vector<float> wide(size);
  for (std::size_t v = 0; v < size; ++v) wide[v] = specagg::detail::number(stored[v]);
  const auto a = normalise(processed_row<S>(std::span(stored, size), s), true);
  const auto b = normalise(processed_row<float>(wide, s), true);
  const status found = a.why();
  if (found != b.why()) return false;
  if (found != status::ok) return true;
  bool equal = true;
  for (std::size_t begin = 0; begin < size; begin += 1024) {
    const std::size_t count = std::min(size - begin, std::size_t(1024));
    const auto x = a.open(begin, count);
    const auto y = b.open(begin, count);
    for (std::size_t k = 0; k < count; k += 16) {
      using V = specagg::vec<float, 16>;
      const int lanes = int(std::min(count - k, std::size_t(16)));
      float p[4][16];
      x.template operator()<V>(k, lanes).store(p[0]),
          y.template operator()<V>(k, lanes).store(p[1]);
      x.template confidence<V>(k, lanes).store(p[2]),
          y.template confidence<V>(k, lanes).store(p[3]);
      for (int i = 0; i < 16; ++i) equal = equal && p[0][i] == p[1][i] && p[2][i] == p[3][i];
    }
  }
  const double bits = specagg::log_sum_exp(std::span(stored, size)),
               due = specagg::log_sum_exp(std::span(wide).first(size));
  return equal && same(bits, due) && a.restriction.logit == b.restriction.logit &&
         a.restriction.last == b.restriction.last && a[size - 1] == b[size - 1];
}

}  // namespace

TEMPLATE_TEST_CASE("top-p within round-off of 1 still has a cut, and min-p after it still counts",
                   "", float, double) {
  using T = TestType;
  numbers n(7);
  const double finest = sizeof(T) == 4 ? 1e-5 : 1e-14;
  std::size_t checked = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<T> l(2000 + n.below(6000));
    const double background = i % 2 ? -1e4 : -8 - double(n.below(20));
    for (T& x : l) x = T(background + 0.01 * n.uniform());
    const std::size_t heads = 1 + n.below(1500);
    const double spread = 0.5 * double(n.below(3));
    for (std::size_t k = 0; k < heads; ++k)
      l[n.below(std::uint32_t(l.size()))] = T(5 + spread * n.uniform());
    const double top_p = 1 - finest * std::pow(10, -3 * n.uniform());
    if (!(top_p < 1)) continue;
    const auto row = normalise(processed_row<T>(l, {1, 0, top_p, 0.5}));
    REQUIRE(row.why() == status::ok);
    ++checked;
    if (std::isnan(row.restriction.logit))
      FAIL("no cut at 1 - top_p = " << 1 - top_p << ", V = " << l.size());
    const T most = std::ranges::max(l);
    for (std::size_t v = 0; v < l.size(); ++v)
      if (std::exp(double(l[v] - most)) < 0.4999 && row[v] > 0) FAIL("min-p was forgotten");
  }
  CHECK(checked > 1000);
}
TEMPLATE_TEST_CASE(
    "rows of 16-bit logits have the bits of the same row as floats, wherever they begin", "",
    specagg::bf16, specagg::f16) {
  using S = TestType;
  numbers random(7);
  constexpr bool half = std::is_same_v<S, specagg::f16>;
  const fenced<S> memory(5000);
  for (const std::size_t size : {1u, 3u, 16u, 33u, 1023u, 1025u, 5000u})
    for (S* const at : {memory.begin(), memory.end() - size})
      for (int shape = 0; shape < 4; ++shape) {
        for (std::size_t v = 0; v < size; ++v) {
          const auto word = std::uint16_t(random.word());
          const auto tame = std::uint16_t((half ? 0x3000 : 0x3e00) +
                                          (word & (half ? 0x1bff : 0x01ff)) + (word & 0x8000));
          // any bits: subnormal numbers, infinities and NaN too
          at[v].bits = shape == 0 ? tame : word;
          const bool special = (at[v].bits & (half ? 0x7c00 : 0x7f80)) == (half ? 0x7c00 : 0x7f80);
          if (special && shape != 3) at[v].bits = half ? 0xfc00 : 0xff80;  // a mask
        }
        at[size / 2].bits = 0x3f80;
        for (const sampling& s : {sampling{},
                                  {.temperature = 0},
                                  {.temperature = 0.7, .top_k = 40},
                                  {.top_p = 0.9},
                                  {.temperature = 2, .top_k = 2000, .top_p = 0.5},
                                  {.min_p = 0.1}}) {
          CAPTURE(size, shape, s.temperature, s.top_k, s.top_p);
          CHECK(same_as_floats(at, size, s));
        }
      }
}

TEMPLATE_TEST_CASE("ordered maps numbers to integers in their order, and back", "", float, double) {
  using T = TestType;
  numbers random(5);
  auto values = nasty<T>();
  for (int i = 0; i < 2000; ++i) values.push_back(random.bits<T>());
  std::erase_if(values, [](T x) { return std::isnan(x); });
  bool right = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T a = values[i], b = values[random.below(values.size())];
    right = right && (a < b) == (specagg::detail::ordered(a) < specagg::detail::ordered(b)) &&
            (a == b) == (specagg::detail::ordered(a) == specagg::detail::ordered(b)) &&
            specagg::detail::unordered<T>(specagg::detail::ordered(a)) == a;
  }
  CHECK(right);
}

// ---- penalties ----------------------------------------------------------------------------------

namespace {

struct counters {
  std::vector<std::uint32_t> counts;
  std::vector<token_id> distinct, text;
  counters(std::size_t vocabulary, std::size_t length)
      : counts(vocabulary, 99u), distinct(vocabulary), text(length) {}
  penalties with(const penalty_options& o) { return {o, counts, distinct, text}; }
};

// The three penalties from the whole text.
template <class T>
std::vector<T> penalised(std::vector<T> logits, const std::vector<token_id>& text,
                         const penalty_options& o) {
  std::map<token_id, int> counts;
  for (const token_id t : text) ++counts[t];
  for (const auto& [t, count] : counts) {
    if (t < 0 || std::size_t(t) >= logits.size()) continue;
    double l = double(logits[std::size_t(t)]);
    l = l > 0 ? l / o.repetition : l * o.repetition;
    const volatile double rounded = l;
    l = std::fma(-o.frequency, double(count), rounded - o.presence);
    logits[std::size_t(t)] = T(l);
  }
  return logits;
}

constexpr penalty_options all_three{.repetition = 1.3, .presence = 0.4, .frequency = 0.15};

}  // namespace

TEMPLATE_TEST_CASE("penalties after any pushes and pops are those of the text that is left", "",
                   float, double) {
  using T = TestType;
  numbers random(6);
  constexpr std::size_t vocabulary = 30, length = 60;
  counters memory(vocabulary, length);
  penalties processor = memory.with(all_three);
  std::vector<token_id> text;
  std::vector<T> logits(vocabulary);
  for (T& x : logits) x = T(3 * random.bell());
  logits[3] = 0;
  logits[4] = -std::numeric_limits<T>::infinity();
  for (int step = 0; step < 3000; ++step) {
    if (text.empty() || (text.size() < length && random.below(20) < (step / 200 % 2 ? 8u : 12u))) {
      const token_id outside[] = {-1, -2147483647 - 1, token_id(vocabulary), 2147483647};
      text.push_back(random.below(10) ? token_id(random.below(vocabulary))
                                      : outside[random.below(4)]);
      (void)processor.push(text.back());
    } else {
      text.pop_back();
      processor.pop();
    }
    auto got = logits;
    processor.apply(std::span<T>(got));
    if (got == penalised(logits, text, all_three)) continue;
    CAPTURE(step, text);
    FAIL("other penalties");
  }
  while (!text.empty()) {
    text.pop_back();
    processor.pop();
  }
  auto got = logits;
  processor.apply(std::span<T>(got));
  CHECK(got == logits);
  CHECK(memory.counts == std::vector<std::uint32_t>(vocabulary));
}

TEMPLATE_TEST_CASE(
    "penalties of 16-bit logits are those of the same logits as doubles, rounded once", "",
    specagg::bf16, specagg::f16) {
  using S = TestType;
  constexpr bool half = std::is_same_v<S, specagg::f16>;
  numbers random(8);
  constexpr std::size_t vocabulary = 30;
  counters memory(vocabulary, 100);
  penalties processor = memory.with(all_three);
  for (int i = 0; i < 100; ++i) (void)processor.push(token_id(random.below(vocabulary)));
  for (int round = 0; round < 200; ++round) {
    std::vector<S> logits(vocabulary);
    for (S& x : logits)
      x = {std::uint16_t((half ? 0x3000 : 0x3e00) + (random.word() & (half ? 0x9bff : 0x81ff)))};
    logits[3] = {0};
    logits[4] = {half ? std::uint16_t(0xfc00) : std::uint16_t(0xff80)};
    std::vector<double> wide;
    for (const S x : logits) wide.push_back(double(specagg::detail::number(x)));
    processor.apply(std::span<double>(wide));
    processor.apply(std::span<S>(logits));
    for (std::size_t v = 0; v < vocabulary; ++v)
      if (logits[v].bits != specagg::detail::stored<S>(wide[v]).bits)
        FAIL("token " << v << ": " << wide[v]);
  }
  // A little above the middle between 1 and the next number. As a float it would be the middle, and
  // become 1.
  counters little(1, 1);
  penalties bonus = little.with({.presence = -(half ? 0x1p-11 : 0x1p-8) - 0x1p-40});
  (void)bonus.push(0);
  std::vector<S> one{{half ? std::uint16_t(0x3c00) : std::uint16_t(0x3f80)}};
  bonus.apply(std::span<S>(one));
  CHECK(one[0].bits == (half ? 0x3c01 : 0x3f81));
}

TEST_CASE("a repetition penalty divides what is positive and multiplies what is not") {
  counters memory(4, 8);
  penalties processor = memory.with({.repetition = 2});
  for (const token_id t : {0, 1, 2, 1}) (void)processor.push(t);
  std::vector<float> logits = {3, -3, 0, 3};
  processor.apply(std::span<float>(logits));
  CHECK(logits == std::vector<float>{1.5f, -6, 0, 3});
}

TEST_CASE("presence counts once, frequency every time, and either may be a reward") {
  counters memory(4, 8);
  for (const double sign : {1., -1.}) {
    penalties processor = memory.with({.presence = sign * 0.5, .frequency = sign * 0.25});
    for (const token_id t : {0, 1, 1, 1}) (void)processor.push(t);
    std::vector<double> logits = {1, 1, 1, 1};
    processor.apply(std::span<double>(logits));
    CHECK(logits == std::vector<double>{1 - sign * 0.75, 1 - sign * 1.25, 1, 1});
  }
}

TEST_CASE(
    "a token beyond the memory of penalties is a status, and the rows are invalid until it is "
    "taken back") {
  std::vector<std::uint32_t> counts(4);
  std::vector<token_id> distinct(4), text(2);
  penalties processor({.presence = 1}, counts, distinct, text);
  std::vector<float> logits(4);
  const auto apply = [&] {
    std::fill(logits.begin(), logits.end(), 0.f);
    processor.apply(std::span(logits));
    return normalise(processed_row<float>(logits)).why();
  };
  CHECK(processor.push(0) == status::ok);
  CHECK(processor.push(7) == status::ok);  // outside the vocabulary: not counted
  CHECK(apply() == status::ok);
  CHECK(processor.push(1) == status::context_full);
  CHECK(apply() == status::invalid_row);
  processor.pop();
  CHECK(apply() == status::ok);
  CHECK(logits == std::vector<float>{-1, 0, 0, 0});
}
TEST_CASE("temperatures at which a difference of logits would be beyond the numbers are refused") {
  const std::vector<float> far{3e38f, -3e38f};
  CHECK(normalise(processed_row<float>(far, {.temperature = 1e38})).why() ==
        status::invalid_parameter);
  CHECK(specagg::normalise(specagg::softmax_row<float>(far, 1e38)).why() ==
        status::invalid_parameter);
  const double highest = 0.999 * double(std::numeric_limits<float>::max()) / 1024;
  const std::vector<float> near{6 * float(highest), 0};
  for (const auto& l : {far, near}) {
    const double due = 1 / (1 + std::exp((double(l[1]) - double(l[0])) / highest));
    const auto row = normalise(processed_row<float>(l, {.temperature = highest}));
    REQUIRE(row.why() == status::ok);
    CHECK(std::abs(double(row[0]) - due) < 1e-6);
    CHECK(std::abs(double(row[1]) - (1 - due)) < 1e-6);
  }
}
TEST_CASE("penalties of nothing leave the bits alone") {
  counters memory(3, 8);
  penalties processor = memory.with({});
  (void)processor.push(1);
  std::vector<float> logits = {-0.f, -0.f, 1e-45f};
  const auto before = logits;
  processor.apply(std::span<float>(logits));
  for (std::size_t v = 0; v < 3; ++v) CHECK(same(logits[v], before[v]));
  CHECK(penalty_options{}.none());
  CHECK_FALSE(penalty_options{.presence = 1}.none());
}

TEST_CASE(
    "memory is never overrun: a text that outgrows it has no valid row until it comes back. No "
    "memory is none") {
  counters memory(5, 3);
  penalties processor = memory.with(all_three);
  std::vector<token_id> text;
  const std::vector<float> logits = {1, -1, 2, -2, 3};
  const auto check = [&] {
    auto got = logits;
    processor.apply(std::span<float>(got));
    if (text.size() <= 3) CHECK(got == penalised(logits, text, all_three));
    else CHECK(normalise(processed_row<float>(got)).why() == status::invalid_row);
  };
  for (const token_id t : {4, 0, 4, 1, 2, 0}) {
    text.push_back(t);
    (void)processor.push(t);
    check();
  }
  while (!text.empty()) {
    text.pop_back();
    processor.pop();
    check();
  }
  processor.pop();  // nothing left to undo
  text.push_back(1);
  (void)processor.push(1);
  check();

  std::vector<std::uint32_t> counts(5);
  std::vector<token_id> few(2), room(8);
  penalties narrow(all_three, counts, few, room);
  for (const token_id t : {0, 1, 2, 3, 4}) (void)narrow.push(t);
  std::vector<float> shorter = {1};
  narrow.apply(std::span<float>(shorter));
  CHECK(shorter == penalised(std::vector<float>{1}, {0}, all_three));

  penalties none;
  for (int i = 0; i < 3; ++i) (void)none.push(i);
  for (int i = 0; i < 5; ++i) none.pop();
  auto got = logits;
  none.apply(std::span<float>(got));
  CHECK(got == logits);
}

TEMPLATE_TEST_CASE("penalties for a vocabulary and a history are those of separate memory", "",
                   float, double, specagg::bf16) {
  using T = TestType;
  numbers random(9);
  constexpr std::size_t vocabulary = 30, length = 12, drafts = 3;
  const std::vector<token_id> history{3, 3, 7, -1, 40, 0};
  counters separate(vocabulary, length);
  std::vector<token_id> memory(penalties::memory(vocabulary, length), 99);
  penalties due = separate.with(all_three), processor(all_three, vocabulary, history, memory);
  REQUIRE(due.push(history) == status::ok);
  const auto row = [&] {
    std::vector<T> l(vocabulary);
    for (T& x : l) x = specagg::detail::stored<T>(3 * random.bell());
    return l;
  };
  const auto same_row = [&] {
    std::vector<T> a = row(), b = a;
    due.apply(std::span(a));
    processor.apply(std::span(b));
    return std::memcmp(a.data(), b.data(), vocabulary * sizeof(T)) == 0;
  };
  CHECK(same_row());
  // the rows of a round in one call, after which the text is as before
  const std::array<token_id, drafts> drafted{7, 12, 3};
  std::vector<T> rows, one_by_one;
  for (std::size_t j = 0; j <= drafts; ++j)
    for (const T x : row()) rows.push_back(x);
  one_by_one = rows;
  processor.apply(std::span(rows), drafted);
  for (std::size_t j = 0; j <= drafts; ++j) {
    due.apply(std::span(one_by_one).subspan(j * vocabulary, vocabulary));
    if (j < drafts) REQUIRE(due.push(drafted[j]) == status::ok);
  }
  due.pop(drafts);
  CHECK(std::memcmp(rows.data(), one_by_one.data(), rows.size() * sizeof(T)) == 0);
  CHECK(same_row());
  CHECK(processor.push(drafted) == due.push(drafted));
  CHECK(same_row());
}

TEST_CASE("penalties with too little memory: the rows are invalid, and nothing else is written") {
  const std::vector<token_id> history{1, 2, 3, 1};
  for (std::size_t size = 0; size <= penalties::memory(5, history.size()); ++size) {
    std::vector<token_id> memory(size);  // what is after it belongs to others: AddressSanitizer
    penalties processor({.presence = 1}, 5, history, memory);
    std::vector<float> l(5, 2.0f);
    processor.apply(std::span(l));
    CHECK(std::isnan(l[0]) == (size < penalties::memory(5, history.size())));
    std::vector<float> rows(10, 2.0f);
    const token_id more = 0;
    processor.apply(std::span(rows), std::span(&more, 1));
    CHECK(std::isnan(rows[5]));  // no room for the drafted token
    CHECK(std::isnan(rows[0]) == (size < penalties::memory(5, history.size())));
  }
}

TEST_CASE("penalties and no_processor are Processors") {
  static_assert(specagg::Processor<penalties> && specagg::Processor<specagg::no_processor>);
  static_assert(!specagg::Processor<int>);
  specagg::no_processor nothing;
  (void)nothing.push(1);
  nothing.pop();
  std::vector<float> logits = {1, 2};
  nothing.apply(std::span<float>(logits));
  CHECK(logits == std::vector<float>{1, 2});
}

#if defined(__SSE2__)
TEST_CASE(
    "filters of rows with thousands of zeros end, and keep the same, where subnormals are 0") {
  std::vector<float> zeros(10000), some(50000), few(5000);
  numbers random(12);
  for (float& l : some) l = float(std::round(2 * random.bell()));
  std::vector<sampling> filters = {
      {.top_p = 0.9}, {.top_k = 2000},   {.top_k = 20000}, {.top_k = 30000, .top_p = 0.9},
      {.min_p = 1},   {.top_p = 1e-310},
  };
  for (std::uint32_t k = 1500; k < 5000; k += 100) filters.push_back({.top_k = k});
  const auto facts = [&](const std::vector<float>& l, const sampling& s) {
    const auto row = specagg::normalise(processed_row<float>(l, s));
    return std::tuple(row.why(), row.restriction.logit, row.restriction.last, row.largest());
  };
  std::vector<std::vector<float>> rows{zeros, some};
  for (int i = 0; i < 20; ++i) {
    for (float& l : few) l = float(std::round(2.5 * random.bell()));
    rows.push_back(few);
  }
  for (const auto& l : rows)
    for (const sampling& s : filters) {
      const auto due = facts(l, s);
      const unsigned mode = _mm_getcsr();
      _mm_setcsr(mode | 0x8040);
      const auto got = facts(l, s);
      _mm_setcsr(mode);
      CAPTURE(s.top_k, s.top_p, s.min_p, l.size());
      CHECK((got == due || s.top_p < 1e-300));  // such a top_p is 0 there, and no parameter
      CHECK(std::get<0>(due) == status::ok);
    }
}
#endif
