// SPDX-License-Identifier: Apache-2.0
// Registers of 512 bits: AVX-512 F, CD, BW, DQ and VL. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/avx2.hpp>

#if SPECAGG_ISA_ID == 3
SPECAGG_BEGIN
namespace detail {

using arch = xsimd::avx512bw;
SPECAGG_LANE __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
SPECAGG_LANE __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
SPECAGG_LANE __m512 exponent_shift(__m512 t) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
}
SPECAGG_LANE __m512d exponent_shift(__m512d t) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(t), 52));
}
SPECAGG_LANE std::uint32_t bits_of_lanes(std::uint32_t m) { return m; }
SPECAGG_LANE __m512 scaled(__m512 y, __m512 n) { return _mm512_scalef_ps(y, n); }
SPECAGG_LANE __m512d scaled(__m512d y, __m512d n) { return _mm512_scalef_pd(y, n); }
SPECAGG_LANE __m512 shift_right_exponent(__m512 t) {
  return _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(t), 23));
}
SPECAGG_LANE __m512d shift_right_exponent(__m512d t) {
  return _mm512_castsi512_pd(_mm512_srli_epi64(_mm512_castpd_si512(t), 52));
}
SPECAGG_LANE float tree_add(__m512 x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
SPECAGG_LANE double tree_add(__m512d x) {
  const __m256d y = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
  const __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
  return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}
SPECAGG_LANE float tree_max(__m512 x) {
  return tree_max(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
SPECAGG_LANE double tree_max(__m512d x) {
  return tree_max(_mm256_max_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1)));
}
SPECAGG_LANE __m512 partial(const float* x, int n, float fill) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << n) - 1), x);
}
SPECAGG_LANE __m512d partial(const double* x, int n, double fill) {
  return _mm512_mask_loadu_pd(_mm512_set1_pd(fill), __mmask8((1u << n) - 1), x);
}
SPECAGG_LANE __m512 wide(const f16* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
SPECAGG_LANE void narrow(__m512 x, f16* y) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                      _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT));
}
SPECAGG_LANE __m512 wide(const bf16* x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16));
}
SPECAGG_LANE __m512 wide_i8(const std::int8_t* x) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
SPECAGG_LANE __m512 packed(__m512 x, std::uint32_t which) {
  return _mm512_maskz_compress_ps(__mmask16(which), x);
}
SPECAGG_LANE __m512d packed(__m512d x, std::uint32_t which) {
  return _mm512_maskz_compress_pd(__mmask8(which), x);
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m512& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+v");
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m512d& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+v");
}

}  // namespace detail
SPECAGG_END
#endif
