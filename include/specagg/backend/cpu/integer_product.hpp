// SPDX-License-Identifier: Apache-2.0
// Multiplies repacked quantised weights by the rounded activations of n tokens.
//
// A block of 32 columns is one exact sum of whole numbers, which has no order. What is left is one
// fused step a block (Q4_1: two), from left to right, then the same for the blocks of the second
// part:
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
#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {
namespace detail {

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
  // The end of a block, whose weights were added too large by Offset.
  template <int Offset>
  SPECAGG_LANE void scale(sums_of_rows d, const float* scales, const float* totals) {
    auto sum = sums.total();
    // whole numbers below 2^24, so that this is exact
    if constexpr (Offset != 0) sum = sum - sums_of_rows(Offset) * sums_of_rows(*totals);
    acc = fma(d * sums_of_rows(*scales), sum, acc);
    sums = {};
    rest.template scale<Offset>(d, scales + 1, totals + 1);
  }
  SPECAGG_LANE void add_minimum(sums_of_rows m, const float* scaled_totals) {
    acc = fma(m, sums_of_rows(*scaled_totals), acc);
    rest.add_minimum(m, scaled_totals + 1);
  }
  SPECAGG_LANE void store(float* y, std::size_t y_stride) const {
    acc.store(y);
    rest.store(y + y_stride, y_stride);
  }
};
template <class Dots>
struct integer_tile<Dots, 0> {
  SPECAGG_LANE void add(typename Dots::bytes, typename Dots::bytes, const std::int8_t*) {}
  template <int>
  SPECAGG_LANE void scale(sums_of_rows, const float*, const float*) {}
  SPECAGG_LANE void add_minimum(sums_of_rows, const float*) {}
  SPECAGG_LANE void store(float*, std::size_t) const {}
};

// A block of a token in a part; the same block of the next tokens follows.
struct rounded_at {
  const std::int8_t* numbers;
  const float *scale, *sum, *scaled_sum;
  rounded_at(const rounded_part& p, std::size_t i)
      : numbers(p.numbers + i * quantised_block),
        scale(p.scale + i),
        sum(p.sum + i),
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
  tile.template scale<offset>(sums_of_rows::load(halves), x.scale, x.sum);
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
    tile.store(y + row, y_stride);
  }
}

// Adds the second part of token t to its 16 products.
template <tensor_type Type>
[[gnu::flatten]] void add_second_part(const std::byte* strip, const rounded_activations& x,
                                      std::size_t t, float* y) {
  for (std::size_t row = 0; row < strip_rows; row += dots::rows) {
    integer_tile<dots_of<Type>, 1> tile;
    tile.acc = sums_of_rows::load(y + row);
    for (auto i = x.from[t]; i < x.from[t + 1]; ++i) {
      const auto b = x.blocks[i];
      add_block<Type>(tile, strip + b * packed_block_bytes(Type), row,
                      {x.second, b * x.tokens + t});
    }
    tile.store(y + row, 0);
  }
}

template <tensor_type Type, int Tokens = dots::tokens>
SPECAGG_LANE void multiply_strip(std::size_t tokens, const std::byte* strip, std::size_t blocks,
                                 const rounded_activations& x, std::size_t first, float* y,
                                 std::size_t y_stride) {
  if constexpr (Tokens > 0) {
    if (tokens == Tokens) return multiply_strip<Type, Tokens>(strip, blocks, x, first, y, y_stride);
    multiply_strip<Type, Tokens - 1>(tokens, strip, blocks, x, first, y, y_stride);
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
      multiply_strip<Type>(some, strip, blocks, x, t, to, stride);
      for (std::size_t j = 0; j < some; ++j) {
        if (x.from[t + j] < x.from[t + j + 1])
          add_second_part<Type>(strip, x, t + j, to + j * stride);
        if (whole) continue;
        for (auto r = std::max(begin, from); r < std::min(end, from + strip_rows); ++r)
          y[(t + j) * y_stride + (r - begin)] = to[j * stride + r - from];
      }
    }
  }
}

}  // namespace detail
}  // namespace cpu
SPECAGG_END
