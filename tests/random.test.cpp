// SPDX-License-Identifier: Apache-2.0
#include <specagg/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <specagg/rows/distribution.hpp>
#include <vector>

#include "support/catch.hpp"

using specagg::moment;
using specagg::philox;
using specagg::philox_block;
using specagg::random_streams;
using specagg::stream;
using specagg::token_id;

namespace {

constexpr stream every_stream[] = {stream::draft, stream::coin, stream::residual,
                                   stream::bonus, stream::side, stream::shared};
constexpr std::uint64_t big_seed = 0xfedcba9876543210u, big_request = 0x0123456789abcdefu;

// How far a mean of n independent numbers may be from its expectation: a fixed seed fails with
// probability 1e-6.
double allowed(double variance, double n) { return 4.9 * std::sqrt(variance / n); }

}  // namespace

TEST_CASE("philox gives the published answers of Philox4x32-10") {
  constexpr std::uint32_t ones = 0xffffffff;
  static_assert(philox({0, 0, 0, 0}, 0) ==
                philox_block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  static_assert(philox({ones, ones, ones, ones}, 0xffffffffffffffff) ==
                philox_block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        philox_block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the layout of uniforms is frozen: seeds give the same coins and draws for ever") {
  struct known {
    std::uint64_t seed, request;
    std::uint32_t site;
    moment at;
    std::uint64_t bits;  // of uniform * 2^53
  };
  constexpr known answers[] = {
      // made by another implementation of the documented layout
      {0, 0, 0, {stream::draft, 0, 0}, 0x7f3b3a0112b0e},
      {1, 0, 0, {stream::draft, 0, 0}, 0x2d45083fc563f},
      {0, 1, 0, {stream::draft, 0, 0}, 0x1494813dbf6d88},
      {0, std::uint64_t(1) << 32, 0, {stream::draft, 0, 0}, 0x11332b7601109f},
      {0, 0, 1, {stream::draft, 0, 0}, 0x1491786b7b67ba},
      {0, 0, 0, {stream::coin, 0, 0}, 0x1c57cb1caec400},
      {0, 0, 0, {stream::residual, 0, 0}, 0x51b6659ef34ac},
      {0, 0, 0, {stream::bonus, 0, 0}, 0x13dc5d53a3fb8a},
      {0, 0, 0, {stream::side, 0, 0}, 0x6adfdeb4d861e},
      {0, 0, 0, {stream::draft, 1, 0}, 0xca1f098b24edf},
      {0, 0, 0, {stream::draft, 0, 1}, 0x184dd51b720bd8},
      {big_seed,
       big_request,
       0xdeadbeef,
       {stream::residual, 0xffffffff, 0x80000001},
       0x1bd2c7b149d5b5},
      {std::uint64_t(1) << 32, 0, 0, {stream::coin, 7, 5}, 0x11a2e9c3bb8d27},
  };
  for (const known& k : answers)
    CHECK(random_streams(k.seed, k.request, k.site).uniform(k.at) == double(k.bits) * 0x1p-53);
  static_assert(random_streams(0).uniform({stream::draft, 0, 0}) ==
                double(0x7f3b3a0112b0e) * 0x1p-53);
}

TEST_CASE("the layout of noise is frozen: both ends of a link make the same noise for a token") {
  struct known {
    std::uint64_t seed, request;
    std::uint32_t site, position;
    token_id token;
    double noise;
  };
  constexpr known answers[] = {
      // made in 200 bits
      {0, 0, 0, 0, 0, 0x1.3272640fba1b6p-2},
      {0, 0, 0, 0, 1, 0x1.8bcacfc718742p-1},
      {0, 0, 0, 0, 2, 0x1.3fb3852ca2c9ap-2},
      {0, 0, 0, 0, 3, 0x1.158a2e89f2ccap-2},
      {0, 0, 0, 0, 4, 0x1.7d0f65b2d9910p+0},
      {0, 0, 0, 1, 0, 0x1.9cc36dbe4b80ep-7},
      {1, 0, 0, 0, 0, 0x1.1880b042bf57cp-2},
      {0, 0, 1, 0, 0, 0x1.b716f5896aafbp-1},
      {big_seed, big_request, 0xdeadbeef, 0xffffffff, 151935, 0x1.26c4e98d85757p+0},
      // of two words
      {0, 0, 0, 0, 194, 0x1.77d2fae5ef5d5p-9},
      {0, 0, 0, 0, 249, 0x1.d5e1d0c264b8fp-15},
      {0, 0, 0, 0, 283, 0x1.17954f066f5b0p-9},
      {1, 0, 0, 2686, 40613, 0x1.de6b37f73f0a5p-32},
      {1, 0, 0, 12458, 42015, 0x1.9c49a8ce52ffap-34},
      {1, 0, 0, 30589, 102386, 0x1.905ebcf813914p-36},
      {big_seed, big_request, 0xdeadbeef, 0xffffffff, 149546, 0x1.aabe9636f2bdcp-15},
      {big_seed, big_request, 0xdeadbeef, 0xffffffff, 150254, 0x1.766e425bf2087p-9},
  };
  for (const known& k : answers) {
    const double noise = random_streams(k.seed, k.request, k.site).noise(k.position, k.token);
    CHECK(std::fabs(noise / k.noise - 1) <= specagg::log_error<double> + 2.3e-16);
  }
}

TEST_CASE(
    "noise grows as its words fall, from 2^-65 to 22.9, and is at least what its first word says") {
  constexpr std::uint32_t rarest = random_streams::rarest, ones = 0xffffffff;
  struct known {
    std::uint32_t word, second;
    double noise;
  };
  constexpr known falling[] = {{0, 0, 0x1.6dfb516f20bbfp+4},
                               {1, 0, 0x1.5c6766f473b8ep+4},
                               {rarest - 1, 0, 0x1.008056160933ep-8},
                               {rarest, 0, 0x1.0080559588b35p-8},
                               {rarest, ones, 0x1.0080549487b25p-8},
                               {rarest + 1, ones, 0x1.0080539386b16p-8},
                               {ones, 0, 0x1p-32},
                               {ones, ones, 0x1p-65}};
  double before = 23;
  for (const known& k : falling) {
    const double noise = random_streams::noise_of(k.word, k.second);
    CHECK(std::fabs(noise / k.noise - 1) <= specagg::log_error<double> + 2.3e-16);
    CHECK(noise < before);
    CHECK(noise >= random_streams::least_noise(k.word) * (1 - 1e-15));
    before = noise;
  }
  // not used
  CHECK(random_streams::noise_of(rarest - 1, ones) == random_streams::noise_of(rarest - 1, 0));
  for (std::uint32_t word = ones; word >= rarest; word -= 9973)
    for (const std::uint32_t second : {0u, 1u << 31, ones}) {
      const double noise = random_streams::noise_of(word, second);
      if (noise < random_streams::least_noise(word) * (1 - 1e-15) ||
          noise > random_streams::noise_of(word - 9973, ones))
        FAIL("word " << word);
    }
}

TEST_CASE("64 words of noise at once are those of the tokens alone") {
  const random_streams streams(42, 7, 1);
  bool equal = true;
  for (const specagg::token_id first : {0, 64, 4, 151932})
    for (const std::uint32_t position : {0u, 5u, 4000000000u}) {
      const auto words = streams.noise_words(position, first);
      for (std::size_t i = 0; i < 64; ++i)
        equal = equal && words[i] == streams.four_words(position, first + token_id(i))[i % 4] &&
                streams.noise(position, first + token_id(i), words[i]) ==
                    streams.noise(position, first + token_id(i));
    }
  CHECK(equal);
}

// ---- the law of the race argmin E / p -----------------------------------------------------------

namespace {

// A row as probabilities and how many tokens have each.
struct kind {
  double p;
  double count;
};
// The total variation between p and the law of argmin E / p is at most this, E from words of `bits`
// bits, and from a second one where 1 - u < a = 2^-cut. Let E come from real numbers, then, one
// token after the other, from words. The winner changes with token i only if the best of the
// others, times p_i, lies between the two E of i: in half a cell, of probability h = 2^-(bits + 1)
// from a on, h 2^-bits below. It is from a on with probability prod_{j != i} P(E_j >= a p_j / p_i),
// each at most e^(-a p_j / p_i) + h.
double most_variation(const std::vector<kind>& row, int bits, int cut) {
  const double h = std::ldexp(1, -bits - 1), a = std::ldexp(1, -cut);
  double sum = 0;
  for (const kind& i : row) {
    double above = 0;
    for (const kind& j : row)
      above += (j.count - (&i == &j)) * std::log(std::min(1.0, std::exp(-a * j.p / i.p) + h));
    sum += i.count * (h * std::exp(above) + std::ldexp(h, -bits));
  }
  return sum;
}

// What noise of such words can be, with its probability; the smallest first.
struct atom {
  double noise, probability;
};
std::vector<atom> atoms(int bits, int cut) {
  const int n = 1 << bits;
  std::vector<atom> all;
  for (int left = 0; left < n; ++left)
    if (left < n >> cut)
      for (int second = 0; second < n; ++second)
        all.push_back({-std::log1p(-(left + (second + 0.5) / n) / n), std::ldexp(1, -2 * bits)});
    else all.push_back({-std::log((n - left - 0.5) / n), std::ldexp(1, -bits)});
  return all;
}
// The law of argmin E / p with such noise, ties to the lower id, by summing over what the winner's
// noise can be.
std::vector<double> law_of_race(const std::vector<double>& p, const std::vector<atom>& noise) {
  // from[k]: P(noise is one of the atoms from k on)
  std::vector<double> from(noise.size() + 1), law(p.size());
  for (std::size_t k = noise.size(); k-- > 0;) from[k] = from[k + 1] + noise[k].probability;
  for (std::size_t i = 0; i < p.size(); ++i)
    for (const atom& mine : noise) {
      double loses = mine.probability;
      for (std::size_t j = 0; j < p.size() && loses > 0; ++j) {
        if (j == i) continue;
        const double x = mine.noise * (p[j] / p[i]);
        const auto first = j < i ? std::upper_bound(
                                       noise.begin(), noise.end(), x,
                                       [](double at, const atom& o) { return at < o.noise; })
                                 : std::lower_bound(
                                       noise.begin(), noise.end(), x,
                                       [](const atom& o, double at) { return o.noise < at; });
        loses *= from[std::size_t(first - noise.begin())];
      }
      law[i] += loses;
    }
  return law;
}

// P(noise >= x), by counting words.
double at_least(double x) {
  std::uint64_t low = 0, high = std::uint64_t(1) << 32;  // the words below are at least x
  const auto more = [](std::uint64_t word) {
    return random_streams::noise_of(std::uint32_t(word), 0);
  };
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (more(middle) >= x) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || low <= random_streams::rarest) return double(low) * 0x1p-32;
  const auto word = std::uint32_t(low - 1);  // some of its second words are
  std::uint64_t a = 0, b = std::uint64_t(1) << 32;
  while (a < b) {
    const std::uint64_t middle = (a + b) / 2;
    if (random_streams::noise_of(word, std::uint32_t(middle)) >= x) a = middle + 1;
    else b = middle;
  }
  return 1 - (double(~word) + 1 - double(a) * 0x1p-32) * 0x1p-32;
}

}  // namespace

TEST_CASE("races with noise of few bits have their laws, by enumeration, to the stated variation") {
  double tightest = 0;
  for (const auto& [bits, cut] :
       std::vector<std::pair<int, int>>{{4, 5}, {6, 7}, {6, 2}, {7, 3}, {8, 3}, {8, 9}}) {
    const auto noise = atoms(bits, cut);
    std::vector<std::vector<double>> rows;
    for (const std::size_t size : {1u, 2u, 3u, 7u, 16u}) {
      rows.emplace_back(size, 1 / double(size));
      for (std::uint32_t i = 0; i < 4; ++i) {  // from nearly even to a token in a million
        std::vector<double> p(size);
        double sum = 0;
        for (std::size_t v = 0; v < size; ++v)
          sum += p[v] =
              std::exp(5 * i * random_streams(i).uniform({stream::side, std::uint32_t(v), 0}));
        for (double& x : p) x /= sum;
        rows.push_back(p);
      }
    }
    for (const auto& p : rows) {
      const auto law = law_of_race(p, noise);
      double variation = 0, total = 0;
      std::vector<kind> row;
      for (std::size_t v = 0; v < p.size(); ++v) {
        variation += std::fabs(law[v] - p[v]) / 2;
        total += law[v];
        row.push_back({p[v], 1});
      }
      const double most = most_variation(row, bits, cut);
      tightest = std::max(tightest, variation / most);
      CHECK(std::fabs(total - 1) < 1e-12);
      CHECK(variation <= most + 1e-15);
    }
  }
  CHECK(tightest > 0.1);  // no idle bound
}

TEST_CASE(
    "races with the Gumbel-max coupling have their laws to a total variation of 1.2e-8, for any "
    "row") {
  constexpr int cut = 8;
  static_assert(random_streams::rarest == ~std::uint32_t(0) - (~std::uint32_t(0) >> cut));
  double largest = 0, one_word = 0;
  const auto look = [&](std::vector<kind> row) {
    double sum = 0;
    for (const kind& k : row) sum += k.p * k.count;
    for (kind& k : row) k.p /= sum;
    largest = std::max(largest, most_variation(row, 32, cut));
    one_word = std::max(one_word, most_variation(row, 32, 33));
  };
  for (double size = 1; size <= 262144; size *= 1.25) {
    look({{1, std::round(size)}});
    for (const double rare : {1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-30}) {
      look({{1, 1}, {rare, std::round(size)}});
      look({{1, std::round(size)}, {rare, 262144 - std::round(size)}});
    }
  }
  for (const double slope : {0.5, 1.0, 1.5, 3.0}) {
    std::vector<kind> zipf;
    for (double first = 1; first <= 262144; first *= 2)
      zipf.push_back({std::pow(first, -slope), first});
    look(zipf);
  }
  for (const double fall : {0.5, 0.9, 0.99}) {
    std::vector<kind> geometric;
    for (int i = 0; i < 500; ++i) geometric.push_back({std::pow(fall, i), 1});
    look(geometric);
  }
  std::printf("coupled noise: total variation at most %.3g; of one word a token it could be %.3g\n",
              largest, one_word);
  CHECK(largest < 1.2e-8);
  CHECK(one_word > 1e-5);
}

TEST_CASE(
    "a token of probability 1e-6, 3e-11, 1e-12 or 1e-15 wins its race with that probability") {
  for (const double p : {1e-6, 3e-11, 1e-12, 1e-15}) {
    // It wins with the noise E if the other's is at least E (1 - p) / p, at most 22.9: a sum over
    // the cells of E, the smallest noise first, some of them together; between two sums, as the
    // other's probability falls with E.
    const double others = (1 - p) / p;
    const auto cells = std::uint64_t(22.9 / others * 0x1p64) + 2, together = cells / 100000 + 1;
    const auto noise = [](std::uint64_t cell) {
      return random_streams::noise_of(std::uint32_t(~cell >> 32), std::uint32_t(~cell));
    };
    double least = 0, most = 0, here = at_least(noise(0) * others);
    for (std::uint64_t cell = 0; cell < cells; cell += together) {
      const double next = at_least(noise(cell + together) * others),
                   probability = double(together) * 0x1p-64;
      most += probability * here;
      least += probability * next;
      here = next;
    }
    CAPTURE(p, least / p, most / p);
    CHECK(least > p * (1 - 3e-4));
    CHECK(most < p * (1 + 3e-4));
  }
}

TEST_CASE("no two of streams, positions, starts, requests, sites and seeds share a number") {
  std::set<double> seen;
  std::size_t made = 0;
  const std::vector<std::uint64_t> wide = {
      0, 1, 2, 3, 4, 5, 1u << 31, 0xffffffffu, std::uint64_t(1) << 32, std::uint64_t(5) << 32};
  const std::vector<std::uint32_t> narrow = {0, 1, 2, 3, 4, 5, 1u << 30, 0xffffffffu};
  for (const std::uint64_t seed : {std::uint64_t(0), std::uint64_t(1), big_seed})
    for (const std::uint64_t request : wide)
      for (const std::uint32_t site : {0u, 1u, 2u}) {
        const random_streams random(seed, request, site);
        for (const stream use : every_stream)
          for (const std::uint32_t position : narrow)
            for (const std::uint32_t start : narrow) {
              seen.insert(random.uniform({use, position, start}));
              ++made;
            }
      }
  CHECK(made == 3 * 10 * 3 * 6 * 8 * 8);
  CHECK(seen.size() == made);  // by chance two would be equal with probability 7e-8
}

TEST_CASE("tokens and positions share no noise, and noise shares nothing with the other streams") {
  const random_streams random(3);
  std::set<double> seen;
  std::size_t equal = 0, made = 0;
  for (std::uint32_t position = 0; position < 20; ++position)
    for (token_id v = 0; v < 500; ++v, ++made)
      equal += !seen.insert(random.noise(position, v)).second;
  CHECK(made == 10000);
  // 32 bits: one pair is equal by chance with probability 1.2e-2, two with 7e-5
  CHECK(equal <= 1);
  // the words after the first uniforms of every other stream, and of the shared one's
  std::set<std::uint32_t> words;
  for (const stream use : every_stream)
    if (use != stream::shared)
      for (std::uint32_t position = 0; position < 20; ++position)
        words.insert(std::uint32_t(random.uniform({use, position, 0}) * 0x1p27));
  std::size_t hits = 0;
  for (std::uint32_t position = 0; position < 20; ++position)
    for (token_id v = 0; v < 4; ++v)
      hits += words.count(std::uint32_t(std::exp(-random.noise(position, v)) * 0x1p27));
  CHECK(hits == 0);
}

TEST_CASE("uniforms are at least 0, below 1, and use all of 53 bits") {
  const random_streams random(4);
  std::uint64_t any = 0, all = ~std::uint64_t(0);
  bool inside = true;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const double u = random.uniform({stream::coin, i, i / 3});
    inside = inside && u >= 0 && u < 1 && u * 0x1p53 == std::floor(u * 0x1p53);
    any |= std::uint64_t(u * 0x1p53);
    all &= std::uint64_t(u * 0x1p53);
  }
  CHECK(inside);
  CHECK(any == (std::uint64_t(1) << 53) - 1);
  CHECK(all == 0);
}

TEST_CASE("uniforms have the moments of a uniform, and streams are uncorrelated (1e-6 a check)") {
  constexpr std::uint32_t n = 200000;
  const random_streams random(5), other_request(5, 1), other_site(5, 0, 1);
  double mean = 0, square = 0, with[8] = {};
  for (std::uint32_t i = 0; i < n; ++i) {
    const double u = random.uniform({stream::draft, i, 0}) - 0.5;
    mean += u / n;
    square += u * u / n;
    const double others[] = {
        random.uniform({stream::coin, i, 0}),         random.uniform({stream::residual, i, 0}),
        random.uniform({stream::bonus, i, 0}),        random.uniform({stream::side, i, 0}),
        random.uniform({stream::draft, i + 1, 0}),    random.uniform({stream::draft, i, 1}),
        other_request.uniform({stream::draft, i, 0}), other_site.uniform({stream::draft, i, 0})};
    for (int k = 0; k < 8; ++k) with[k] += u * (others[k] - 0.5) / n;
  }
  CHECK(std::fabs(mean) < allowed(1. / 12, n));
  CHECK(std::fabs(square - 1. / 12) < allowed(1. / 180, n));
  for (const double covariance : with) CHECK(std::fabs(covariance) < allowed(1. / 144, n));
}

TEST_CASE(
    "noise is positive, has the moments of Exp(1), and is least for token v with probability p(v) "
    "(1e-6 a check)") {
  constexpr int positions = 500, tokens = 1000, n = positions * tokens;
  const random_streams random(6);
  double mean = 0, square = 0, least = 1, largest = 0, wins = 0;
  for (std::uint32_t position = 0; position < positions; ++position)
    for (token_id v = 0; v < tokens; ++v) {
      const double e = random.noise(position, v);
      least = std::min(least, e);
      largest = std::max(largest, e);
      mean += e / n;
      square += (e - 1) * (e - 1) / n;
      if (v % 2 == 1) wins += random.noise(position, v - 1) / 0.3 > e / 0.7;
    }
  CHECK(least > 0);
  CHECK(largest < 23);
  CHECK(std::fabs(mean - 1) < allowed(1, n));
  CHECK(std::fabs(square - 1) < allowed(8, n));
  CHECK(std::fabs(wins / (n / 2) - 0.7) < allowed(0.21, n / 2));
}

TEST_CASE(
    "a coin is strict and division-free: weight 0 never passes, weight at least t always does") {
  const random_streams random(7);
  int passed = 0;
  bool strict = true;
  constexpr int n = 200000;
  for (std::uint32_t i = 0; i < n; ++i) {
    const moment m{stream::coin, i, 0};
    const double u = random.uniform(m);
    strict = strict && !random.coin(m, 0, 1) && !random.coin(m, 0, 0) && random.coin(m, 1e-30, 0) &&
             random.coin(m, 0.7, 0.7) && random.coin(m, 1e-30, 1e-30) && !random.coin(m, u, 1) &&
             // not u < w / t
             random.coin(m, std::nextafter(u, 1), 1) && !random.coin(m, u * 0.3, 0.3);
    passed += random.coin(m, 0.2, 0.5);
  }
  CHECK(strict);
  CHECK(std::fabs(double(passed) / n - 0.4) < allowed(0.24, n));
}

namespace {
struct coin_only {
  bool coin(moment, double, double);
};
struct draws_nothing : coin_only {
  template <class Weights>
  void draw(moment, const Weights&);
};
struct whole : coin_only {
  template <class Weights>
  specagg::token_id draw(moment, const Weights&);
};
}  // namespace

TEST_CASE("a chooser has a coin and draws tokens") {
  STATIC_REQUIRE(specagg::Chooser<whole>);
  STATIC_REQUIRE_FALSE(specagg::Chooser<coin_only>);
  STATIC_REQUIRE_FALSE(specagg::Chooser<draws_nothing>);
  STATIC_REQUIRE(specagg::Chooser<const random_streams>);
}

TEST_CASE("a draw is the inverse transform of its moment's uniform") {
  const std::vector<float> probabilities = {0, 0.25, 0.125, 0, 0.625};
  const auto row = specagg::normalise(specagg::dense_row<float>(probabilities));
  double blocks[1];
  const auto weights = specagg::weigh(row, [](auto at) { return at; }, blocks);
  const random_streams random(8);
  bool same = true;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const moment m{stream::bonus, i, 3};
    same =
        same && random.draw(m, weights) == specagg::inverse_transform(weights, random.uniform(m));
  }
  CHECK(same);
}

TEST_CASE("the random numbers of a request throw nothing") {
  static_assert(noexcept(philox(philox_block{}, 1)));
  static_assert(noexcept(random_streams(1, 2, 3)));
  const random_streams r(1);
  const moment m{stream::coin, 1, 1};
  CHECK((noexcept(r.uniform(m)) && noexcept(r.coin(m, 0.5, 1))));
  CHECK((noexcept(r.noise(1, 2)) && noexcept(r.noise(1, 2, 3u)) && noexcept(r.four_words(1, 2))));
  CHECK(
      (noexcept(r.noise_words(1, 4)) && noexcept(r.noise_of(1, 2)) && noexcept(r.least_noise(1))));
}
