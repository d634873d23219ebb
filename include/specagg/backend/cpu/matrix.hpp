// SPDX-License-Identifier: Apache-2.0
// A matrix of weights as the CPU multiplies it: floats as the file stores them, quantised weights
// repacked.
//
// Repacked weights stand in strips of 16 rows. A strip consists of blocks of 32 columns, from left
// to right. A block has, in this order,
//   one plane (Q4_0, Q4_1) or two (Q8_0) of 4-bit numbers: 256 bytes each. Byte
//             64 g + 4 r + i holds, of row r, the columns 8 g + i (low half) and 8 g + 4 + i
//             (high half)
//   16 scales d, F16, one a row
//   16 minima m, F16, one a row (Q4_1 only)
// An element is
//   q4_0   d (k - 8)
//   q4_1   d k + m
//   q8_0   16 d (h - 8) + d l: the first plane has the high halves h of k + 128, the second the low
//          halves l
// So a machine needs one kernel, for whole numbers from 0 to 15, and one load brings 4 columns of
// 16 rows.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <specagg/backend/cpu/tensor.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>
#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

// A tensor, and its weights repacked if it is quantised and repack() was called. Copies share them.
struct matrix : tensor {
  // ceil(rows / 16) * cols / 32 * packed_block_bytes(type), 64-byte aligned
  std::shared_ptr<const std::byte> strips;
};

// The rows of a strip; bytes and number of the planes of a block; and bytes of a block.
inline constexpr std::size_t strip_rows = 16, plane_bytes = strip_rows * quantised_block / 2;
[[nodiscard]] constexpr std::size_t planes(tensor_type type) {
  return type == tensor_type::q8_0 ? 2 : 1;
}
[[nodiscard]] constexpr std::size_t packed_block_bytes(tensor_type type) {
  return planes(type) * plane_bytes + strip_rows * (type == tensor_type::q4_1 ? 4 : 2);
}

namespace detail {

// The 32 numbers of a block of the file, not negative: k of q4_0 and q4_1, k + 128 of q8_0.
inline void unpack_block(tensor_type type, const std::byte* block, std::uint8_t* k) {
  if (type == tensor_type::q8_0) {
    for (std::size_t i = 0; i < 32; ++i)
      k[i] = std::to_integer<std::uint8_t>(block[2 + i] ^ std::byte{0x80});
    return;
  }
  const std::byte* pairs = block + block_bytes(type) - 16;
  for (std::size_t i = 0; i < 16; ++i) {
    k[i] = std::to_integer<std::uint8_t>(pairs[i] & std::byte{15});
    k[16 + i] = std::to_integer<std::uint8_t>(pairs[i] >> 4);
  }
}

// Writes one row into its place of a plane; k: its 32 numbers of 4 bits.
inline void pack_row(const std::uint8_t* k, std::size_t row, std::byte* plane) {
  for (std::size_t g = 0; g < 4; ++g)
    for (std::size_t i = 0; i < 4; ++i)
      plane[64 * g + 4 * row + i] = static_cast<std::byte>(k[8 * g + i] | k[8 * g + 4 + i] << 4);
}
inline void unpack_row(const std::byte* plane, std::size_t row, std::uint8_t* k) {
  for (std::size_t g = 0; g < 4; ++g)
    for (std::size_t i = 0; i < 4; ++i) {
      const auto pair = std::to_integer<unsigned>(plane[64 * g + 4 * row + i]);
      k[8 * g + i] = pair & 15;
      k[8 * g + 4 + i] = static_cast<std::uint8_t>(pair >> 4);
    }
}

}  // namespace detail

// Repacks a quantised tensor; any other stays as it is. Rows up to the next multiple of 16 are
// zero.
[[nodiscard]] inline matrix repack(const tensor& t) {
  matrix m{t, nullptr};
  const auto in = block_bytes(t.type), out = packed_block_bytes(t.type),
             blocks = t.cols / quantised_block;
  if (in == 0) return m;
  const auto strips = (t.rows + strip_rows - 1) / strip_rows, bytes = strips * blocks * out;
  constexpr std::align_val_t alignment{64};
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(::operator new(bytes, alignment)),
                                    [](std::byte* p) { ::operator delete(p, alignment); });
  auto* to = memory.get();
  for (std::size_t strip = 0; strip < strips; ++strip) {
    const auto rows = std::min(strip_rows, t.rows - strip * strip_rows);
    if (rows < strip_rows) std::fill_n(to, blocks * out, std::byte{0});
    for (std::size_t b = 0; b < blocks; ++b, to += out)
      for (std::size_t r = 0; r < rows; ++r) {
        const auto* from = t.data + ((strip * strip_rows + r) * blocks + b) * in;
        std::uint8_t k[32], high[32];
        detail::unpack_block(t.type, from, k);
        auto* scales = to + planes(t.type) * plane_bytes + 2 * r;
        if (t.type == tensor_type::q8_0) {
          for (std::size_t i = 0; i < 32; ++i) high[i] = k[i] >> 4, k[i] &= 15;
          detail::pack_row(high, r, to);
          detail::pack_row(k, r, to + plane_bytes);
        } else {
          detail::pack_row(k, r, to);
        }
        std::memcpy(scales, from, 2);
        if (t.type == tensor_type::q4_1) std::memcpy(scales + 2 * strip_rows, from + 2, 2);
      }
  }
  m.strips = std::move(memory);
  return m;
}

// One row as floats: exactly as read_row of the tensor gives it.
inline void read_row(const matrix& m, std::size_t r, float* y) {
  if (!m.strips) return read_row(static_cast<const tensor&>(m), r, y);
  const auto blocks = m.cols / quantised_block, size = packed_block_bytes(m.type),
             row = r % strip_rows;
  const auto* block = m.strips.get() + r / strip_rows * blocks * size;
  for (std::size_t b = 0; b < blocks; ++b, block += size, y += quantised_block) {
    const auto half = [&](std::size_t at) {
      std::uint16_t bits;
      std::memcpy(&bits, block + planes(m.type) * plane_bytes + 2 * at, sizeof bits);
      return specagg::detail::float_of_f16(bits);
    };
    const float d = half(row), minimum = m.type == tensor_type::q4_1 ? half(strip_rows + row) : 0;
    std::uint8_t k[32], low[32];
    detail::unpack_row(block, row, k);
    if (m.type == tensor_type::q8_0) detail::unpack_row(block + plane_bytes, row, low);
    for (std::size_t i = 0; i < quantised_block; ++i)
      y[i] = m.type == tensor_type::q4_1   ? specagg::detail::fused(d, float(k[i]), minimum)
             : m.type == tensor_type::q4_0 ? d * float(k[i] - 8)
                                           : d * float(16 * (k[i] - 8) + low[i]);
  }
}

}  // namespace cpu
SPECAGG_END
