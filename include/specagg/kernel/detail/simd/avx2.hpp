// SPDX-License-Identifier: Apache-2.0
// Registers of 256 bits: AVX2 with FMA and F16C. Part of kernel/simd.hpp.
#pragma once
#include <array>

#include <specagg/kernel/detail/simd/sse2.hpp>

#if SPECAGG_ISA_ID == 2 || SPECAGG_ISA_ID == 3
SPECAGG_BEGIN
namespace detail {

SPECAGG_LANE float tree_max(__m256 x) {
  return tree_max(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
SPECAGG_LANE double tree_max(__m256d x) {
  return tree_max(_mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)));
}

#if SPECAGG_ISA_ID == 2
using arch = xsimd::avx2;
SPECAGG_LANE __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
SPECAGG_LANE __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
SPECAGG_LANE __m256 exponent_shift(__m256 t) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}
SPECAGG_LANE __m256d exponent_shift(__m256d t) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(t), 52));
}
SPECAGG_LANE __m256 shift_right_exponent(__m256 t) {
  return _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(t), 23));
}
SPECAGG_LANE __m256d shift_right_exponent(__m256d t) {
  return _mm256_castsi256_pd(_mm256_srli_epi64(_mm256_castpd_si256(t), 52));
}
SPECAGG_LANE std::uint32_t bits_of_lanes(__m256 m) { return std::uint32_t(_mm256_movemask_ps(m)); }
SPECAGG_LANE std::uint32_t bits_of_lanes(__m256d m) { return std::uint32_t(_mm256_movemask_pd(m)); }
SPECAGG_LANE __m256 cleared(__m256 m, __m256 a) { return _mm256_andnot_ps(m, a); }
SPECAGG_LANE __m256d cleared(__m256d m, __m256d a) { return _mm256_andnot_pd(m, a); }
SPECAGG_LANE float tree_add(__m256 x) {
  return tree_add(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
SPECAGG_LANE double tree_add(__m256d x) {
  return tree_add(_mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)));
}
SPECAGG_LANE __m256 wide(const f16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
SPECAGG_LANE void narrow(__m256 x, f16* y) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
SPECAGG_LANE __m256 wide(const bf16* x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16));
}
SPECAGG_LANE __m256 wide_i8(const std::int8_t* x) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
// The lanes whose bits are 1, one after the other, and then anything.
struct lanes_to_pack {
  std::array<std::uint64_t, 256> of = {};  // a byte for each lane
  constexpr lanes_to_pack() {
    for (std::size_t which = 0; which < 256; ++which)
      for (int i = 0, n = 0; i < 8; ++i)
        if (which >> i & 1) of[which] |= std::uint64_t(i) << (8 * n++);
  }
};
inline constexpr lanes_to_pack pack_lanes;
SPECAGG_LANE __m256 packed(__m256 x, std::uint32_t which) {
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&pack_lanes.of[which]));
  return _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(lanes));
}
SPECAGG_LANE __m256d packed(__m256d x, std::uint32_t which) {  // a double as two floats
  const std::uint32_t twice =
      (which & 1) * 3 | (which & 2) * 6 | (which & 4) * 12 | (which & 8) * 24;
  return _mm256_castps_pd(packed(_mm256_castpd_ps(x), twice));
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m256& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+x");
}
SPECAGG_LANE void forbid_contraction([[maybe_unused]] __m256d& x) {
  SPECAGG_FORBID_CONTRACTION(x, "+x");
}
#endif

}  // namespace detail
SPECAGG_END
#endif
