// SPDX-License-Identifier: Apache-2.0
// AVX-512, with VNNI (four products a lane in one instruction) or without. Part of
// backend/cpu/dots.hpp.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if SPECAGG_ISA_ID == 3
SPECAGG_BEGIN
namespace cpu::detail {

struct dots {
#if defined(__AVX512VNNI__)
  static constexpr int rows = 16, tokens = 12;
#else
  static constexpr int rows = 16, tokens = 7;
#endif
  using bytes = __m512i;
  static SPECAGG_LANE bytes load(const std::byte* p) { return _mm512_loadu_si512(p); }
  static SPECAGG_LANE bytes low(bytes w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static SPECAGG_LANE bytes high(bytes w) { return low(_mm512_srli_epi16(w, 4)); }
  __m512i sums = _mm512_setzero_si512();
#if defined(__AVX512VNNI__)
  SPECAGG_LANE void add(bytes w, const std::int8_t* x) {
#if defined(__GNUC__) && !defined(__clang__)
    // g++ 12 would spend an instruction of its own on loading the four numbers.
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sums)
        : "v"(w), "m"(*reinterpret_cast<const four*>(x)));
#else
    sums = _mm512_dpbusd_epi32(sums, w, all_lanes(x));
#endif
  }
  SPECAGG_LANE vec<float, rows> total() const { return vec<float, rows>(_mm512_cvtepi32_ps(sums)); }
#else
  SPECAGG_LANE void add(bytes w, const std::int8_t* x) {
    sums = _mm512_add_epi16(sums, _mm512_maddubs_epi16(w, all_lanes(x)));
  }
  SPECAGG_LANE vec<float, rows> total() const {
    return vec<float, rows>(_mm512_cvtepi32_ps(_mm512_madd_epi16(sums, _mm512_set1_epi16(1))));
  }
#endif

 protected:
  struct four {
    std::int8_t x[4];
  };
  static SPECAGG_LANE __m512i all_lanes(const std::int8_t* x) {
    std::int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return _mm512_set1_epi32(bits);
  }
};

#if defined(__AVX512VNNI__)
struct byte_dots : dots {
  static constexpr int offset = 128;
};
#else
struct byte_dots : dots {
  static constexpr int offset = 0;
  static SPECAGG_LANE bytes load(const std::byte* p) {  // k
    return _mm512_xor_si512(dots::load(p), _mm512_set1_epi8(-128));
  }
  // |k| times x with the sign of k: two products, at most 2 128 127, are within 16 bits.
  SPECAGG_LANE void add(bytes k, const std::int8_t* x) {
    const __m512i four = all_lanes(x), zero = _mm512_setzero_si512(),
                  two = _mm512_maddubs_epi16(
                      _mm512_abs_epi8(k),
                      _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(k), zero, four));
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(two, _mm512_set1_epi16(1)));
  }
  SPECAGG_LANE vec<float, rows> total() const { return vec<float, rows>(_mm512_cvtepi32_ps(sums)); }
};
#endif

}  // namespace cpu::detail
SPECAGG_END
#endif
