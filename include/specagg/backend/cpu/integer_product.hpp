// SPDX-License-Identifier: Apache-2.0
// Multiplies repacked quantised weights by the rounded activations of n tokens.
//
// A block of 32 columns is one exact sum of whole numbers, which has no order. What is left is a
// few fused steps a block, from left to right, then the same for the blocks of the second part:
//   acc = fma(d s, S - o T, acc)   for each plane: d is the weights' scale (16 d for the first
//                                  plane of Q8_0), s the activations', S = sum k x, T = sum x, o =
//                                  8 (Q4_0, first plane of Q8_0) or 0
//   acc = fma(m, s T, acc)         Q4_1
// d s and s T are rounded once. So a token's products have the same bits in any batch, on any
// number of threads and on every instruction set. A strip stays in the cache for all n tokens.
// Against the exact product of the rounded activations the error is at most (cols / 8 + 4) 2^-24
// sum |w| |x|, where |w| is |d| |k - 8| (Q4_0), |d| k + |m| (Q4_1), 16 |d| |h - 8| + |d| l (Q8_0),
// as long as no d s is subnormal and nothing overflows.
#pragma once
#include <specagg/backend/cpu/activations.hpp>
#include <specagg/backend/cpu/dots.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <specagg/backend/cpu/matrix.hpp>
#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {
namespace detail {

using sums_of_rows = vec<float, dots::rows>;

// dots::rows weight rows times `Tokens` tokens. Recursive, because compilers put arrays of vectors
// into memory.
template <int Tokens>
struct integer_tile {
  sums_of_rows acc = 0;
  dots sums;
  integer_tile<Tokens - 1> rest;
  SPECAGG_LANE void add(dots::bytes low, dots::bytes high, const std::int8_t* x) {
    sums.add(low, x);
    sums.add(high, x + 4);
    rest.add(low, high, x + quantised_block);
  }
  // The end of a plane.
  template <int Offset>
  SPECAGG_LANE void scale(sums_of_rows d, const float* scales, const float* totals) {
    if constexpr (Offset == 0) acc = fma(d * sums_of_rows(*scales), sums.total(), acc);
    // whole numbers
    else acc = fma(d * sums_of_rows(*scales), sums.total() - sums_of_rows(Offset * *totals), acc);
    sums = {};
    rest.template scale<Offset>(d, scales + 1, totals + 1);
  }
  SPECAGG_LANE void add_minimum(sums_of_rows m, const float* scales, const float* totals) {
    acc = fma(m, sums_of_rows(*scales * *totals), acc);
    rest.add_minimum(m, scales + 1, totals + 1);
  }
  SPECAGG_LANE void store(float* y, std::size_t y_stride) const {
    acc.store(y);
    rest.store(y + y_stride, y_stride);
  }
};
template <>
struct integer_tile<0> {
  SPECAGG_LANE void add(dots::bytes, dots::bytes, const std::int8_t*) {}
  template <int>
  SPECAGG_LANE void scale(sums_of_rows, const float*, const float*) {}
  SPECAGG_LANE void add_minimum(sums_of_rows, const float*, const float*) {}
  SPECAGG_LANE void store(float*, std::size_t) const {}
};

// How many tokens fit into the registers.
inline constexpr std::size_t integer_tile_tokens = SPECAGG_ISA_ID == 3   ? 12
                                                   : SPECAGG_ISA_ID == 2 ? 5
                                                   : SPECAGG_ISA_ID == 4 ? 8
                                                   : SPECAGG_ISA_ID == 1 ? 3
                                                                         : 2;

// Adds the products of one block of columns. numbers, scales and totals: of the tile's first token.
template <tensor_type Type, int Tokens>
SPECAGG_LANE void add_block(integer_tile<Tokens>& tile, const std::byte* block, std::size_t row,
                            const std::int8_t* numbers, const float* scales, const float* totals) {
  const auto add_plane = [&](const std::byte* plane) {
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC unroll 4
#endif
    for (std::size_t g = 0; g < 4; ++g) {
      const auto w = dots::load(plane + 64 * g + 4 * row);
      tile.add(dots::low(w), dots::high(w), numbers + 8 * g);
    }
  };
  const auto* halves = reinterpret_cast<const f16*>(block + planes(Type) * plane_bytes) + row;
  const auto d = sums_of_rows::load(halves);
  add_plane(block);
  if constexpr (Type == tensor_type::q8_0) {
    tile.template scale<8>(d * sums_of_rows(16), scales, totals);
    add_plane(block + plane_bytes);
    tile.template scale<0>(d, scales, totals);
  } else if constexpr (Type == tensor_type::q4_0) {
    tile.template scale<8>(d, scales, totals);
  } else {
    tile.template scale<0>(d, scales, totals);
    tile.add_minimum(sums_of_rows::load(halves + strip_rows), scales, totals);
  }
}

// y[t * y_stride + r] for the 16 rows r of a strip and the tokens first .. first + Tokens - 1 of x,
// without the second part.
template <tensor_type Type, int Tokens>
[[gnu::flatten]] void multiply_strip(const std::byte* strip, std::size_t blocks,
                                     const rounded_activations& x, std::size_t first, float* y,
                                     std::size_t y_stride) {
  for (std::size_t row = 0; row < strip_rows; row += dots::rows) {
    integer_tile<Tokens> tile;
    const auto* block = strip;
    const auto* numbers = x.first.numbers + first * quantised_block;
    const auto *scales = x.first.scale + first, *totals = x.first.sum + first;
    for (std::size_t b = 0; b < blocks; ++b) {
      // The next blocks come from memory while this one is multiplied.
      for (std::size_t ahead = 0; ahead < packed_block_bytes(Type); ahead += 64)
        __builtin_prefetch(
            reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(block) + 4096 + ahead));
      add_block<Type>(tile, block, row, numbers, scales, totals);
      block += packed_block_bytes(Type);
      numbers += x.tokens * quantised_block;
      scales += x.tokens;
      totals += x.tokens;
    }
    tile.store(y + row, y_stride);
  }
}

// Adds the second part of token t to its 16 products.
template <tensor_type Type>
[[gnu::flatten]] void add_second_part(const std::byte* strip, const rounded_activations& x,
                                      std::size_t t, float* y) {
  for (std::size_t row = 0; row < strip_rows; row += dots::rows) {
    integer_tile<1> tile;
    tile.acc = sums_of_rows::load(y + row);
    for (auto i = x.from[t]; i < x.from[t + 1]; ++i) {
      const auto b = x.blocks[i];
      const auto at = b * x.tokens + t;
      add_block<Type>(tile, strip + b * packed_block_bytes(Type), row,
                      x.second.numbers + at * quantised_block, x.second.scale + at,
                      x.second.sum + at);
    }
    tile.store(y + row, 0);
  }
}

template <tensor_type Type, int Tokens = static_cast<int>(integer_tile_tokens)>
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
  const auto blocks = w.cols / quantised_block, n = x.tokens;
  const auto tiles = (n + integer_tile_tokens - 1) / integer_tile_tokens;
  for (auto from = begin / strip_rows * strip_rows; from < end; from += strip_rows) {
    const auto* strip = w.strips.get() + from / strip_rows * blocks * packed_block_bytes(Type);
    const bool whole = from >= begin && from + strip_rows <= end;
    float part_of_strip[integer_tile_tokens * strip_rows];
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
