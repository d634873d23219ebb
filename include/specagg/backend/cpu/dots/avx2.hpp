// SPDX-License-Identifier: Apache-2.0
// AVX2: two products a lane of 16 bits. Part of backend/cpu/dots.hpp.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if SPECAGG_ISA_ID == 2
SPECAGG_BEGIN
namespace cpu::detail {

struct dots {
  static constexpr int rows = 8, tokens = 5;
  using bytes = __m256i;
  static SPECAGG_LANE bytes load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const bytes*>(p));
  }
  static SPECAGG_LANE bytes low(bytes w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static SPECAGG_LANE bytes high(bytes w) { return low(_mm256_srli_epi16(w, 4)); }
  __m256i sums = _mm256_setzero_si256();
  SPECAGG_LANE void add(bytes w, const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, _mm256_set1_epi32(four)));
  }
  SPECAGG_LANE vec<float, rows> total() const {
    return vec<float, rows>(_mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1))));
  }
};

struct byte_dots {
  static constexpr int rows = dots::rows, offset = 0;
  using bytes = __m256i;
  static SPECAGG_LANE bytes load(const std::byte* p) {  // k
    return _mm256_xor_si256(dots::load(p), _mm256_set1_epi8(-128));
  }
  __m256i sums = _mm256_setzero_si256();
  // |k| times x with the sign of k: two products, at most 2 128 127, are within 16 bits.
  SPECAGG_LANE void add(bytes k, const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i two =
        _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(_mm256_set1_epi32(four), k));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
  }
  SPECAGG_LANE vec<float, rows> total() const { return vec<float, rows>(_mm256_cvtepi32_ps(sums)); }
};

}  // namespace cpu::detail
SPECAGG_END
#endif
