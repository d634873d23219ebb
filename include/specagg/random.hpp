// SPDX-License-Identifier: Apache-2.0
// Randomness as decisions: the Chooser concept, and the production chooser on a counter-based generator.
#pragma once
#include <array>
#include <concepts>
#include <cstdint>

#include <specagg/kernel/math.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// Philox4x32-10 (Salmon et al. 2011): 128 bits of counter and 64 bits of key to 128 random bits.
using philox_block = std::array<std::uint32_t, 4>;
SPECAGG_FUNCTION constexpr philox_block philox(philox_block counter, std::uint64_t key) {
  std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t(0xD2511F53u) * counter[0], b = std::uint64_t(0xCD9E8D57u) * counter[2];
    counter = {std::uint32_t(b >> 32) ^ counter[1] ^ k0, std::uint32_t(b), std::uint32_t(a >> 32) ^ counter[3] ^ k1,
               std::uint32_t(a)};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return counter;
}

// What a number is used for. Streams never share numbers: the residual must not see the noise that drew the draft.
enum class stream : std::uint8_t { draft, coin, residual, bonus, side, shared };

// Where a number is used: the absolute position of the token it decides, and the position where the current draft round
// began. Block verification conditions on noise beyond the accepted prefix, so the next round must not see it again:
// `start` tells the rounds apart. Shared noise has no start (0): that it ignores rounds is its point.
struct moment {
  stream use;
  std::uint32_t position;
  std::uint32_t start;
};

// Decisions an algorithm asks for. coin(m, w, t): true with probability min(1, w / t), false if w is 0.
// draw(m, weights): token v with probability weights[v] / total.
template <class C>
concept Chooser = requires(C& c, moment m, double w) {
  { c.coin(m, w, w) } -> std::convertible_to<bool>;
};

// The production chooser: every number is a function of (seed, request, site, moment, index) alone; not of batch slot,
// thread, call order, instruction set or device. The layout below is normative (tests/random.test.cpp has its known
// answers): key = words 0 and 1 of philox({request low, request high, site, 0x73706563}, seed);
// counter = {index / 4, position, start, stream}; coins and draws use words 0 and 1 as 53 bits; noise for token v uses
// word v mod 4 of index v.
class random_streams {
 public:
  SPECAGG_FUNCTION constexpr explicit random_streams(std::uint64_t seed, std::uint64_t request = 0,
                                                     std::uint32_t site = 0) {
    const auto k = philox({std::uint32_t(request), std::uint32_t(request >> 32), site, 0x73706563u}, seed);
    key_ = std::uint64_t(k[1]) << 32 | k[0];
  }

  // A double in [0, 1) with 53 random bits.
  SPECAGG_FUNCTION constexpr double uniform(moment m) const {
    const auto r = philox({0, m.position, m.start, std::uint32_t(m.use)}, key_);
    return double(std::uint64_t(r[0] >> 5) << 26 | r[1] >> 6) * 0x1p-53;
  }
  // Exp(1) noise of token v at a position, the same for everyone who has the seed: -ln((x + 1/2) / 2^32), x of 32 bits.
  // Never 0: it lies in [1.16e-10, 22.9], and e^-noise in steps of 2^-32.
  SPECAGG_FUNCTION double noise(std::uint32_t position, token_id v) const {
    return noise_of(four_words(position, v)[std::uint32_t(v) % 4]);
  }
  // The words of that for the four tokens v / 4 * 4 + 0 .. 3.
  SPECAGG_FUNCTION philox_block four_words(std::uint32_t position, token_id v) const {
    return philox({std::uint32_t(v) / 4, position, 0, std::uint32_t(stream::shared)}, key_);
  }
  SPECAGG_FUNCTION static double noise_of(std::uint32_t word) { return -log((double(word) + 0.5) * 0x1p-32); }
  // The words of that for the tokens first .. first + 63, first a multiple of 4: 16 counters side by side, which
  // compilers turn into vectors.
  std::array<std::uint32_t, 64> noise_words(std::uint32_t position, token_id first) const {
    constexpr int n = 16;
    std::uint32_t a[n], b[n], c[n], d[n], k0 = std::uint32_t(key_), k1 = std::uint32_t(key_ >> 32);
    for (int i = 0; i < n; ++i)
      a[i] = std::uint32_t(first) / 4 + std::uint32_t(i), b[i] = position, c[i] = 0,
      d[i] = std::uint32_t(stream::shared);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < n; ++i) {
        const std::uint64_t x = std::uint64_t(0xD2511F53u) * a[i], y = std::uint64_t(0xCD9E8D57u) * c[i];
        a[i] = std::uint32_t(y >> 32) ^ b[i] ^ k0, b[i] = std::uint32_t(y);
        c[i] = std::uint32_t(x >> 32) ^ d[i] ^ k1, d[i] = std::uint32_t(x);
      }
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    std::array<std::uint32_t, 64> words;
    for (std::size_t i = 0; i < n; ++i)
      words[4 * i] = a[i], words[4 * i + 1] = b[i], words[4 * i + 2] = c[i], words[4 * i + 3] = d[i];
    return words;
  }

  // Strict and division-free: u * t < w. w = 0 never passes; t = 0 < w always does.
  SPECAGG_FUNCTION bool coin(moment m, double w, double t) const { return uniform(m) * t < w; }
  template <class Weights>
  token_id draw(moment m, const Weights& w) const {
    return inverse_transform(w, uniform(m));
  }

 private:
  std::uint64_t key_;
};

SPECAGG_END
