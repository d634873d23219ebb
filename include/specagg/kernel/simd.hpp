// SPDX-License-Identifier: Apache-2.0
// vec<T, N>: N lanes of float or double with the same bits on every instruction set. The only header that names xsimd.
//
// The library computes on vec<T, 16> whatever the machine has: 1 x 512, 2 x 256 or 4 x 128 bits, or 16 scalars. A wide
// vec is a pair of halves, recursively (compilers keep such pairs in registers; arrays of registers they spill). Every
// operation here is exactly rounded (IEEE 754: + - * / sqrt fma) or moves bits, so lanes agree everywhere. One thing is
// left to whoever writes formulas with it: where a product meets a sum, write fma(a, b, c). A plain a * b + c may or
// may not be contracted by the compiler, and then the bits depend on its flags. (What rows hand out and what reductions
// take is settled: a product there stays a product.)
#pragma once
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include <specagg/config.hpp>
#include <specagg/half.hpp>

#define SPECAGG_ISA_ID_scalar 0
#define SPECAGG_ISA_ID_sse2 1
#define SPECAGG_ISA_ID_sse2_avx 1
#define SPECAGG_ISA_ID_sse2_fma 1
#define SPECAGG_ISA_ID_avx2 2
#define SPECAGG_ISA_ID_avx512 3
#define SPECAGG_ISA_ID_neon 4
#define SPECAGG_CAT_(a, b) a##b
#define SPECAGG_CAT(a, b) SPECAGG_CAT_(a, b)
#define SPECAGG_ISA_ID SPECAGG_CAT(SPECAGG_ISA_ID_, SPECAGG_ISA)

// g++ 12 takes the undefined operand of its own AVX-512 intrinsics for ours.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if SPECAGG_ISA_ID >= 1 && SPECAGG_ISA_ID <= 3
#include <immintrin.h>
#elif SPECAGG_ISA_ID == 4
#include <arm_neon.h>
#endif
#if SPECAGG_ISA_ID != 0
#include <xsimd/xsimd.hpp>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

SPECAGG_BEGIN

// The instruction set this translation unit was compiled for: "avx512", "avx2", "sse2", "neon" or "scalar".
inline constexpr const char* instruction_set = SPECAGG_STRING(SPECAGG_ISA);

namespace detail {

template <class T>
using bits_of = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
template <class T>
inline constexpr int mantissa_bits = std::numeric_limits<T>::digits - 1;

template <class To, class From>
SPECAGG_FUNCTION SPECAGG_INLINE To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// round(a * b + c) without the instruction: the product is exact in double, the sum is rounded to odd there (truncate,
// then set the last bit if anything was lost), and a double rounded to odd rounds to float correctly because it has
// more than two bits to spare (Boldo & Melquiond 2008). A call, as are the fused of sse2 below: inlined everywhere they
// would double the code and the time to compile it, for a tenth of the time to run.
SPECAGG_FUNCTION SPECAGG_OUTLINE float emulated_fused(float a, float b, float c) {
  const double p = double(a) * double(b), z = double(c), s = p + z;
  const double zz = s - p, e = (p - (s - zz)) + (z - zz);  // s + e == p + z exactly (Knuth's two-sum)
  if (!(e > 0) && !(e < 0)) return float(s);
  const auto away = (bit_cast<std::uint64_t>(e) ^ bit_cast<std::uint64_t>(s)) >> 63;
  return float(bit_cast<double>((bit_cast<std::uint64_t>(s) - away) | 1));
}

// round(a * b + c), rounded once.
SPECAGG_FUNCTION SPECAGG_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return emulated_fused(a, b, c);
#endif
}
SPECAGG_FUNCTION SPECAGG_INLINE double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);  // the C library's is exact where the hardware has none
#endif
}

// The value as rounded: a compiler may not fuse the operation that made x into the one that uses it. Costs nothing.
SPECAGG_FUNCTION SPECAGG_INLINE void settle_scalar([[maybe_unused]] auto& x) {
#if defined(__CUDA_ARCH__)
  // Of a vec it always is: its operators are intrinsics, which are never fused. (ptxas would look through an asm.)
#elif defined(__FMA__) || defined(__FMA4__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#elif !defined(__x86_64__) && !defined(__i386__)  // those have nothing to fuse with
  asm("" : "+m"(x));
#endif
}

// Exact: every half and every bfloat16 is a float. A signalling NaN comes out quiet.
SPECAGG_FUNCTION SPECAGG_INLINE float float_of_f16(std::uint16_t h) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));  // but a NaN's payload is lost there
  return x;
#else
  const std::uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  const std::uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
  if (rest >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | quiet);
  if (rest >= 0x400u) return bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  const float magnitude = float(rest) * 0x1p-24f;  // subnormal half
  return sign ? -magnitude : magnitude;
#endif
}
SPECAGG_FUNCTION SPECAGG_INLINE float float_of_bf16(std::uint16_t h) { return bit_cast<float>(std::uint32_t(h) << 16); }

// A stored number as the number it is computed with.
SPECAGG_FUNCTION SPECAGG_INLINE float number(f16 h) { return float_of_f16(h.bits); }
SPECAGG_FUNCTION SPECAGG_INLINE float number(bf16 h) { return float_of_bf16(h.bits); }
SPECAGG_FUNCTION SPECAGG_INLINE float number(float x) { return x; }
SPECAGG_FUNCTION SPECAGG_INLINE double number(double x) { return x; }
// And back: the nearest number of S, of two as near the even one. Rounded once: by way of a float it would be twice.
template <class S>
SPECAGG_INLINE S stored(double x) {
  if constexpr (std::is_floating_point_v<S>) {
    return S(x);
  } else {
    constexpr bool half = std::is_same_v<S, f16>;
    constexpr int digits = half ? 10 : 7,
                  lowest = half ? -14 : -126;  // of the fraction; the exponent of normal numbers
    constexpr std::uint32_t infinity = half ? 0x7c00 : 0x7f80;
    const std::uint64_t bits = bit_cast<std::uint64_t>(x), rest = bits << 1 >> 1;
    const auto sign = std::uint32_t(bits >> 48 & 0x8000u);
    if (rest > 0x7ff0000000000000u) return S{std::uint16_t(sign | infinity | 1u << (digits - 1))};
    const int e = int(rest >> 52) - 1023, exponent = e < lowest ? lowest : e;
    if (exponent > (half ? 15 : 127)) return S{std::uint16_t(sign | infinity)};
    // How often the last place goes into |x|, to the nearest: a carry reaches the exponent, and infinity, by itself.
    const double place = bit_cast<double>(std::uint64_t(1023 + exponent - digits) << 52);
    const double magnitude = bit_cast<double>(rest) / place;  // exact
    auto count = std::uint32_t(magnitude);
    const double over = magnitude - double(count);
    if (over > 0.5 || (over == 0.5 && count % 2 == 1)) ++count;
    return S{std::uint16_t(sign | ((std::uint32_t(exponent - lowest) << digits) + count))};
  }
}

// Lanes in one register of this machine.
template <class T>
inline constexpr int native_lanes =
#if SPECAGG_ISA_ID == 0
    1;
#elif SPECAGG_ISA_ID == 3
    64 / sizeof(T);
#elif SPECAGG_ISA_ID == 2
    32 / sizeof(T);
#else
    16 / sizeof(T);
#endif

}  // namespace detail

#if defined(__GNUC__) && !defined(__clang__)  // g++ 12 sees whole-vector loads of short arrays in branches never taken
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Warray-bounds"
#endif

template <class T, int N>
struct mask;
template <class T, int N>
struct vec;

// ---- one lane: plain arithmetic, also the form used inside a CUDA block -------------------------------------------

template <class T>
struct mask<T, 1> {
  bool m;
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator&(mask a, mask b) { return {a.m && b.m}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator|(mask a, mask b) { return {a.m || b.m}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator!(mask a) { return {!a.m}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE bool any(mask a) { return a.m; }
};

template <class T>
struct vec<T, 1> {
  using value_type = T;
  using mask_type = mask<T, 1>;
  static constexpr int lanes = 1;
  T v;

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_FUNCTION SPECAGG_INLINE vec(S s) : v(static_cast<T>(s)) {}
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_INLINE vec load(const S* x) {
    return detail::number(*x);
  }
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_INLINE vec load_partial(const S* x, int n, T fill) {
    return n > 0 ? detail::number(*x) : fill;
  }
  static SPECAGG_INLINE vec load_i8(const std::int8_t* x) { return *x; }
  SPECAGG_FUNCTION static SPECAGG_INLINE vec iota(T first) { return first; }
  SPECAGG_FUNCTION SPECAGG_INLINE void store(T* x) const { *x = v; }

#if defined(__CUDA_ARCH__)  // the intrinsics are never contracted, whatever -fmad says
#define SPECAGG_SCALAR_OP(op, f32, f64)                                     \
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator op(vec a, vec b) {    \
    if constexpr (sizeof(T) == 4) return f32(a.v, b.v);                     \
    else return f64(a.v, b.v);                                              \
  }
#else
#define SPECAGG_SCALAR_OP(op, f32, f64) \
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator op(vec a, vec b) { return a.v op b.v; }
#endif
  SPECAGG_SCALAR_OP(+, __fadd_rn, __dadd_rn)
  SPECAGG_SCALAR_OP(-, __fsub_rn, __dsub_rn)
  SPECAGG_SCALAR_OP(*, __fmul_rn, __dmul_rn)
  SPECAGG_SCALAR_OP(/, __fdiv_rn, __ddiv_rn)
#undef SPECAGG_SCALAR_OP
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator-(vec a) { return -a.v; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator<(vec a, vec b) { return {a.v < b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator<=(vec a, vec b) { return {a.v <= b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator>(vec a, vec b) { return {a.v > b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator>=(vec a, vec b) { return {a.v >= b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator==(vec a, vec b) { return {a.v == b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec select(mask_type m, vec a, vec b) { return m.m ? a : b; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec zero_where(mask_type m, vec a) { return m.m ? 0 : a.v; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec max(vec a, vec b) { return a.v > b.v ? a : b; }  // unordered: b
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec min(vec a, vec b) { return a.v < b.v ? a : b; }  // unordered: b
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec abs(vec a) { return a.v < 0 ? -a.v : a.v + 0; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec sqrt(vec a) { return T(std::sqrt(a.v)); }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec fma(vec a, vec b, vec c) { return detail::fused(a.v, b.v, c.v); }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec settled(vec a) {
    detail::settle_scalar(a.v);
    return a;
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE T reduce_add(vec a) { return a.v; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE T reduce_max(vec a) { return a.v; }

  // Bit moves behind exp and log. shift_to_exponent: the low bits of t become the exponent of a power of two.
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec shift_to_exponent(vec t) {
    using B = detail::bits_of<T>;
    return detail::bit_cast<T>(B(detail::bit_cast<B>(t.v) << detail::mantissa_bits<T>));
  }
  // y 2^n for an integer n, given also as shift_to_exponent's t. Exact if the result is normal.
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec times_exp2(vec y, vec /*n*/, vec t) { return y * shift_to_exponent(t); }
  // The biased exponent of a positive normal x as a number, and x with that exponent replaced by 1's: in [1, 2).
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec exponent_of(vec x) {
    return T(detail::bit_cast<detail::bits_of<T>>(x.v) >> detail::mantissa_bits<T>);
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec mantissa_of(vec x) {
    using B = detail::bits_of<T>;
    const B one = detail::bit_cast<B>(T(1)), low = (B(1) << detail::mantissa_bits<T>)-1;
    return detail::bit_cast<T>(B((detail::bit_cast<B>(x.v) & low) | one));
  }
};

// ---- one register -------------------------------------------------------------------------------------------------

#if SPECAGG_ISA_ID != 0
namespace detail {

#if SPECAGG_ISA_ID == 3
using arch = xsimd::avx512bw;
#elif SPECAGG_ISA_ID == 2
using arch = xsimd::avx2;
#elif SPECAGG_ISA_ID == 1
using arch = xsimd::sse2;
#else
using arch = xsimd::neon64;
#endif
template <class T>
using batch = xsimd::batch<T, arch>;

// What xsimd 8.1 lacks, or does not round once: a fused multiply-add; on NEON the division and the square root of
// floats; and on AVX-512 its -x is 0 - x, which loses -0 (vec uses the compiler's own / and - on registers instead).
// reduce_add and reduce_max are fixed trees: lane i with lane i + N/2, and again.
#if SPECAGG_ISA_ID <= 2
SPECAGG_INLINE float tree_add(__m128 x) {
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
SPECAGG_INLINE double tree_add(__m128d x) { return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x))); }
#endif
#if SPECAGG_ISA_ID <= 3
SPECAGG_INLINE float tree_max(__m128 x) {
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
SPECAGG_INLINE double tree_max(__m128d x) { return _mm_cvtsd_f64(_mm_max_sd(x, _mm_unpackhi_pd(x, x))); }
#endif
#if SPECAGG_ISA_ID == 2 || SPECAGG_ISA_ID == 3
SPECAGG_INLINE float tree_max(__m256 x) {
  return tree_max(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
SPECAGG_INLINE double tree_max(__m256d x) {
  return tree_max(_mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)));
}
#endif
#if SPECAGG_ISA_ID == 3
SPECAGG_INLINE __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
SPECAGG_INLINE __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
SPECAGG_INLINE __m512 exponent_shift(__m512 t) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
}
SPECAGG_INLINE __m512d exponent_shift(__m512d t) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(t), 52));
}
SPECAGG_INLINE __m512 scaled(__m512 y, __m512 n) { return _mm512_scalef_ps(y, n); }
SPECAGG_INLINE __m512d scaled(__m512d y, __m512d n) { return _mm512_scalef_pd(y, n); }
SPECAGG_INLINE __m512 shift_right_exponent(__m512 t) {
  return _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(t), 23));
}
SPECAGG_INLINE __m512d shift_right_exponent(__m512d t) {
  return _mm512_castsi512_pd(_mm512_srli_epi64(_mm512_castpd_si512(t), 52));
}
SPECAGG_INLINE float tree_add(__m512 x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
SPECAGG_INLINE double tree_add(__m512d x) {
  const __m256d y = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
  const __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
  return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}
SPECAGG_INLINE float tree_max(__m512 x) {
  return tree_max(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
SPECAGG_INLINE double tree_max(__m512d x) {
  return tree_max(_mm256_max_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1)));
}
SPECAGG_INLINE __m512 partial(const float* x, int n, float fill) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << n) - 1), x);
}
SPECAGG_INLINE __m512d partial(const double* x, int n, double fill) {
  return _mm512_mask_loadu_pd(_mm512_set1_pd(fill), __mmask8((1u << n) - 1), x);
}
SPECAGG_INLINE __m512 wide(const f16* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
SPECAGG_INLINE __m512 wide(const bf16* x) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16));
}
SPECAGG_INLINE __m512 wide_i8(const std::int8_t* x) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
#elif SPECAGG_ISA_ID == 2
SPECAGG_INLINE __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
SPECAGG_INLINE __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
SPECAGG_INLINE __m256 exponent_shift(__m256 t) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}
SPECAGG_INLINE __m256d exponent_shift(__m256d t) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(t), 52));
}
SPECAGG_INLINE __m256 shift_right_exponent(__m256 t) {
  return _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(t), 23));
}
SPECAGG_INLINE __m256d shift_right_exponent(__m256d t) {
  return _mm256_castsi256_pd(_mm256_srli_epi64(_mm256_castpd_si256(t), 52));
}
SPECAGG_INLINE __m256 cleared(__m256 m, __m256 a) { return _mm256_andnot_ps(m, a); }
SPECAGG_INLINE __m256d cleared(__m256d m, __m256d a) { return _mm256_andnot_pd(m, a); }
SPECAGG_INLINE float tree_add(__m256 x) {
  return tree_add(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
SPECAGG_INLINE double tree_add(__m256d x) {
  return tree_add(_mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)));
}
SPECAGG_INLINE __m256 wide(const f16* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
SPECAGG_INLINE __m256 wide(const bf16* x) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16));
}
SPECAGG_INLINE __m256 wide_i8(const std::int8_t* x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
#elif SPECAGG_ISA_ID == 1
SPECAGG_INLINE __m128d fused_odd(__m128d p, __m128d c) {  // emulated_fused up to the last rounding, two lanes at a time
  const __m128d s = _mm_add_pd(p, c), zz = _mm_sub_pd(s, p);
  const __m128d e = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, zz)), _mm_sub_pd(c, zz));
  const __m128d zero = _mm_setzero_pd(), lost = _mm_or_pd(_mm_cmplt_pd(e, zero), _mm_cmpgt_pd(e, zero));
  const __m128i away = _mm_srli_epi64(_mm_castpd_si128(_mm_xor_pd(e, s)), 63);
  const __m128i odd = _mm_or_si128(_mm_sub_epi64(_mm_castpd_si128(s), away), _mm_set1_epi64x(1));
  return _mm_or_pd(_mm_and_pd(lost, _mm_castsi128_pd(odd)), _mm_andnot_pd(lost, s));
}
#if defined(__FMA__)
SPECAGG_INLINE __m128 fused(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
SPECAGG_INLINE __m128d fused(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
#else
SPECAGG_OUTLINE __m128 fused(__m128 a, __m128 b, __m128 c) {
  const __m128 lo = _mm_cvtpd_ps(fused_odd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c)));
  const __m128 ah = _mm_movehl_ps(a, a), bh = _mm_movehl_ps(b, b), ch = _mm_movehl_ps(c, c);
  const __m128 hi = _mm_cvtpd_ps(fused_odd(_mm_mul_pd(_mm_cvtps_pd(ah), _mm_cvtps_pd(bh)), _mm_cvtps_pd(ch)));
  return _mm_movelh_ps(lo, hi);
}
SPECAGG_OUTLINE __m128d fused(__m128d a, __m128d b, __m128d c) {
  return _mm_set_pd(fused(_mm_cvtsd_f64(_mm_unpackhi_pd(a, a)), _mm_cvtsd_f64(_mm_unpackhi_pd(b, b)),
                          _mm_cvtsd_f64(_mm_unpackhi_pd(c, c))),
                    fused(_mm_cvtsd_f64(a), _mm_cvtsd_f64(b), _mm_cvtsd_f64(c)));
}
#endif
SPECAGG_INLINE __m128 cleared(__m128 m, __m128 a) { return _mm_andnot_ps(m, a); }
SPECAGG_INLINE __m128d cleared(__m128d m, __m128d a) { return _mm_andnot_pd(m, a); }
SPECAGG_INLINE __m128 exponent_shift(__m128 t) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(t), 23)); }
SPECAGG_INLINE __m128d exponent_shift(__m128d t) { return _mm_castsi128_pd(_mm_slli_epi64(_mm_castpd_si128(t), 52)); }
SPECAGG_INLINE __m128 shift_right_exponent(__m128 t) {
  return _mm_castsi128_ps(_mm_srli_epi32(_mm_castps_si128(t), 23));
}
SPECAGG_INLINE __m128d shift_right_exponent(__m128d t) {
  return _mm_castsi128_pd(_mm_srli_epi64(_mm_castpd_si128(t), 52));
}
SPECAGG_INLINE __m128 wide(const f16* x) {
  return _mm_set_ps(number(x[3]), number(x[2]), number(x[1]), number(x[0]));
}
SPECAGG_INLINE __m128 wide(const bf16* x) {
  return _mm_castsi128_ps(
      _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
SPECAGG_INLINE __m128 wide_i8(const std::int8_t* x) { return _mm_set_ps(x[3], x[2], x[1], x[0]); }
#else
SPECAGG_INLINE float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
SPECAGG_INLINE float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmaq_f64(c, a, b); }
SPECAGG_INLINE float32x4_t exponent_shift(float32x4_t t) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23));
}
SPECAGG_INLINE float64x2_t exponent_shift(float64x2_t t) {
  return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(t), 52));
}
SPECAGG_INLINE float32x4_t shift_right_exponent(float32x4_t t) {
  return vreinterpretq_f32_u32(vshrq_n_u32(vreinterpretq_u32_f32(t), 23));
}
SPECAGG_INLINE float64x2_t shift_right_exponent(float64x2_t t) {
  return vreinterpretq_f64_u64(vshrq_n_u64(vreinterpretq_u64_f64(t), 52));
}
SPECAGG_INLINE float tree_add(float32x4_t x) {
  const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
SPECAGG_INLINE double tree_add(float64x2_t x) { return vgetq_lane_f64(x, 0) + vgetq_lane_f64(x, 1); }
SPECAGG_INLINE float32x4_t root(float32x4_t x) { return vsqrtq_f32(x); }
SPECAGG_INLINE float64x2_t root(float64x2_t x) { return vsqrtq_f64(x); }
SPECAGG_INLINE float32x4_t wide(const f16* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&x->bits))); }
SPECAGG_INLINE float32x4_t wide(const bf16* x) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&x->bits), 16));
}
SPECAGG_INLINE float32x4_t wide_i8(const std::int8_t* x) {
  const std::int32_t y[4] = {x[0], x[1], x[2], x[3]};
  return vcvtq_f32_s32(vld1q_s32(y));
}
#endif

}  // namespace detail

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct mask<T, N> {
  typename detail::batch<T>::batch_bool_type m;
  friend SPECAGG_INLINE mask operator&(mask a, mask b) { return {a.m & b.m}; }
  friend SPECAGG_INLINE mask operator|(mask a, mask b) { return {a.m | b.m}; }
  friend SPECAGG_INLINE mask operator!(mask a) { return {~a.m}; }
  friend SPECAGG_INLINE bool any(mask a) { return xsimd::any(a.m); }
};

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct vec<T, N> {
  using value_type = T;
  using mask_type = mask<T, N>;
  using batch = detail::batch<T>;
  using reg = typename batch::register_type;
  static constexpr int lanes = N;
  batch v;

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_INLINE vec(S s) : v(static_cast<T>(s)) {}
  SPECAGG_INLINE vec(batch b) : v(b) {}
  static SPECAGG_INLINE vec load(const T* x) { return batch::load_unaligned(x); }
  // Lanes 0..n-1 from memory (nothing beyond is read), the others fill. 0 <= n <= N.
  static SPECAGG_INLINE vec load_partial(const T* x, int n, T fill) {
#if SPECAGG_ISA_ID == 3
    return batch(detail::partial(x, n, fill));
#else
    T y[std::size_t(N)];
    for (int i = 0; i < N; ++i) y[i] = i < n ? x[i] : fill;
    return load(y);
#endif
  }
  static SPECAGG_INLINE vec load(const f16* x) { return batch(detail::wide(x)); }
  static SPECAGG_INLINE vec load(const bf16* x) { return batch(detail::wide(x)); }
  template <class S>
  static SPECAGG_INLINE vec load_partial(const S* x, int n, T fill) {
    S y[std::size_t(N)] = {};
    for (int i = 0; i < n; ++i) y[i] = x[i];
    return select(iota(0) < vec(n), load(y), vec(fill));
  }
  static SPECAGG_INLINE vec load_i8(const std::int8_t* x) { return batch(detail::wide_i8(x)); }
  static SPECAGG_INLINE vec iota(T first) {
    T y[std::size_t(N)];
    for (int i = 0; i < N; ++i) y[i] = first + T(i);
    return load(y);
  }
  SPECAGG_INLINE void store(T* x) const { v.store_unaligned(x); }

  friend SPECAGG_INLINE vec operator+(vec a, vec b) { return a.v + b.v; }
  friend SPECAGG_INLINE vec operator-(vec a, vec b) { return a.v - b.v; }
  friend SPECAGG_INLINE vec operator*(vec a, vec b) { return a.v * b.v; }
  friend SPECAGG_INLINE vec operator/(vec a, vec b) { return batch(reg(a.v) / reg(b.v)); }
  friend SPECAGG_INLINE vec operator-(vec a) { return batch(-reg(a.v)); }
  friend SPECAGG_INLINE mask_type operator<(vec a, vec b) { return {a.v < b.v}; }
  friend SPECAGG_INLINE mask_type operator<=(vec a, vec b) { return {a.v <= b.v}; }
  friend SPECAGG_INLINE mask_type operator>(vec a, vec b) { return {a.v > b.v}; }
  friend SPECAGG_INLINE mask_type operator>=(vec a, vec b) { return {a.v >= b.v}; }
  friend SPECAGG_INLINE mask_type operator==(vec a, vec b) { return {a.v == b.v}; }
  friend SPECAGG_INLINE vec select(mask_type m, vec a, vec b) { return xsimd::select(m.m, a.v, b.v); }
  friend SPECAGG_INLINE vec zero_where(mask_type m, vec a) {
#if SPECAGG_ISA_ID == 1 || SPECAGG_ISA_ID == 2  // select would test the sign of each lane of m first
    return batch(detail::cleared(typename batch::batch_bool_type::register_type(m.m), reg(a.v)));
#else
    return select(m, 0, a);
#endif
  }
#if SPECAGG_ISA_ID == 4  // NEON's own return NaN if either is NaN; x86's return b
  friend SPECAGG_INLINE vec max(vec a, vec b) { return select(a > b, a, b); }
  friend SPECAGG_INLINE vec min(vec a, vec b) { return select(a < b, a, b); }
  friend SPECAGG_INLINE vec sqrt(vec a) { return batch(detail::root(reg(a.v))); }
#else
  friend SPECAGG_INLINE vec max(vec a, vec b) { return xsimd::max(a.v, b.v); }
  friend SPECAGG_INLINE vec min(vec a, vec b) { return xsimd::min(a.v, b.v); }
  friend SPECAGG_INLINE vec sqrt(vec a) { return xsimd::sqrt(a.v); }
#endif
  friend SPECAGG_INLINE vec abs(vec a) { return xsimd::abs(a.v); }
  friend SPECAGG_INLINE vec fma(vec a, vec b, vec c) { return batch(detail::fused(reg(a.v), reg(b.v), reg(c.v))); }
  friend SPECAGG_INLINE vec settled(vec a) {
    reg r = a.v;
#if SPECAGG_ISA_ID == 3
    asm("" : "+v"(r));
#elif SPECAGG_ISA_ID == 4
    asm("" : "+w"(r));
#elif defined(__FMA__) || defined(__FMA4__)
    asm("" : "+x"(r));
#endif
    return batch(r);
  }
  friend SPECAGG_INLINE T reduce_add(vec a) { return detail::tree_add(reg(a.v)); }
  friend SPECAGG_INLINE T reduce_max(vec a) {
#if SPECAGG_ISA_ID <= 3
    return detail::tree_max(reg(a.v));
#else
    T y[std::size_t(N)];
    a.store(y);
    for (int h = N / 2; h > 0; h /= 2)
      for (int i = 0; i < h; ++i) y[i] = y[i] > y[i + h] ? y[i] : y[i + h];
    return y[0];
#endif
  }
  friend SPECAGG_INLINE vec shift_to_exponent(vec t) { return batch(detail::exponent_shift(reg(t.v))); }
  friend SPECAGG_INLINE vec times_exp2(vec y, [[maybe_unused]] vec n, [[maybe_unused]] vec t) {
#if SPECAGG_ISA_ID == 3
    return batch(detail::scaled(reg(y.v), reg(n.v)));
#else
    return y * shift_to_exponent(t);
#endif
  }
  friend SPECAGG_INLINE vec exponent_of(vec x) {  // an integer in the low bits of 2^mantissa_bits, which is taken off
    const vec anchor = T(detail::bits_of<T>(1) << detail::mantissa_bits<T>);
    return (batch(detail::shift_right_exponent(reg(x.v))) | anchor.v) - anchor.v;
  }
  friend SPECAGG_INLINE vec mantissa_of(vec x) {
    using B = detail::bits_of<T>;
    const batch low(detail::bit_cast<T>(B((B(1) << detail::mantissa_bits<T>)-1)));
    return (x.v & low) | batch(T(1));
  }
};
#endif

// ---- a pair of halves ---------------------------------------------------------------------------------------------

template <class T, int N>
  requires(N > detail::native_lanes<T>)
struct mask<T, N> {
  mask<T, N / 2> lo, hi;
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator&(mask a, mask b) { return {a.lo & b.lo, a.hi & b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator|(mask a, mask b) { return {a.lo | b.lo, a.hi | b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask operator!(mask a) { return {!a.lo, !a.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE bool any(mask a) { return any(a.lo) || any(a.hi); }
};

template <class T, int N>
  requires(N > detail::native_lanes<T>)
struct vec<T, N> {
  using value_type = T;
  using mask_type = mask<T, N>;
  using half = vec<T, N / 2>;
  static constexpr int lanes = N;
  half lo, hi;

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_FUNCTION SPECAGG_INLINE vec(S s) : lo(s), hi(s) {}
  SPECAGG_FUNCTION SPECAGG_INLINE vec(half a, half b) : lo(a), hi(b) {}
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_INLINE vec load(const S* x) {
    return {half::load(x), half::load(x + N / 2)};
  }
  template <class S>  // a call: only the last tokens of a row need it, but every loop has it
  SPECAGG_FUNCTION static SPECAGG_OUTLINE vec load_partial(const S* x, int n, T fill) {
    return n > N / 2 ? vec{half::load(x), half::load_partial(x + N / 2, n - N / 2, fill)}
                     : vec{half::load_partial(x, n, fill), half(fill)};
  }
  SPECAGG_FUNCTION static SPECAGG_INLINE vec load_i8(const std::int8_t* x) {
    return {half::load_i8(x), half::load_i8(x + N / 2)};
  }
  SPECAGG_FUNCTION static SPECAGG_INLINE vec iota(T first) { return {half::iota(first), half::iota(first + T(N / 2))}; }
  SPECAGG_FUNCTION SPECAGG_INLINE void store(T* x) const { lo.store(x), hi.store(x + N / 2); }

  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator+(vec a, vec b) { return {a.lo + b.lo, a.hi + b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator-(vec a, vec b) { return {a.lo - b.lo, a.hi - b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator*(vec a, vec b) { return {a.lo * b.lo, a.hi * b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator/(vec a, vec b) { return {a.lo / b.lo, a.hi / b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec operator-(vec a) { return {-a.lo, -a.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator<(vec a, vec b) { return {a.lo < b.lo, a.hi < b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator<=(vec a, vec b) { return {a.lo <= b.lo, a.hi <= b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator>(vec a, vec b) { return {a.lo > b.lo, a.hi > b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator>=(vec a, vec b) { return {a.lo >= b.lo, a.hi >= b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE mask_type operator==(vec a, vec b) { return {a.lo == b.lo, a.hi == b.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec select(mask_type m, vec a, vec b) {
    return {select(m.lo, a.lo, b.lo), select(m.hi, a.hi, b.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec zero_where(mask_type m, vec a) {
    return {zero_where(m.lo, a.lo), zero_where(m.hi, a.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec max(vec a, vec b) { return {max(a.lo, b.lo), max(a.hi, b.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec min(vec a, vec b) { return {min(a.lo, b.lo), min(a.hi, b.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec abs(vec a) { return {abs(a.lo), abs(a.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec sqrt(vec a) { return {sqrt(a.lo), sqrt(a.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec fma(vec a, vec b, vec c) {
    return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec settled(vec a) { return {settled(a.lo), settled(a.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE T reduce_add(vec a) { return reduce_add(a.lo + a.hi); }
  SPECAGG_FUNCTION friend SPECAGG_INLINE T reduce_max(vec a) { return reduce_max(max(a.lo, a.hi)); }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec shift_to_exponent(vec t) {
    return {shift_to_exponent(t.lo), shift_to_exponent(t.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec times_exp2(vec y, vec n, vec t) {
    return {times_exp2(y.lo, n.lo, t.lo), times_exp2(y.hi, n.hi, t.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec exponent_of(vec x) { return {exponent_of(x.lo), exponent_of(x.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_INLINE vec mantissa_of(vec x) { return {mantissa_of(x.lo), mantissa_of(x.hi)}; }
};

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// ---- for formulas -------------------------------------------------------------------------------------------------

// (x)+ = max(0, x); NaN stays NaN.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> positive(vec<T, N> x) {
  return max(vec<T, N>(0), x);
}
// A choice that is the same for all lanes.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> select(bool c, vec<T, N> a, vec<T, N> b) {
  return c ? a : b;
}
// The rounded-once a * b + c for plain doubles, so that formulas read the same outside the element. (A template, so
// that after `using namespace specagg` the C library's functions of these names are not ambiguous.)
template <std::same_as<double> D>
SPECAGG_FUNCTION SPECAGG_INLINE D fma(D a, D b, D c) {
  return detail::fused(a, b, c);
}

SPECAGG_END
