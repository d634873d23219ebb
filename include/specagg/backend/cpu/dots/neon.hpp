// SPDX-License-Identifier: Apache-2.0
// NEON on AArch64: one product a lane of 16 bits. Part of backend/cpu/dots.hpp.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if SPECAGG_ISA_ID == 4
SPECAGG_BEGIN
namespace cpu::detail {

SPECAGG_LANE void store_bytes(const float* x, std::int8_t* bytes) {
  const auto four = [&](int i) { return vmovn_s32(vcvtq_s32_f32(vld1q_f32(x + i))); };
  const int16x8_t first = vcombine_s16(four(0), four(4)), last = vcombine_s16(four(8), four(12));
  vst1q_s8(bytes, vcombine_s8(vmovn_s16(first), vmovn_s16(last)));
}

struct dots {
  static constexpr int rows = 4, tokens = 8;
  using bytes = uint8x16_t;
  static SPECAGG_LANE bytes load(const std::byte* p) {
    return vld1q_u8(reinterpret_cast<const std::uint8_t*>(p));
  }
  static SPECAGG_LANE bytes low(bytes w) { return vandq_u8(w, vdupq_n_u8(15)); }
  static SPECAGG_LANE bytes high(bytes w) { return vshrq_n_u8(w, 4); }
  // of rows 0 and 1, 2 and 3: each column by itself
  int16x8_t first = vdupq_n_s16(0), last = first;
  SPECAGG_LANE void add(bytes w, const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    const int8x8_t twice = vreinterpret_s8_s32(vdup_n_s32(four));
    const int8x16_t weights = vreinterpretq_s8_u8(w);
    first = vmlal_s8(first, vget_low_s8(weights), twice);
    last = vmlal_s8(last, vget_high_s8(weights), twice);
  }
  SPECAGG_LANE vec<float, rows> total() const {
    return vec<float, rows>(vcvtq_f32_s32(vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(last))));
  }
};

struct byte_dots {
  static constexpr int rows = dots::rows, offset = 0;
  using bytes = int8x16_t;
  static SPECAGG_LANE bytes load(const std::byte* p) {  // k
    return vreinterpretq_s8_u8(veorq_u8(dots::load(p), vdupq_n_u8(128)));
  }
  // of rows 0 and 1, 2 and 3: columns 0 and 1, columns 2 and 3
  int32x4_t first = vdupq_n_s32(0), last = first;
  SPECAGG_LANE void add(bytes k, const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    const int8x8_t twice = vreinterpret_s8_s32(vdup_n_s32(four));
    first = vpadalq_s16(first, vmull_s8(vget_low_s8(k), twice));
    last = vpadalq_s16(last, vmull_s8(vget_high_s8(k), twice));
  }
  SPECAGG_LANE vec<float, rows> total() const {
    return vec<float, rows>(vcvtq_f32_s32(vpaddq_s32(first, last)));
  }
};

}  // namespace cpu::detail
SPECAGG_END
#endif
