// SPDX-License-Identifier: Apache-2.0
// Machines without known vector registers. The compiler may use vectors for these loops. Part of
// backend/cpu/dots.hpp.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if SPECAGG_ISA_ID == 0
SPECAGG_BEGIN
namespace cpu::detail {

SPECAGG_LANE void store_bytes(const float* x, std::int8_t* bytes) {
  for (int i = 0; i < 16; ++i) bytes[i] = std::int8_t(x[i]);
}

struct dots {
  static constexpr int rows = 16, tokens = 2;
  struct bytes {
    std::uint8_t k[4 * rows];
  };
  static SPECAGG_LANE bytes load(const std::byte* p) {
    bytes w;
    std::memcpy(&w, p, sizeof w);
    return w;
  }
  static SPECAGG_LANE bytes low(bytes w) {
    for (auto& k : w.k) k &= 15;
    return w;
  }
  static SPECAGG_LANE bytes high(bytes w) {
    for (auto& k : w.k) k >>= 4;
    return w;
  }
  std::int32_t sums[rows] = {};
  SPECAGG_LANE void add(const bytes& w, const std::int8_t* x) {
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < 4; ++i) sums[r] += w.k[4 * r + i] * x[i];
  }
  SPECAGG_LANE vec<float, rows> total() const {
    float y[rows];
    for (int r = 0; r < rows; ++r) y[r] = float(sums[r]);
    return vec<float, rows>::load(y);
  }
};
struct byte_dots : dots {
  static constexpr int offset = 128;
};

}  // namespace cpu::detail
SPECAGG_END
#endif
