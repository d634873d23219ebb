// SPDX-License-Identifier: Apache-2.0
// Random decisions: the Chooser concept, and the chooser used in production, a counter-based
// generator.
#pragma once
#include <array>
#include <concepts>
#include <cstdint>

#include <specagg/kernel/math.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// Philox4x32-10 (Salmon et al. 2011): maps a 128-bit counter and a 64-bit key to 128 random bits.
// It computes N counters at once, as x[word][counter], so that compilers use vector instructions.
template <std::size_t N>
SPECAGG_FUNCTION SPECAGG_INLINE constexpr void philox(std::uint32_t (&x)[4][N],
                                                      std::uint64_t key) noexcept {
  std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < N; ++i) {
      const std::uint64_t a = std::uint64_t(0xD2511F53u) * x[0][i],
                          b = std::uint64_t(0xCD9E8D57u) * x[2][i];
      x[0][i] = std::uint32_t(b >> 32) ^ x[1][i] ^ k0;
      x[1][i] = std::uint32_t(b);
      x[2][i] = std::uint32_t(a >> 32) ^ x[3][i] ^ k1;
      x[3][i] = std::uint32_t(a);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}
// The 128 random bits of one counter, as four words.
using philox_block = std::array<std::uint32_t, 4>;
SPECAGG_FUNCTION constexpr philox_block philox(philox_block counter, std::uint64_t key) noexcept {
  std::uint32_t x[4][1] = {{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}};
  philox(x, key);
  return {x[0][0], x[1][0], x[2][0], x[3][0]};
}

// The use of a random number. Two streams never share numbers: the residual must not use the noise
// that drew the draft.
enum class stream : std::uint8_t { draft, coin, residual, bonus, side, shared };

// The place at which a random number is used: the absolute position of the token that it decides,
// and the position where the current draft round began. Block verification conditions on noise
// beyond the accepted prefix, so the next round must not use that noise again; `start` makes the
// rounds differ. Coupled noise must be the same in all rounds. For this noise `start` is 0 for the
// first word of a token and 1 for the second. branch: 0, except in a tree of drafts, which has
// several tokens for one position (verify/tree.hpp).
struct moment {
  stream use;
  std::uint32_t position;
  std::uint32_t start;
  std::uint32_t branch = 0;
};

namespace detail {
struct some_rows {  // the rows of weights in the concept below; never read
  using value_type = float;
  struct block {
    template <class V>
    V operator()(std::size_t, int) const;
  };
  std::size_t size() const;
  block open(std::size_t, std::size_t) const;
};
struct some_weight {
  template <class V>
  V operator()(V x) const;
};
template <class C>
concept Engine = requires { std::remove_reference_t<C>::min(); };  // of <random>
}  // namespace detail

// The decisions that an algorithm asks for. coin(m, w, t): true with probability min(1, w / t);
// false if w is 0. draw(m, weights): token v with probability weights[v] / total; no_token if the
// weights cannot be normalised. The weights view memory that changes later: draw() keeps nothing of
// them when it returns. (Compilers print the line after =.)
template <class C>
concept Chooser =
    !detail::Engine<C> &&  // an engine of <random> gives bits: pass specagg::random_streams(seed)
    requires(C& c, moment m, double w, const weights<detail::some_rows, detail::some_weight>& law) {
      { c.coin(m, w, w) } -> std::convertible_to<bool>;
      { c.draw(m, law) } -> std::convertible_to<token_id>;
    };

// The production chooser. Each number is a function of (seed, request, site, moment, index) alone.
// It does not depend on the batch slot, thread, call order, instruction set or device. The layout
// is fixed (tests/random.test.cpp has known answers):
//   key      words 0 and 1 of philox({request low, request high, site, 0x73706563}, seed)
//   counter  {index / 4, position, start, stream}
//   coins and draws use words 0 and 1 as 53 bits; their index / 4 is the branch
//   noise for token v uses word v mod 4 of index v at start 0; if this word is `rarest` or larger,
//   also the same word at start 1
class random_streams {
 public:
  SPECAGG_FUNCTION constexpr explicit random_streams(std::uint64_t seed, std::uint64_t request = 0,
                                                     std::uint32_t site = 0) noexcept {
    const auto k =
        philox({std::uint32_t(request), std::uint32_t(request >> 32), site, 0x73706563u}, seed);
    key_ = std::uint64_t(k[1]) << 32 | k[0];
  }

  // A double in [0, 1) with 53 random bits.
  SPECAGG_FUNCTION constexpr double uniform(moment m) const noexcept {
    const auto r = philox({m.branch, m.position, m.start, std::uint32_t(m.use)}, key_);
    return double(std::uint64_t(r[0] >> 5) << 26 | r[1] >> 6) * 0x1p-53;
  }
  // Exp(1) noise of token v at a position. It is the same for everyone who has the seed and the
  // request.
  SPECAGG_FUNCTION double noise(std::uint32_t position, token_id v) const noexcept {
    return noise(position, v, four_words(position, v)[std::uint32_t(v) % 4]);
  }
  // The noise of a token whose first word is known. One word in 256 needs a second word: races are
  // decided by small noise, which needs more bits.
  SPECAGG_FUNCTION double noise(std::uint32_t position, token_id v,
                                std::uint32_t word) const noexcept {
    return noise_of(word, word < rarest ? 0 : second_word(position, v));
  }
  // The first words of four tokens: v / 4 * 4 + 0 .. 3.
  SPECAGG_FUNCTION philox_block four_words(std::uint32_t position, token_id v) const noexcept {
    return philox({std::uint32_t(v) / 4, position, 0, std::uint32_t(stream::shared)}, key_);
  }
  // The noise -ln u of a first and a second word. Below `rarest`, u = (word + 1/2) / 2^32, and
  // `second` is not used. From `rarest` on, 1 - u < 2^-8 needs more bits, and u = (2^32 word +
  // second + 1/2) / 2^64. The result is never 0: it lies in [2^-65, 22.9]. It grows as the words
  // get smaller.
  SPECAGG_FUNCTION static double noise_of(std::uint32_t word, std::uint32_t second) noexcept {
    if (word < rarest) return -log((double(word) + 0.5) * 0x1p-32);
    const std::uint64_t left = ~(std::uint64_t(word) << 32 | second);
    return -log_1_plus(vec<double, 1>((double(left) + 0.5) * -0x1p-64)).v;
  }
  // A lower bound of the noise of a first word: 1 - u <= -ln u, at the largest u of that word.
  // Needs no logarithm and no second word.
  SPECAGG_FUNCTION static double least_noise(std::uint32_t word) noexcept {
    return double(~word) * 0x1p-32;
  }
  static constexpr std::uint32_t rarest = 0xff000000u;
  // The first words of the tokens first .. first + 63. `first` must be a multiple of 4.
  std::array<std::uint32_t, 64> noise_words(std::uint32_t position, token_id first) const noexcept {
    std::uint32_t x[4][16];
    for (std::uint32_t i = 0; i < 16; ++i) {
      x[0][i] = std::uint32_t(first) / 4 + i;
      x[1][i] = position;
      x[2][i] = 0;
      x[3][i] = std::uint32_t(stream::shared);
    }
    philox(x, key_);
    std::array<std::uint32_t, 64> words;
    for (std::size_t i = 0; i < 16; ++i) {
      words[4 * i] = x[0][i];
      words[4 * i + 1] = x[1][i];
      words[4 * i + 2] = x[2][i];
      words[4 * i + 3] = x[3][i];
    }
    return words;
  }

  // True if u * t < w (strict, no division). w = 0 is never true; t = 0 < w is always true.
  SPECAGG_FUNCTION bool coin(moment m, double w, double t) const noexcept {
    return uniform(m) * t < w;
  }
  template <class Weights>
  SPECAGG_FUNCTION token_id draw(moment m, const Weights& w) const {
    return specagg::inverse_transform(w, uniform(m));
  }

 private:
  SPECAGG_FUNCTION SPECAGG_OUTLINE std::uint32_t second_word(std::uint32_t position,
                                                             token_id v) const {
    return philox({std::uint32_t(v) / 4, position, 1, std::uint32_t(stream::shared)},
                  key_)[std::uint32_t(v) % 4];
  }
  std::uint64_t key_;
};

SPECAGG_END
