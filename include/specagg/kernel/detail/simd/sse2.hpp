// SPDX-License-Identifier: Apache-2.0
// Registers of 128 bits: SSE2, and the functions that the wider x86 machines share with it.
// xsimd::batch does the rest. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/machine.hpp>

#if SPECAGG_ISA_ID >= 1 && SPECAGG_ISA_ID <= 3
SPECAGG_BEGIN
namespace detail {

// For xsimd's batches. max and min return b if the two are unordered.
SPECAGG_LANE auto lane_max(auto a, auto b) { return xsimd::max(a, b); }
SPECAGG_LANE auto lane_min(auto a, auto b) { return xsimd::min(a, b); }
SPECAGG_LANE auto root(auto a) { return xsimd::sqrt(a); }

// reduce_add and reduce_max are fixed trees: lane i with lane i + N/2, then the same on the half,
// and so on.
SPECAGG_LANE float tree_add(__m128 x) {
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
SPECAGG_LANE double tree_add(__m128d x) {
  return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}
SPECAGG_LANE float tree_max(__m128 x) {
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
SPECAGG_LANE double tree_max(__m128d x) {
  return _mm_cvtsd_f64(_mm_max_sd(x, _mm_unpackhi_pd(x, x)));
}

#if SPECAGG_ISA_ID == 1
using arch = xsimd::sse2;
// a * b + c with one rounding.
#if defined(__FMA__)
SPECAGG_LANE __m128 fused(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
SPECAGG_LANE __m128d fused(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m128& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+x");
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m128d& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+x");
}
#else
// The functions of number.hpp, for all lanes. fma_instruction may be called only if
// machine_has_fma() (registers.hpp tests it).
#if SPECAGG_ASKS_FOR_FMA
SPECAGG_LANE __m128 fma_instruction(__m128 a, __m128 b, __m128 c) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
SPECAGG_LANE __m128d fma_instruction(__m128d a, __m128d b, __m128d c) {
  asm("vfmadd231pd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
#endif
SPECAGG_OUTLINE __m128 fused_by_odd(__m128 a, __m128 b, __m128 c) {
  float x[4], y[4], z[4];
  _mm_storeu_ps(x, a);
  _mm_storeu_ps(y, b);
  _mm_storeu_ps(z, c);
  return _mm_set_ps(fused_by_odd(x[3], y[3], z[3]), fused_by_odd(x[2], y[2], z[2]),
                    fused_by_odd(x[1], y[1], z[1]), fused_by_odd(x[0], y[0], z[0]));
}
SPECAGG_LANE __m128 fused(__m128 a, __m128 b, __m128 c) {
  const __m128 ah = _mm_movehl_ps(a, a), bh = _mm_movehl_ps(b, b), ch = _mm_movehl_ps(c, c);
  const __m128d lo = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c));
  const __m128d hi = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(ah), _mm_cvtps_pd(bh)), _mm_cvtps_pd(ch));
  // may_round_twice; high - 1 and what it is compared with, both less 2^31: a signed comparison
  const __m128 s = _mm_castpd_ps(lo), t = _mm_castpd_ps(hi);
  const __m128i low = _mm_and_si128(_mm_castps_si128(_mm_shuffle_ps(s, t, 0x88)),
                                    _mm_set1_epi32(int(bits_below_float)));
  const __m128i high = _mm_and_si128(_mm_castps_si128(_mm_shuffle_ps(s, t, 0xdd)),
                                     _mm_set1_epi32(int(without_sign)));
  const __m128i tie = _mm_cmpeq_epi32(low, _mm_set1_epi32(int(half_way)));
  const __m128i tiny = _mm_cmplt_epi32(_mm_add_epi32(high, _mm_set1_epi32(0x7fffffff)),
                                       _mm_set1_epi32(int(least_normal_float - 1 - 0x80000000u)));
  if (_mm_movemask_epi8(_mm_or_si128(tie, tiny)) != 0) return fused_by_odd(a, b, c);
  return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}
SPECAGG_LANE __m128d fused(__m128d a, __m128d b, __m128d c) {
  return _mm_set_pd(
      std::fma(_mm_cvtsd_f64(_mm_unpackhi_pd(a, a)), _mm_cvtsd_f64(_mm_unpackhi_pd(b, b)),
               _mm_cvtsd_f64(_mm_unpackhi_pd(c, c))),
      std::fma(_mm_cvtsd_f64(a), _mm_cvtsd_f64(b), _mm_cvtsd_f64(c)));
}
#if defined(__FMA4__)
SPECAGG_LANE void forbid_contraction(__m128& x) { SPECAGG_FORBID_CONTRACTION(x, "+x"); }
SPECAGG_LANE void forbid_contraction(__m128d& x) { SPECAGG_FORBID_CONTRACTION(x, "+x"); }
#else
SPECAGG_LANE void forbid_contraction(__m128&) {}  // no fused instruction exists here
SPECAGG_LANE void forbid_contraction(__m128d&) {}
#endif
#endif
SPECAGG_LANE std::uint32_t bits_of_lanes(__m128 m) { return std::uint32_t(_mm_movemask_ps(m)); }
SPECAGG_LANE std::uint32_t bits_of_lanes(__m128d m) { return std::uint32_t(_mm_movemask_pd(m)); }
SPECAGG_LANE __m128 cleared(__m128 m, __m128 a) { return _mm_andnot_ps(m, a); }
SPECAGG_LANE __m128d cleared(__m128d m, __m128d a) { return _mm_andnot_pd(m, a); }
SPECAGG_LANE __m128 exponent_shift(__m128 t) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(t), 23));
}
SPECAGG_LANE __m128d exponent_shift(__m128d t) {
  return _mm_castsi128_pd(_mm_slli_epi64(_mm_castpd_si128(t), 52));
}
SPECAGG_LANE __m128 shift_right_exponent(__m128 t) {
  return _mm_castsi128_ps(_mm_srli_epi32(_mm_castps_si128(t), 23));
}
SPECAGG_LANE __m128d shift_right_exponent(__m128d t) {
  return _mm_castsi128_pd(_mm_srli_epi64(_mm_castpd_si128(t), 52));
}
// As float_of_f16, without branches.
SPECAGG_LANE __m128 wide(const f16* x) {
  const __m128i h =
      _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)), _mm_setzero_si128());
  const __m128i rest = _mm_and_si128(h, _mm_set1_epi32(0x7fff));
  const __m128i subnormal = _mm_cmplt_epi32(rest, _mm_set1_epi32(0x400)),
                special = _mm_cmpgt_epi32(rest, _mm_set1_epi32(0x7bff)),
                nan = _mm_cmpgt_epi32(rest, _mm_set1_epi32(0x7c00));
  const __m128i normal = _mm_add_epi32(_mm_slli_epi32(rest, 13), _mm_set1_epi32(0x38000000));
  const __m128i least = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(rest), _mm_set1_ps(0x1p-24f)));
  const __m128i sign = _mm_slli_epi32(_mm_xor_si128(h, rest), 16);
  const __m128i raised = _mm_or_si128(_mm_and_si128(special, _mm_set1_epi32(0x7f800000)),
                                      _mm_and_si128(nan, _mm_set1_epi32(0x400000)));
  return _mm_castsi128_ps(_mm_or_si128(
      _mm_or_si128(sign, raised),
      _mm_or_si128(_mm_and_si128(subnormal, least), _mm_andnot_si128(subnormal, normal))));
}
SPECAGG_LANE void narrow(__m128 x, f16* y) {
  float z[4];
  _mm_storeu_ps(z, x);
  for (int i = 0; i < 4; ++i) y[i] = f16_of_float(z[i]);
}
SPECAGG_LANE __m128 wide(const bf16* x) {
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(),
                                             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
SPECAGG_LANE __m128 wide_i8(const std::int8_t* x) { return _mm_set_ps(x[3], x[2], x[1], x[0]); }
#endif

}  // namespace detail
SPECAGG_END
#endif
