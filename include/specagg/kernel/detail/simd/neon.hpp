// SPDX-License-Identifier: Apache-2.0
// Registers of 128 bits: NEON on AArch64. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/machine.hpp>

#if SPECAGG_ISA_ID == 4
SPECAGG_BEGIN
namespace detail {

using arch = xsimd::neon64;
SPECAGG_LANE float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}
SPECAGG_LANE float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) {
  return vfmaq_f64(c, a, b);
}
SPECAGG_LANE std::uint32_t bits_of_lanes(uint32x4_t m) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(m, bit));
}
SPECAGG_LANE std::uint32_t bits_of_lanes(uint64x2_t m) {
  const uint64x2_t bit = {1, 2};
  return std::uint32_t(vaddvq_u64(vandq_u64(m, bit)));
}
SPECAGG_LANE float32x4_t exponent_shift(float32x4_t t) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23));
}
SPECAGG_LANE float64x2_t exponent_shift(float64x2_t t) {
  return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(t), 52));
}
SPECAGG_LANE float32x4_t shift_right_exponent(float32x4_t t) {
  return vreinterpretq_f32_u32(vshrq_n_u32(vreinterpretq_u32_f32(t), 23));
}
SPECAGG_LANE float64x2_t shift_right_exponent(float64x2_t t) {
  return vreinterpretq_f64_u64(vshrq_n_u64(vreinterpretq_u64_f64(t), 52));
}
SPECAGG_LANE float tree_add(float32x4_t x) {
  const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
SPECAGG_LANE double tree_add(float64x2_t x) { return vgetq_lane_f64(x, 0) + vgetq_lane_f64(x, 1); }
SPECAGG_LANE float32x4_t root_of(float32x4_t x) { return vsqrtq_f32(x); }
SPECAGG_LANE float64x2_t root_of(float64x2_t x) { return vsqrtq_f64(x); }
SPECAGG_LANE float32x4_t wide(const f16* x) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits)));
}
SPECAGG_LANE void narrow(float32x4_t x, f16* y) {
  vst1_u16(&y->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
SPECAGG_LANE float32x4_t wide(const bf16* x) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&x->bits), 16));
}
SPECAGG_LANE float32x4_t wide_i8(const std::int8_t* x) {
  const std::int32_t y[4] = {x[0], x[1], x[2], x[3]};
  return vcvtq_f32_s32(vld1q_s32(y));
}
// For xsimd's batches. NEON's own maximum and minimum are NaN if one operand is NaN. These return b
// then, as on x86.
SPECAGG_LANE auto lane_max(auto a, auto b) { return xsimd::select(a > b, a, b); }
SPECAGG_LANE auto lane_min(auto a, auto b) { return xsimd::select(a < b, a, b); }
SPECAGG_LANE auto root(auto a) {
  return decltype(a)(root_of(typename decltype(a)::register_type(a)));
}
SPECAGG_LANE float tree_max(float32x4_t x) {
  const float32x2_t lo = vget_low_f32(x), hi = vget_high_f32(x),
                    y = vbsl_f32(vcgt_f32(lo, hi), lo, hi);
  const float a = vget_lane_f32(y, 0), b = vget_lane_f32(y, 1);
  return a > b ? a : b;
}
SPECAGG_LANE double tree_max(float64x2_t x) {
  const double a = vgetq_lane_f64(x, 0), b = vgetq_lane_f64(x, 1);
  return a > b ? a : b;
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] float32x4_t& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+w");
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] float64x2_t& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+w");
}

}  // namespace detail
SPECAGG_END
#endif
