// SPDX-License-Identifier: Apache-2.0
// Multiplies weights that are floats (F32, F16, BF16) by the activations of n tokens.
//
// Every product of one weight row and one token is summed in the same order. Lane l of 16 takes the
// columns l, l + 16, ... in turn, each with one fma; then the lanes are added in one fixed tree.
// The order does not depend on n, the tiling, the threads or the instruction set, so a token's
// results have the same bits in any batch. Each weight row is read from memory once for all n
// tokens. The error is at most (cols / 16 + 4) 2^-24 sum |w x|.
#pragma once
#include <specagg/backend/cpu/activations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <specagg/backend/cpu/tensor.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>

SPECAGG_BEGIN
namespace cpu::detail {

inline constexpr int native = specagg::detail::native_lanes<float>;

// Four sums over lanes, each in the order of reduce_add: lane i + lane i + 8, then + 4, + 2, + 1.
// The last steps are done for all four at once.
typedef float f32x4 __attribute__((vector_size(16)));
SPECAGG_LANE f32x4 quarter_sum(auto a) {
  if constexpr (native == 16) {
    typedef float f32x16 __attribute__((vector_size(64)));
    f32x16 x;
    std::memcpy(&x, &a, sizeof x);
    const auto h = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
  } else if constexpr (native == 8) {
    typedef float f32x8 __attribute__((vector_size(32)));
    f32x8 h;
    const auto sum = a.lo + a.hi;
    std::memcpy(&h, &sum, sizeof h);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
    // where nvcc compiles it for the host
  } else if constexpr (native == 1) {
    f32x4 sum;
    float x[16];
    a.store(x);
    for (int i = 0; i < 4; ++i) sum[i] = (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]);
    return sum;
  } else {
    const auto q = (a.lo.lo + a.hi.lo) + (a.lo.hi + a.hi.hi);
    f32x4 sum;
    std::memcpy(&sum, &q, sizeof sum);
    return sum;
  }
}
SPECAGG_LANE f32x4 sum_lanes(lanes a, lanes b, lanes c, lanes d) {
  const auto qa = quarter_sum(a), qb = quarter_sum(b), qc = quarter_sum(c), qd = quarter_sum(d);
  const auto ab =
      __builtin_shufflevector(qa, qb, 0, 1, 4, 5) + __builtin_shufflevector(qa, qb, 2, 3, 6, 7);
  const auto cd =
      __builtin_shufflevector(qc, qd, 0, 1, 4, 5) + __builtin_shufflevector(qc, qd, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

// Accumulators for 4 weight rows times `Tokens` tokens. Recursive, because compilers put arrays of
// vectors into memory.
template <int Tokens>
struct tile {
  lanes a = 0, b = 0, c = 0, d = 0;
  tile<Tokens - 1> rest;
  SPECAGG_LANE void add(lanes wa, lanes wb, lanes wc, lanes wd, const float* x,
                        std::size_t x_stride) {
    auto v = lanes::load(x);
#if SPECAGG_ISA_ID == 3  // g++ would load x from memory four times, which would be the bottleneck
    v = uncontracted(v);
#endif
    a = fma(wa, v, a);
    b = fma(wb, v, b);
    c = fma(wc, v, c);
    d = fma(wd, v, d);
    rest.add(wa, wb, wc, wd, x + x_stride, x_stride);
  }
  SPECAGG_LANE void store(float* y, std::size_t y_stride) const {
    const auto sums = sum_lanes(a, b, c, d);
    std::memcpy(y, &sums, sizeof sums);
    rest.store(y + y_stride, y_stride);
  }
};
template <>
struct tile<0> {
  SPECAGG_LANE void add(lanes, lanes, lanes, lanes, const float*, std::size_t) {}
  SPECAGG_LANE void store(float*, std::size_t) const {}
};

// A tile's sums for one weight row instead of four.
template <int Tokens>
struct line {
  lanes a = 0;
  line<Tokens - 1> rest;
  SPECAGG_LANE void add(lanes w, const float* x, std::size_t x_stride) {
    a = fma(w, lanes::load(x), a);
    rest.add(w, x + x_stride, x_stride);
  }
  SPECAGG_LANE void store(float* y, std::size_t y_stride) const {
    *y = reduce_add(a);
    rest.store(y + y_stride, y_stride);
  }
};
template <>
struct line<0> {
  SPECAGG_LANE void add(lanes, const float*, std::size_t) {}
  SPECAGG_LANE void store(float*, std::size_t) const {}
};

// How many tokens fit into the registers: with 4 weight rows if there are 32 registers of 16
// lanes, else with one row.
inline constexpr std::size_t tile_tokens = native == 16 ? 6 : native == 8 ? 5 : 2;

// Multiplies `rows` rows, the first at `row`, by `Tokens` tokens.
template <tensor_type Type, int Tokens>
[[gnu::flatten]] void multiply_tile(const std::byte* row, std::size_t stride, std::size_t rows,
                                    std::size_t cols, const float* x, std::size_t x_stride,
                                    float* y, std::size_t y_stride) {
  const auto whole = cols / 16 * 16;
  std::size_t r = 0;
  if constexpr (native == 16 || Tokens == 1) {
    for (; whole == cols && r + 4 <= rows; r += 4, row += 4 * stride) {
      tile<Tokens> sums;
      for (std::size_t c = 0; c < cols; c += 16)
        sums.add(load_weights<Type>(row, c), load_weights<Type>(row + stride, c),
                 load_weights<Type>(row + 2 * stride, c), load_weights<Type>(row + 3 * stride, c),
                 x + c, x_stride);
      sums.store(y + r, y_stride);
    }
  }
  for (; r < rows; ++r, row += stride) {
    line<Tokens> sums;
    for (std::size_t c = 0; c < whole; c += 16)
      sums.add(load_weights<Type>(row, c), x + c, x_stride);
    if (whole < cols) sums.add(load_weights_tail<Type>(row, whole, cols), x + whole, x_stride);
    sums.store(y + r, y_stride);
  }
}

template <tensor_type Type, int Tokens = int(tile_tokens)>
SPECAGG_LANE void multiply_tokens(std::size_t tokens, const std::byte* row, std::size_t stride,
                                  std::size_t rows, std::size_t cols, const float* x,
                                  std::size_t x_stride, float* y, std::size_t y_stride) {
  if constexpr (Tokens > 0) {
    if (tokens == Tokens)
      return multiply_tile<Type, Tokens>(row, stride, rows, cols, x, x_stride, y, y_stride);
    multiply_tokens<Type, Tokens - 1>(tokens, row, stride, rows, cols, x, x_stride, y, y_stride);
  }
}

// y[t * y_stride + r - begin] = sum over c of w(r, c) x(t, c), for the rows r in [begin, end) and
// every token t.
template <tensor_type Type>
void multiply_floats(const tensor& w, std::size_t begin, std::size_t end, const activations& x,
                     float* y, std::size_t y_stride) {
  const auto stride = row_bytes(Type, w.cols), x_stride = std::size_t(x.outerStride());
  const auto n = std::size_t(x.rows()), tiles = (n + tile_tokens - 1) / tile_tokens;
  if (n == 0) return;
  // 4 rows stay in the first-level cache for all tiles
  const auto block = tiles == 1 ? end - begin : std::size_t{4};
  for (auto r = begin; r < end; r += block) {
    for (std::size_t i = 0; i < tiles; ++i) {
      const auto t = n * i / tiles, next = n * (i + 1) / tiles;
      multiply_tokens<Type>(next - t, w.data + r * stride, stride, std::min(block, end - r), w.cols,
                            x.data() + t * x_stride, x_stride, y + t * y_stride + (r - begin),
                            y_stride);
    }
  }
}

}  // namespace cpu::detail
SPECAGG_END
