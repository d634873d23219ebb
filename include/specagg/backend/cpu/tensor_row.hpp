// SPDX-License-Identifier: Apache-2.0
// Reads rows of a tensor, stored as F32, F16, BF16, Q4_0, Q4_1 or Q8_0, as floats.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <specagg/backend/cpu/tensor.hpp>

SPECAGG_BEGIN
namespace cpu {

// The kernels compute with 16 floats at a time; rows are padded to a multiple of 16 columns.
using lanes = vec<float, 16>;
constexpr std::size_t padded(std::size_t cols) { return (cols + 15) / 16 * 16; }

namespace detail {

inline float half_at(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return specagg::detail::float_of_f16(bits);
}

// Columns c..c+15 of a row as floats. Without error, but for Q4_1: there d k + m is rounded once.
template <tensor_type Type>
SPECAGG_LANE lanes load_weights(const std::byte* row, std::size_t c) {
  if constexpr (Type == tensor_type::f32) {
    return lanes::load(reinterpret_cast<const float*>(row) + c);
  } else if constexpr (Type == tensor_type::f16) {
    return lanes::load(reinterpret_cast<const f16*>(row) + c);
  } else if constexpr (Type == tensor_type::bf16) {
    return lanes::load(reinterpret_cast<const bf16*>(row) + c);
  } else {
    const std::byte* block = row + c / quantised_block * block_bytes(Type);
    const auto half = [&](std::size_t at) { return lanes(half_at(block + at)); };
    if constexpr (Type == tensor_type::q8_0) {
      return half(0) *
             lanes::load_i8(reinterpret_cast<const std::int8_t*>(block + 2 + c % quantised_block));
    } else {
      constexpr std::size_t scales = block_bytes(Type) - 16;
      const int shift = c % quantised_block == 0 ? 0 : 4;
      std::int8_t k[16];
      for (std::size_t i = 0; i < 16; ++i)
        k[i] = std::int8_t((std::to_integer<int>(block[scales + i]) >> shift & 15) -
                           (Type == tensor_type::q4_0 ? 8 : 0));
      if constexpr (Type == tensor_type::q4_0) return half(0) * lanes::load_i8(k);
      else return fma(half(0), lanes::load_i8(k), half(2));
    }
  }
}

// The last columns of a row whose length is not a multiple of 16; the other lanes are 0. (Quantised
// rows have no such columns.)
template <tensor_type Type>
SPECAGG_LANE lanes load_weights_tail(const std::byte* row, std::size_t c, std::size_t cols) {
  constexpr std::size_t size = Type == tensor_type::f32 ? 4 : 2;
  alignas(64) std::byte tail[16 * size] = {};
  std::memcpy(tail, row + c * size, (cols - c) * size);
  return load_weights<Type>(tail, 0);
}

}  // namespace detail

// One row as floats.
inline void read_row(const tensor& w, std::size_t r, float* y) {
  detail::with_type(w.type, [&]<tensor_type Type>() {
    const auto* row = w.data + r * row_bytes(Type, w.cols);
    std::size_t c = 0;
    for (; c + 16 <= w.cols; c += 16) detail::load_weights<Type>(row, c).store(y + c);
    if constexpr (block_bytes(Type) == 0) {
      if (c == w.cols) return;
      float tail[16];
      detail::load_weights_tail<Type>(row, c, w.cols).store(tail);
      std::copy_n(tail, w.cols - c, y + c);
    }
  });
}

}  // namespace cpu
SPECAGG_END
