// SPDX-License-Identifier: Apache-2.0
// Multiplies repacked quantised weights by the rounded activations of n tokens.
//
// A block of 32 columns is one exact sum of whole numbers, which has no order. The only rounded
// operation is one fused step a block (Q4_1: two), from left to right, then the same for the blocks
// of the second part:
//   acc = fma(d s, S, acc)   d is the weights' scale, s the activations', S = sum k x (Q4_0: sum
//                            (k - 8) x), below 2^20
//   acc = fma(m, s T, acc)   Q4_1: T = sum x
// d s and s T are rounded once. So a token's products have the same bits in any batch, on any
// number of threads and on every instruction set. A strip stays in the cache for all n tokens.
// Against the exact product of the rounded activations the error is at most (cols / 8 + 4) 2^-24
// sum |w| |x|, where |w| of Q4_1 is |d| k + |m|, as long as no d s is subnormal and nothing
// overflows.
#pragma once
#include <specagg/backend/cpu/activations.hpp>
#include <specagg/backend/cpu/dots.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <specagg/backend/cpu/matrix.hpp>

SPECAGG_BEGIN
namespace cpu::detail {

// Runs body<n>(), n at most Most.
template <int Most, class Body>
SPECAGG_LANE void with_count(std::size_t n, Body&& body) {
  if constexpr (Most > 0) {
    if (n == Most) return body.template operator()<Most>();
    with_count<Most - 1>(n, body);
  }
}

using sums_of_rows = vec<float, dots::rows>;

// dots::rows weight rows times `Tokens` tokens. Recursive, because compilers put arrays of vectors
// into memory.
template <class Dots, int Tokens>
struct integer_tile {
  sums_of_rows acc = 0;
  Dots sums;
  integer_tile<Dots, Tokens - 1> rest;
  SPECAGG_LANE void add(typename Dots::bytes first, typename Dots::bytes next,
                        const std::int8_t* x) {
    sums.add(first, x);
    sums.add(next, x + 4);
    rest.add(first, next, x + quantised_block);
  }
  // The end of a block. excess: the amount by which each token's sums are too large, if they are.
  // It is a whole number, and sums are below 2^24, so its subtraction is exact.
  template <bool TooLarge>
  SPECAGG_LANE void scale(sums_of_rows d, const float* scales, const float* excess) {
    auto sum = sums.total();
    if constexpr (TooLarge) sum = sum - sums_of_rows(*excess);
    acc = fma(d * sums_of_rows(*scales), sum, acc);
    sums = {};
    rest.template scale<TooLarge>(d, scales + 1, excess + 1);
  }
  SPECAGG_LANE void add_minimum(sums_of_rows m, const float* scaled_totals) {
    acc = fma(m, sums_of_rows(*scaled_totals), acc);
    rest.add_minimum(m, scaled_totals + 1);
  }
  // of the i-th token and the next ones, at(i)
  SPECAGG_LANE void load(const auto& at, std::size_t i = 0) {
    acc = sums_of_rows::load(at(i));
    rest.load(at, i + 1);
  }
  SPECAGG_LANE void store(const auto& at, std::size_t i = 0) const {
    acc.store(at(i));
    rest.store(at, i + 1);
  }
};
template <class Dots>
struct integer_tile<Dots, 0> {
  SPECAGG_LANE void add(typename Dots::bytes, typename Dots::bytes, const std::int8_t*) {}
  template <bool>
  SPECAGG_LANE void scale(sums_of_rows, const float*, const float*) {}
  SPECAGG_LANE void add_minimum(sums_of_rows, const float*) {}
  SPECAGG_LANE void load(const auto&, std::size_t) {}
  SPECAGG_LANE void store(const auto&, std::size_t) const {}
};

// A block of a token in a part; the same block of the next tokens follows.
struct rounded_at {
  const std::int8_t* numbers;
  const float *scale, *sum_8, *sum_128, *scaled_sum;
  rounded_at(const rounded_part& p, std::size_t i)
      : numbers(p.numbers + i * quantised_block),
        scale(p.scale + i),
        sum_8(p.sum_8 + i),
        sum_128(p.sum_128 + i),
        scaled_sum(p.scaled_sum + i) {}
};

template <tensor_type Type>
using dots_of = std::conditional_t<Type == tensor_type::q8_0, byte_dots, dots>;

// Adds the products of one block of columns. x: of the tile's first token.
template <tensor_type Type, int Tokens>
SPECAGG_LANE void add_block(integer_tile<dots_of<Type>, Tokens>& tile, const std::byte* block,
                            std::size_t row, const rounded_at& x) {
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC unroll 4
#endif
  for (std::size_t g = 0; g < 4; ++g) {
    if constexpr (Type == tensor_type::q8_0) {
      const auto* at = block + 128 * g + 4 * row;
      tile.add(byte_dots::load(at), byte_dots::load(at + 64), x.numbers + 8 * g);
    } else {
      const auto w = dots::load(block + 64 * g + 4 * row);
      tile.add(dots::low(w), dots::high(w), x.numbers + 8 * g);
    }
  }
  const auto* halves = reinterpret_cast<const f16*>(block + number_bytes(Type)) + row;
  constexpr int offset = Type == tensor_type::q8_0   ? byte_dots::offset
                         : Type == tensor_type::q4_0 ? 8
                                                     : 0;
  tile.template scale<offset != 0>(sums_of_rows::load(halves), x.scale,
                                   offset == 8 ? x.sum_8 : x.sum_128);
  if constexpr (Type == tensor_type::q4_1)
    tile.add_minimum(sums_of_rows::load(halves + strip_rows), x.scaled_sum);
}

// y[t * y_stride + r] for the 16 rows r of a strip and the tokens first .. first + Tokens - 1 of x,
// without the second part.
template <tensor_type Type, int Tokens>
[[gnu::flatten]] void multiply_strip(const std::byte* strip, std::size_t blocks,
                                     const rounded_activations& x, std::size_t first, float* y,
                                     std::size_t y_stride) {
  for (std::size_t row = 0; row < strip_rows; row += dots::rows) {
    integer_tile<dots_of<Type>, Tokens> tile;
    const auto* block = strip;
    for (std::size_t b = 0; b < blocks; ++b) {
      // The next blocks come from memory while this one is multiplied.
      for (std::size_t ahead = 0; ahead < packed_block_bytes(Type); ahead += 64)
        __builtin_prefetch(
            reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(block) + 4096 + ahead));
      add_block<Type>(tile, block, row, {x.first, b * x.tokens + first});
      block += packed_block_bytes(Type);
    }
    tile.store([&](std::size_t i) { return y + row + i * y_stride; });
  }
}

// Adds one block of the second part to the products of `Tokens` tokens, at(i) those of the i-th. x:
// of the first of them.
template <tensor_type Type, int Tokens, class At>
[[gnu::flatten]] void add_second(const std::byte* block, const rounded_at& x, At&& at) {
  for (std::size_t row = 0; row < strip_rows; row += dots::rows) {
    integer_tile<dots_of<Type>, Tokens> tile;
    const auto of_row = [&](std::size_t i) { return at(i) + row; };
    tile.load(of_row);
    add_block<Type>(tile, block, row, x);
    tile.store(of_row);
  }
}

// Adds the second part of the tokens [first, last) to their 16 products, of which those of token
// `first` are at y.
template <tensor_type Type>
void add_second_part(const std::byte* strip, const rounded_activations& x, std::size_t first,
                     std::size_t last, float* y, std::size_t y_stride) {
  constexpr std::size_t at_once = 4;  // more gain little and take long to compile
  for (const auto& shared : x.second_blocks) {
    const std::size_t b = shared.b, count = shared.tokens;
    const auto* const block = strip + b * packed_block_bytes(Type);
    const auto begin = b * x.tokens;
    const auto place_of = [&](std::size_t token) {  // of the first from `token` on
      return std::size_t(
          std::lower_bound(x.second_tokens + begin, x.second_tokens + begin + count, token) -
          x.second_tokens);
    };
    for (auto i = place_of(first), end = place_of(last); i < end; i += at_once)
      with_count<at_once>(std::min(end - i, at_once), [&]<int Tokens> {
        add_second<Type, Tokens>(block, {x.second, i}, [&](std::size_t j) {
          return y + (x.second_tokens[i + j] - first) * y_stride;
        });
      });
  }
}

// y[t * y_stride + r - begin] = sum over c of w(r, c) x(t, c), for the rows r in [begin, end) and
// every token t.
template <tensor_type Type>
void multiply_integers(const matrix& w, std::size_t begin, std::size_t end,
                       const rounded_activations& x, float* y, std::size_t y_stride) {
  constexpr std::size_t most = dots::tokens;
  const auto blocks = w.cols / quantised_block, n = x.tokens, tiles = (n + most - 1) / most;
  for (auto from = begin / strip_rows * strip_rows; from < end; from += strip_rows) {
    const auto* strip = w.strips.get() + from / strip_rows * blocks * packed_block_bytes(Type);
    const bool whole = from >= begin && from + strip_rows <= end;
    float part_of_strip[most * strip_rows];
    for (std::size_t i = 0; i < tiles; ++i) {
      const auto t = n * i / tiles, some = n * (i + 1) / tiles - t;
      auto* to = whole ? y + t * y_stride + (from - begin) : part_of_strip;
      const auto stride = whole ? y_stride : strip_rows;
      with_count<dots::tokens>(
          some, [&]<int Tokens> { multiply_strip<Type, Tokens>(strip, blocks, x, t, to, stride); });
      if (whole) continue;
      add_second_part<Type>(strip, x, t, t + some, to, stride);
      for (std::size_t j = 0; j < some; ++j)
        for (auto r = std::max(begin, from); r < std::min(end, from + strip_rows); ++r)
          y[(t + j) * y_stride + (r - begin)] = to[j * stride + r - from];
    }
    if (whole) add_second_part<Type>(strip, x, 0, n, y + (from - begin), y_stride);
  }
}

}  // namespace cpu::detail
SPECAGG_END
