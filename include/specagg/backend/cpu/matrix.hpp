// SPDX-License-Identifier: Apache-2.0
// A matrix of weights as the CPU multiplies it: floats as the file stores them, quantised weights
// repacked.
//
// Repacked weights stand in strips of 16 rows. A strip consists of blocks of 32 columns, from left
// to right. A block has, in this order,
//   the numbers k: Q4_0, Q4_1  256 bytes. Byte 64 g + 4 r + i has, of row r, the columns 8 g + i
//                              (low half) and 8 g + 4 + i (high half)
//                  Q8_0        512 bytes. Byte 64 g + 4 r + i is k + 128 of row r, column 4 g + i
//   16 scales d, F16, one a row
//   16 minima m, F16, one a row (Q4_1 only)
// So one load brings 4 columns, or 8 of 4 bits, of 16 rows. tensor.hpp defines the elements.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include <specagg/backend/cpu/large_memory.hpp>
#include <specagg/backend/cpu/tensor.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>

SPECAGG_BEGIN
namespace cpu {

// A tensor, and its weights repacked if it is quantised and repack() was called. Copies share the
// repacked weights.
struct matrix : tensor {
  std::shared_ptr<const std::byte> strips;  // packed_bytes() bytes, 64-byte aligned
};

// The rows of a strip; bytes of the numbers of a block; and bytes of a block.
inline constexpr std::size_t strip_rows = 16;
[[nodiscard]] constexpr std::size_t number_bytes(tensor_type type) {
  return strip_rows * quantised_block / (type == tensor_type::q8_0 ? 1 : 2);
}
[[nodiscard]] constexpr std::size_t packed_block_bytes(tensor_type type) {
  return number_bytes(type) + strip_rows * (type == tensor_type::q4_1 ? 4 : 2);
}
// Bytes of a tensor's strips; 0 if it is not quantised.
[[nodiscard]] constexpr std::size_t packed_bytes(const tensor& t) {
  if (block_bytes(t.type) == 0) return 0;
  return (t.rows + strip_rows - 1) / strip_rows * (t.cols / quantised_block) *
         packed_block_bytes(t.type);
}

// Memory for the strips of several matrices: one piece (large_memory.hpp).
class strip_memory {
 public:
  // bytes: the sum of room_for() all matrices.
  explicit strip_memory(std::size_t bytes) : all_(large_memory(bytes)) {}
  // Bytes that take() takes.
  [[nodiscard]] static std::size_t room_for(const tensor& t) {
    return (packed_bytes(t) + 63) / 64 * 64;
  }
  // The next piece, for this tensor.
  [[nodiscard]] std::shared_ptr<std::byte> take(const tensor& t) {
    auto* const piece = all_.get() + used_;
    used_ += room_for(t);
    return {all_, piece};
  }

 private:
  std::shared_ptr<std::byte> all_;
  std::size_t used_ = 0;
};

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

// Writes one row into its place of a block, or reads it; k: its 32 numbers, as unpack_block() has
// them.
inline void pack_row(tensor_type type, const std::uint8_t* k, std::size_t row, std::byte* numbers) {
  for (std::size_t g = 0; g < number_bytes(type) / 64; ++g)
    for (std::size_t i = 0; i < 4; ++i)
      numbers[64 * g + 4 * row + i] =
          type == tensor_type::q8_0 ? std::byte{k[4 * g + i]}
                                    : static_cast<std::byte>(k[8 * g + i] | k[8 * g + 4 + i] << 4);
}
inline void unpack_row(tensor_type type, const std::byte* numbers, std::size_t row,
                       std::uint8_t* k) {
  for (std::size_t g = 0; g < number_bytes(type) / 64; ++g)
    for (std::size_t i = 0; i < 4; ++i) {
      const auto byte = std::to_integer<std::uint8_t>(numbers[64 * g + 4 * row + i]);
      if (type == tensor_type::q8_0) {
        k[4 * g + i] = byte;
        continue;
      }
      k[8 * g + i] = byte & 15;
      k[8 * g + 4 + i] = std::uint8_t(byte >> 4);
    }
}

}  // namespace detail

// Repacks a quantised tensor into the next piece of `memory`; any other stays as it is. Rows up to
// the next multiple of 16 are zero.
[[nodiscard]] inline matrix repack(const tensor& t, strip_memory& memory) {
  matrix m{t, nullptr};
  const auto in = block_bytes(t.type), out = packed_block_bytes(t.type),
             blocks = t.cols / quantised_block;
  if (in == 0) return m;
  const auto strips = (t.rows + strip_rows - 1) / strip_rows;
  auto packed = memory.take(t);
  auto* to = packed.get();
  for (std::size_t strip = 0; strip < strips; ++strip) {
    const auto rows = std::min(strip_rows, t.rows - strip * strip_rows);
    if (rows < strip_rows) std::fill_n(to, blocks * out, std::byte{0});
    for (std::size_t b = 0; b < blocks; ++b, to += out)
      for (std::size_t r = 0; r < rows; ++r) {
        const auto* from = t.data + ((strip * strip_rows + r) * blocks + b) * in;
        std::uint8_t k[32];
        detail::unpack_block(t.type, from, k);
        detail::pack_row(t.type, k, r, to);
        auto* scales = to + number_bytes(t.type) + 2 * r;
        std::memcpy(scales, from, 2);
        if (t.type == tensor_type::q4_1) std::memcpy(scales + 2 * strip_rows, from + 2, 2);
      }
  }
  m.strips = std::move(packed);
  return m;
}
[[nodiscard]] inline matrix repack(const tensor& t) {
  strip_memory memory(strip_memory::room_for(t));
  return repack(t, memory);
}

// One row as floats: exactly as read_row of the tensor gives it.
inline void read_row(const matrix& m, std::size_t r, float* y) {
  if (!m.strips) return read_row(static_cast<const tensor&>(m), r, y);
  const auto blocks = m.cols / quantised_block, size = packed_block_bytes(m.type),
             row = r % strip_rows;
  const auto* block = m.strips.get() + r / strip_rows * blocks * size;
  for (std::size_t b = 0; b < blocks; ++b, block += size, y += quantised_block) {
    const auto half = [&](std::size_t at) {
      return detail::half_at(block + number_bytes(m.type) + 2 * at);
    };
    const float d = half(row), minimum = m.type == tensor_type::q4_1 ? half(strip_rows + row) : 0;
    std::uint8_t k[32];
    detail::unpack_row(m.type, block, row, k);
    for (std::size_t i = 0; i < quantised_block; ++i)
      y[i] = m.type == tensor_type::q4_1
                 ? specagg::detail::fused(d, float(k[i]), minimum)
                 : d * float(k[i] - (m.type == tensor_type::q4_0 ? 8 : 128));
  }
}

}  // namespace cpu
SPECAGG_END
