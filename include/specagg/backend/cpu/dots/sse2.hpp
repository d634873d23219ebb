// SPDX-License-Identifier: Apache-2.0
// SSE2: it multiplies numbers of 16 bits only, so bytes are widened. Part of backend/cpu/dots.hpp.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if SPECAGG_ISA_ID >= 1 && SPECAGG_ISA_ID <= 3
SPECAGG_BEGIN
namespace cpu::detail {

// On every x86 machine.
SPECAGG_LANE void store_bytes(const float* x, std::int8_t* bytes) {
  const auto four = [&](int i) { return _mm_cvtps_epi32(_mm_loadu_ps(x + i)); };
  const __m128i all =
      _mm_packs_epi16(_mm_packs_epi32(four(0), four(4)), _mm_packs_epi32(four(8), four(12)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), all);
}

#if SPECAGG_ISA_ID == 1
struct dots {
  static constexpr int rows = 4, tokens = 3;
  using bytes = __m128i;
  static SPECAGG_LANE bytes load(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const bytes*>(p));
  }
  static SPECAGG_LANE bytes low(bytes w) { return _mm_and_si128(w, _mm_set1_epi8(15)); }
  static SPECAGG_LANE bytes high(bytes w) { return low(_mm_srli_epi16(w, 4)); }
  // of rows 0 and 1, 2 and 3: columns 0 and 1, columns 2 and 3
  __m128i first = _mm_setzero_si128(), last = first;
  SPECAGG_LANE void add(bytes w, const std::int8_t* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m128i once = _mm_set1_epi32(four),
                  wide = _mm_srai_epi16(_mm_unpacklo_epi8(once, once), 8);
    const __m128i zero = _mm_setzero_si128();
    first = _mm_add_epi32(first, _mm_madd_epi16(_mm_unpacklo_epi8(w, zero), wide));
    last = _mm_add_epi32(last, _mm_madd_epi16(_mm_unpackhi_epi8(w, zero), wide));
  }
  SPECAGG_LANE vec<float, rows> total() const {
    const __m128 a = _mm_castsi128_ps(first), b = _mm_castsi128_ps(last);
    const __m128i even = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88)),
                  odd = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd));
    return vec<float, rows>(_mm_cvtepi32_ps(_mm_add_epi32(even, odd)));
  }
};
struct byte_dots : dots {
  static constexpr int offset = 128;
};
#endif

}  // namespace cpu::detail
SPECAGG_END
#endif
