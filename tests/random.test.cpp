// SPDX-License-Identifier: Apache-2.0
#include <specagg/random.hpp>

#include <cmath>
#include <set>
#include <specagg/distribution.hpp>
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

// How far a mean of n independent numbers may be from its expectation: a fixed seed fails with probability 1e-6.
double allowed(double variance, double n) { return 4.9 * std::sqrt(variance / n); }

}  // namespace

TEST_CASE("philox gives the published answers of Philox4x32-10") {
  constexpr std::uint32_t ones = 0xffffffff;
  static_assert(philox({0, 0, 0, 0}, 0) == philox_block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
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
      {big_seed, big_request, 0xdeadbeef, {stream::residual, 0xffffffff, 0x80000001}, 0x1bd2c7b149d5b5},
      {std::uint64_t(1) << 32, 0, 0, {stream::coin, 7, 5}, 0x11a2e9c3bb8d27},
  };
  for (const known& k : answers)
    CHECK(random_streams(k.seed, k.request, k.site).uniform(k.at) == double(k.bits) * 0x1p-53);
  static_assert(random_streams(0).uniform({stream::draft, 0, 0}) == double(0x7f3b3a0112b0e) * 0x1p-53);
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
  };
  for (const known& k : answers) {
    const double noise = random_streams(k.seed, k.request, k.site).noise(k.position, k.token);
    CHECK(std::fabs(noise / k.noise - 1) <= specagg::log_error<double>);
  }
}

TEST_CASE("64 words of noise at once are those of the tokens alone") {
  const random_streams streams(42, 7, 1);
  bool equal = true;
  for (const specagg::token_id first : {0, 64, 4, 151932})
    for (const std::uint32_t position : {0u, 5u, 4000000000u}) {
      const auto words = streams.noise_words(position, first);
      for (std::size_t i = 0; i < 64; ++i)
        equal = equal && random_streams::noise_of(words[i]) == streams.noise(position, first + specagg::token_id(i));
    }
  CHECK(equal);
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
            for (const std::uint32_t start : narrow) seen.insert(random.uniform({use, position, start})), ++made;
      }
  CHECK(made == 3 * 10 * 3 * 6 * 8 * 8);
  CHECK(seen.size() == made);  // by chance two would be equal with probability 7e-8
}

TEST_CASE("tokens and positions share no noise, and noise shares nothing with the other streams") {
  const random_streams random(3);
  std::set<double> seen;
  std::size_t equal = 0, made = 0;
  for (std::uint32_t position = 0; position < 20; ++position)
    for (token_id v = 0; v < 500; ++v, ++made) equal += !seen.insert(random.noise(position, v)).second;
  CHECK(made == 10000);
  CHECK(equal <= 1);              // 32 bits: one pair is equal by chance with probability 1.2e-2, two with 7e-5
  std::set<std::uint32_t> words;  // the words behind the first uniforms of every other stream, and of the shared one's
  for (const stream use : every_stream)
    if (use != stream::shared)
      for (std::uint32_t position = 0; position < 20; ++position)
        words.insert(std::uint32_t(random.uniform({use, position, 0}) * 0x1p27));
  std::size_t hits = 0;
  for (std::uint32_t position = 0; position < 20; ++position)
    for (token_id v = 0; v < 4; ++v) hits += words.count(std::uint32_t(std::exp(-random.noise(position, v)) * 0x1p27));
  CHECK(hits == 0);
}

TEST_CASE("uniforms are at least 0, below 1, and use all of 53 bits") {
  const random_streams random(4);
  std::uint64_t any = 0, all = ~std::uint64_t(0);
  bool inside = true;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const double u = random.uniform({stream::coin, i, i / 3});
    inside = inside && u >= 0 && u < 1 && u * 0x1p53 == std::floor(u * 0x1p53);
    any |= std::uint64_t(u * 0x1p53), all &= std::uint64_t(u * 0x1p53);
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
    mean += u / n, square += u * u / n;
    const double others[] = {random.uniform({stream::coin, i, 0}),         random.uniform({stream::residual, i, 0}),
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
    "noise is positive, has the moments of Exp(1), and is least for token v with probability p(v) (1e-6 a check)") {
  constexpr int positions = 500, tokens = 1000, n = positions * tokens;
  const random_streams random(6);
  double mean = 0, square = 0, least = 1, largest = 0, wins = 0;
  for (std::uint32_t position = 0; position < positions; ++position)
    for (token_id v = 0; v < tokens; ++v) {
      const double e = random.noise(position, v);
      least = std::min(least, e), largest = std::max(largest, e);
      mean += e / n, square += (e - 1) * (e - 1) / n;
      if (v % 2 == 1) wins += random.noise(position, v - 1) / 0.3 > e / 0.7;
    }
  CHECK(least > 0);
  CHECK(largest < 23);
  CHECK(std::fabs(mean - 1) < allowed(1, n));
  CHECK(std::fabs(square - 1) < allowed(8, n));
  CHECK(std::fabs(wins / (n / 2) - 0.7) < allowed(0.21, n / 2));
  const double lowest = -specagg::log((0xffffffffu + 0.5) * 0x1p-32), highest = -specagg::log(0.5 * 0x1p-32);
  CHECK(lowest > 1.16e-10);
  CHECK(highest < 22.9);
}

TEST_CASE("a coin is strict and division-free: weight 0 never passes, weight at least t always does") {
  const random_streams random(7);
  int passed = 0;
  bool strict = true;
  constexpr int n = 200000;
  for (std::uint32_t i = 0; i < n; ++i) {
    const moment m{stream::coin, i, 0};
    const double u = random.uniform(m);
    strict = strict && !random.coin(m, 0, 1) && !random.coin(m, 0, 0) && random.coin(m, 1e-30, 0) &&
             random.coin(m, 0.7, 0.7) && random.coin(m, 1e-30, 1e-30) && !random.coin(m, u, 1) &&
             random.coin(m, std::nextafter(u, 1), 1) && !random.coin(m, u * 0.3, 0.3);  // not u < w / t
    passed += random.coin(m, 0.2, 0.5);
  }
  CHECK(strict);
  CHECK(std::fabs(double(passed) / n - 0.4) < allowed(0.24, n));
}

TEST_CASE("a draw is the inverse transform of its moment's uniform") {
  const std::vector<float> probabilities = {0, 0.25, 0.125, 0, 0.625};
  const specagg::dense_row<float> row(probabilities);
  double blocks[1];
  const auto weights = specagg::weigh(
      row, [](auto at) { return at; }, blocks);
  const random_streams random(8);
  bool same = true;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const moment m{stream::bonus, i, 3};
    same = same && random.draw(m, weights) == specagg::inverse_transform(weights, random.uniform(m));
  }
  CHECK(same);
  static_assert(specagg::Chooser<const random_streams>);
}
