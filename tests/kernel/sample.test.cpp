// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/sample.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::inverse_transform;
using specagg::no_token;
using specagg::token_id;
using specagg::weigh;

namespace {

constexpr double last_uniform = 1 - 0x1p-53;  // the largest double below 1

// Weights in memory; the lanes after the last are heavy, and must not be drawn.
template <class T>
struct table {
  using value_type = T;
  std::vector<T> w;
  std::size_t size() const { return w.size(); }
  struct block {
    const T* w;
    template <class V>
    V operator()(std::size_t k, int lanes) const {
      return V::load_partial(w + k, lanes, T(1e6));
    }
  };
  block open(std::size_t begin, std::size_t) const { return {w.data() + begin}; }
};
const auto itself = [](auto at) { return at; };

template <class T>
token_id first_with_weight(const std::vector<T>& w) {
  const auto i = std::ranges::find_if(w, [](T x) { return x > 0; });
  return i == w.end() ? no_token : token_id(i - w.begin());
}
// The token that u draws from w.
template <class T>
token_id draw(const table<T>& w, double u) {
  std::vector<double> blocks(specagg::block_count(w.size()));
  return inverse_transform(weigh(w, itself, blocks), u);
}

template <class T>
token_id last_with_weight(const std::vector<T>& w) {
  for (std::size_t v = w.size(); v-- > 0;)
    if (w[v] > 0) return token_id(v);
  return no_token;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "where sums are exact, u draws exactly the first token whose cumulative weight exceeds u times "
    "the total",
    "", float, double) {
  using T = TestType;
  numbers random(1);
  for (const std::size_t size : {1u, 2u, 16u, 17u, 64u, 1023u, 1024u, 1025u, 2048u, 2500u, 4096u})
    for (const std::size_t heaviest : {1u, 4u, 1000u}) {
      constexpr std::size_t total = 1 << 14;  // a power of 2: k / total * total == k
      table<T> w{std::vector<T>(size)};
      for (std::size_t sum = 0; sum < total;) {
        const std::size_t amount = std::min(total - sum, 1 + random.below(heaviest));
        w.w[random.below(size)] += T(amount);
        sum += amount;
      }
      // a gap over the end of a block
      if (size > 1100) std::fill(w.w.begin() + 900, w.w.begin() + 1100, T(0));
      std::size_t left = 0;
      for (const T x : w.w) left += std::size_t(x);
      w.w[random.below(2) ? size - 1 : 0] += T(total - left);
      std::size_t v = 0, cumulative = std::size_t(w.w[0]);
      bool right = true;
      std::vector<double> blocks(specagg::block_count(size));
      const auto weights = weigh(w, itself, blocks);
      CHECK(weights.total == double(total));
      for (std::size_t k = 0; k < total; ++k) {
        while (cumulative <= k) cumulative += std::size_t(w.w[++v]);
        const double u = double(k) / double(total);
        right = right && inverse_transform(weights, u) == token_id(v) &&
                inverse_transform(weights, u + 0.4 / double(total)) == token_id(v);
      }
      CAPTURE(size, heaviest);
      CHECK(right);
      CHECK(draw(w, last_uniform) == last_with_weight(w.w));
      CHECK(draw(w, 0x1p-1074) == first_with_weight(w.w));
    }
}

TEMPLATE_TEST_CASE("a token that has all the weight is drawn by every u, wherever it stands", "",
                   float, double) {
  using T = TestType;
  for (const std::size_t size : {1u, 5u, 16u, 33u, 1024u, 2100u})
    for (std::size_t v = 0; v < size; ++v)
      for (const T weight : {T(1), std::numeric_limits<T>::min(), T(0.3), T(1e30)}) {
        table<T> w{std::vector<T>(size, v % 2 ? T(0) : T(-0.0))};
        w.w[v] = weight;
        for (const double u : {0., 0x1p-53, 0.5, last_uniform})
          if (draw(w, u) != token_id(v)) {
            CAPTURE(size, v, weight, u);
            FAIL("another token was drawn");
          }
      }
  SUCCEED();
}

TEMPLATE_TEST_CASE(
    "a token of weight 0 is never drawn, at the ends of the unit interval least of all", "", float,
    double) {
  using T = TestType;
  numbers random(2);
  for (int round = 0; round < 300; ++round) {
    table<T> w{std::vector<T>(1 + random.below(round % 3 ? 3000 : 40))};
    const std::size_t sparsity = 1 + random.below(200);
    for (T& x : w.w)
      if (random.below(sparsity) == 0)
        x = std::ldexp(T(1 + random.uniform()), -int(random.below(round % 2 ? 100 : 3)));
    std::vector<double> blocks(specagg::block_count(w.size()));
    const auto weights = weigh(w, itself, blocks);
    if (!(weights.total > 0)) {
      CHECK(inverse_transform(weights, 0.5) == no_token);
      continue;
    }
    // the first token but for weights that are nothing beside the total
    const auto first = std::size_t(inverse_transform(weights, 0));
    REQUIRE(first < w.w.size());
    CHECK(double(w.w[first]) > weights.total * 0x1p-90);
    bool nothing = true;
    for (std::size_t v = 0; v < first; ++v)
      nothing = nothing && double(w.w[v]) <= weights.total * 0x1p-60;
    CHECK(nothing);
    bool some = true;
    for (int i = 0; i < 60; ++i) {
      const double u = i == 0   ? last_uniform
                       : i == 1 ? 1 - 0x1p-52
                       : i == 2 ? 0x1p-53
                                : random.uniform();
      const token_id z = inverse_transform(weights, u);
      some = some && z >= 0 && std::size_t(z) < w.size() && w.w[std::size_t(z)] > 0 &&
             weights[std::size_t(z)] > 0;
    }
    CHECK(some);
  }
}

TEMPLATE_TEST_CASE("a draw agrees with the exact cumulative weights but for the error of a sum", "",
                   float, double) {
  using T = TestType;
  numbers random(3);
  for (const std::size_t size : {50u, 1024u, 3000u, 151936u}) {
    table<T> w{std::vector<T>(size)};
    for (T& x : w.w) x = std::ldexp(T(random.uniform()), -int(random.below(20)));
    std::vector<long double> cumulative(size);
    long double sum = 0;
    for (std::size_t v = 0; v < size; ++v) cumulative[v] = sum += static_cast<long double>(w.w[v]);
    std::vector<double> blocks(specagg::block_count(size));
    const auto weights = weigh(w, itself, blocks);
    const long double slack = sum * static_cast<long double>(2 * specagg::sum_error<T>(size));
    bool right = true;
    for (int i = 0; i < 3000; ++i) {
      double u = random.uniform();
      if (i % 3 == 0) {  // beside the end of a token, or of a block
        const std::size_t v = i % 2 ? random.below(size)
                                    : std::min(size, (1 + random.below(blocks.size())) * 1024) - 1;
        u = std::min(std::nextafter(double(cumulative[v] / sum), random.below(3) ? 2. : 0.),
                     last_uniform);
      }
      const auto z = std::size_t(inverse_transform(weights, u));
      const long double at = static_cast<long double>(u) * sum;
      right = right && z < size && cumulative[z] + slack > at &&
              cumulative[z] - static_cast<long double>(w.w[z]) - slack <= at;
    }
    CAPTURE(size);
    CHECK(right);
  }
}

TEST_CASE(
    "where round-off leaves no token, the last with weight is drawn: of its block, or of the row") {
  table<float> w{std::vector<float>(5000)};
  for (std::size_t v = 0; v < 5000; ++v) w.w[v] = v % 7 == 3 && v / 1024 != 4 ? 1.f : 0.f;
  std::vector<double> blocks(5);
  auto weights = weigh(w, itself, blocks);
  const auto last_of = [](std::size_t end) {
    while (end % 7 != 4) --end;
    return token_id(end - 1);
  };
  weights.total += 1;  // the blocks sum to less than the total
  CHECK(inverse_transform(weights, last_uniform) == last_of(4096));
  weights.total -= 1;
  blocks[1] += 0.5;  // the tokens of a block sum to less than the block
  CHECK(inverse_transform(weights, (blocks[0] + blocks[1] - 0.25) / weights.total) ==
        last_of(2048));
  CHECK(inverse_transform(weights, (blocks[0] + blocks[1] + 0.25) / weights.total) ==
        last_of(2048 + 7));  // the first of block 2
}

TEST_CASE("a place among any number of entries is the one that exact sums give") {
  for (const std::size_t n :
       {1u, 2u, 15u, 16u, 17u, 64u, 126u, 255u, 256u, 257u, 300u, 4095u, 4096u, 4097u, 5000u})
    for (const int kind : {0, 1, 2}) {
      std::vector<double> entries(n);  // whole numbers: sums in any order are exact
      for (std::size_t i = 0; i < n; ++i)
        entries[i] = kind == 0 ? 1. : kind == 1 ? double(i * 7919 % 5) : double(i % 37 == 36);
      double before = 0;
      bool right = true;
      for (std::size_t i = 0; i < n; ++i) {
        for (const double rest : {0., 0.5, entries[i] - 0.25})
          if (rest >= 0 && rest < entries[i]) {
            const auto at = specagg::detail::find_place(entries.data(), n, {0, before + rest, 0});
            right = right && at.index == i && at.rest == rest;
          }
        before += entries[i];
      }
      const auto beyond = specagg::detail::find_place(entries.data(), n, {0, before + 3, 0});
      std::size_t last = n;
      for (std::size_t i = 0; i < n; ++i)
        if (entries[i] > 0) last = i;
      CAPTURE(n, kind);
      CHECK(right);
      CHECK(beyond.index == last);
      CHECK(specagg::detail::find_place(std::vector<double>(n).data(), n, {0, 0, 0}).index == n);
    }
}

TEST_CASE("the last uniform draws the last token of 149 blocks, however their sums were rounded") {
  numbers random(4);
  table<double> w{std::vector<double>(149 * 1024)};
  int overshoots = 0;
  bool last = true;
  for (int round = 0; round < 200; ++round) {
    std::ranges::fill(w.w, 0.);
    for (std::size_t b = 0; b < 149; ++b)
      w.w[b * 1024 + 1] = w.w[b * 1024 + 1020] = random.uniform() / 2;
    // so light that the blocks before may miss it
    w.w[148 * 1024 + 1] = w.w[148 * 1024 + 1020] = 0x1p-50;
    std::vector<double> blocks(149);
    const auto weights = weigh(w, itself, blocks);
    const token_id z = inverse_transform(weights, last_uniform);
    // The last block weighs less than the rounding of the sums: round-off decides whether it is
    // reached, and where in it.
    const bool reached = z == 148 * 1024 + 1 || z == 148 * 1024 + 1020;
    last = last && (reached || z == 147 * 1024 + 1020);
    overshoots += reached;
  }
  CHECK(overshoots > 10);
  CHECK(overshoots < 190);
  CHECK(last);
}

TEMPLATE_TEST_CASE("weights with a NaN, an infinite total or no weight draw no token", "", float,
                   double) {
  using T = TestType;
  for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
    for (const std::size_t v : {0u, 17u, 1023u, 1024u, 2999u}) {
      table<T> w{std::vector<T>(3000, T(0.5))};
      w.w[v] = bad;
      for (const double u : {0., 0.3, last_uniform}) CHECK(draw(w, u) == no_token);
    }
  for (const std::size_t size : {0u, 1u, 15u, 1024u, 3000u})
    for (const double u : {0., 0.3, last_uniform})
      CHECK(draw(table<T>{std::vector<T>(size)}, u) == no_token);
  CHECK(draw(table<T>{std::vector<T>(2000, std::numeric_limits<T>::max())}, 0.5) == no_token);
}

TEST_CASE(
    "weigh keeps the sum of each block, their total, and touches no more of the caller's memory") {
  numbers random(5);
  table<float> w{std::vector<float>(2500)};
  for (float& x : w.w) x = float(random.bell());
  const auto square = [](auto at) { return at * at; };
  std::vector<double> memory(5, -1);
  const auto weights = weigh(w, square, memory);
  CHECK(weights.blocks.size() == 3);
  CHECK(weights.size() == 2500);
  CHECK(weights.total == weights.blocks[0] + weights.blocks[1] + weights.blocks[2]);
  for (std::size_t b = 0; b < 3; ++b)
    CHECK(weights.blocks[b] ==
          specagg::reduce_block_of<specagg::detail::add>(w, b * 1024, b < 2 ? 1024 : 452, square));
  CHECK(memory[3] == -1);
  CHECK(memory[4] == -1);
  for (const std::size_t v : {0u, 100u, 2499u}) CHECK(weights[v] == double(w.w[v] * w.w[v]));
}
