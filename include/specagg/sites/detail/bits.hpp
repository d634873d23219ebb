// SPDX-License-Identifier: Apache-2.0
// Bits, bytes and halves, as the codec of rows writes and reads them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <specagg/kernel/math.hpp>

SPECAGG_BEGIN
namespace sites::detail {

using specagg::detail::bit_cast;
using specagg::detail::bits_of;

class bit_writer {
 public:
  explicit bit_writer(std::span<std::uint8_t> to) : to_(to) {}
  void put(std::uint64_t value, int count) {  // count <= 64
    if (count > 32) {
      put(value & 0xffffffffu, 32);
      value >>= 32;
      count -= 32;
    }
    pending_ |= value << held_;
    held_ += count;
    for (; held_ >= 8; held_ -= 8, pending_ >>= 8) flush();
  }
  void put_unary(std::uint64_t value) {  // `value` ones, then a zero
    for (; value >= 32; value -= 32) put(0xffffffffu, 32);
    put((std::uint64_t(1) << value) - 1, int(value) + 1);
  }
  // Returns the number of bytes; `ok` says whether they fitted.
  std::size_t finish() {
    if (held_ > 0) flush();
    return size_;
  }
  bool ok() const { return size_ <= to_.size(); }

 private:
  void flush() {
    if (size_++ < to_.size()) to_[size_ - 1] = std::uint8_t(pending_);
  }
  std::span<std::uint8_t> to_;
  std::size_t size_ = 0;
  std::uint64_t pending_ = 0;
  int held_ = 0;  // < 8 between calls
};

class bit_reader {
 public:
  explicit bit_reader(std::span<const std::uint8_t> from) : from_(from) {}
  std::uint64_t take(int count) {  // count <= 64; 0 after the end
    if (count > 32) {
      const std::uint64_t low = take(32);
      return low | take(count - 32) << 32;
    }
    for (; held_ < count; held_ += 8) {
      pending_ |= std::uint64_t(size_ < from_.size() ? from_[size_] : 0) << held_;
      ++size_;
    }
    const std::uint64_t value = pending_ & ((std::uint64_t(1) << count) - 1);
    pending_ >>= count;
    held_ -= count;
    return value;
  }
  std::uint64_t take_unary(std::uint64_t most) {
    std::uint64_t value = 0;
    while (value <= most && take(1) == 1) ++value;
    return value;
  }
  // True if all bytes were there, and the unused bits of the last byte are 0.
  bool ok() const { return size_ <= from_.size() && pending_ == 0; }
  std::size_t bytes() const { return size_; }

 private:
  std::span<const std::uint8_t> from_;
  std::size_t size_ = 0;
  std::uint64_t pending_ = 0;
  int held_ = 0;
};

// Stores a whole number (for values without ids), lowest byte first.
inline void store_number(std::uint8_t* to, std::uint64_t x, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = std::uint8_t(x >> 8 * i);
}
inline std::uint64_t load_number(const std::uint8_t* from, std::size_t bytes) {
  std::uint64_t x = 0;
  for (std::size_t i = 0; i < bytes; ++i) x |= std::uint64_t(from[i]) << 8 * i;
  return x;
}

// CRC-32C, as of iSCSI. Bytes of which one bit was changed, or any bits within 32, have another.
inline std::uint32_t crc32c(std::span<const std::uint8_t> bytes) {
  static constexpr auto of_byte = [] {
    std::array<std::uint32_t, 256> table = {};
    for (std::uint32_t b = 0; b < 256; ++b) {
      table[b] = b;
      for (int i = 0; i < 8; ++i) table[b] = table[b] >> 1 ^ (table[b] & 1) * 0x82f63b78u;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const std::uint8_t b : bytes) crc = crc >> 8 ^ of_byte[(crc ^ b) & 0xff];
  return ~crc;
}

// Rounds a number of at most 2^15 to a half, ties to even; and the exact value of a half in units
// of 2^-24.
inline constexpr std::uint16_t half_of_top = 0x7800;
inline std::uint16_t half_of(double x) {
  if (x < 0x1p-14) return std::uint16_t(fma(x, 0x1p24, 0x1p52) - 0x1p52);
  const std::uint64_t b = bit_cast<std::uint64_t>(x) - (std::uint64_t(1023 - 15) << 52);
  return std::uint16_t((b + ((std::uint64_t(1) << 41) - 1) + (b >> 42 & 1)) >> 42);
}
inline double units_of_half(std::uint64_t h) {
  return double(h < 0x400 ? h : ((h & 0x3ff) | 0x400) << ((h >> 10) - 1));
}

}  // namespace sites::detail
SPECAGG_END
