// SPDX-License-Identifier: Apache-2.0
// Single numbers: their bits, the multiply-add with one rounding, 16-bit numbers. Part of
// kernel/simd.hpp.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <specagg/config.hpp>
#include <specagg/half.hpp>

SPECAGG_BEGIN
namespace detail {

template <class T>
using bits_of = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
template <class T>
inline constexpr int mantissa_bits = std::numeric_limits<T>::digits - 1;

template <class To, class From>
SPECAGG_FUNCTION SPECAGG_LANE To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

// ---- round(a * b + c), rounded once -------------------------------------------------------------

// Without the instruction: the product is exact in double. The sum is rounded to odd in double
// (truncate, then set the last bit if anything was lost). A double rounded to odd rounds correctly
// to float, because it has more than two extra bits (Boldo & Melquiond 2008).
SPECAGG_FUNCTION SPECAGG_OUTLINE float fused_by_odd(float a, float b, float c) {
  const double p = double(a) * double(b), z = double(c), s = p + z;
  // s + e == p + z exactly (Knuth's two-sum)
  const double zz = s - p, e = (p - (s - zz)) + (z - zz);
  if (!(e > 0) && !(e < 0)) return float(s);
  const auto away = (bit_cast<std::uint64_t>(e) ^ bit_cast<std::uint64_t>(s)) >> 63;
  return float(bit_cast<double>((bit_cast<std::uint64_t>(s) - away) | 1));
}
// Nearly always the plain double sum s rounds to the same float. It may not if s, which is itself
// rounded, lies exactly half way between two floats: its low 29 bits are 10...0, or the float is
// subnormal and has fewer bits. 0 is exact. The constants are of the two halves of a double.
inline constexpr std::uint32_t bits_below_float = 0x1fffffff, half_way = 0x10000000,
                               without_sign = 0x7fffffff, least_normal_float = 0x38100000;
SPECAGG_FUNCTION SPECAGG_LANE bool may_round_twice(double s) {
  const auto bits = bit_cast<std::uint64_t>(s);
  const auto low = std::uint32_t(bits) & bits_below_float,
             high = std::uint32_t(bits >> 32) & without_sign;
  return (low == half_way) | (high - 1 < least_normal_float - 1);
}
SPECAGG_FUNCTION SPECAGG_LANE float emulated_fused(float a, float b, float c) {
  const double s = double(a) * double(b) + double(c);
  return may_round_twice(s) ? fused_by_odd(a, b, c) : float(s);
}

// A program built for any x86-64 may run on a processor that has the instruction (most do since
// 2013). The program tests for it (a load and a test), and uses the instruction through asm,
// because the compiler is not allowed to generate it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__FMA__) && !defined(__CUDACC__)
#define SPECAGG_ASKS_FOR_FMA 1
SPECAGG_LANE bool machine_has_fma() {
  return __builtin_expect(__builtin_cpu_supports("fma") != 0, 1);
}
SPECAGG_LANE float fma_instruction(float a, float b, float c) {
  asm("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
SPECAGG_LANE double fma_instruction(double a, double b, double c) {
  asm("vfmadd231sd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
#else
#define SPECAGG_ASKS_FOR_FMA 0
#endif

SPECAGG_FUNCTION SPECAGG_LANE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
#if SPECAGG_ASKS_FOR_FMA
  if (machine_has_fma()) return fma_instruction(a, b, c);
#endif
  return emulated_fused(a, b, c);
#endif
}
SPECAGG_FUNCTION SPECAGG_LANE double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
#if SPECAGG_ASKS_FOR_FMA
  if (machine_has_fma()) return fma_instruction(a, b, c);
#endif
  return std::fma(a, b, c);  // the C library's fma is exact where the hardware has none
#endif
}

// Forces x to its rounded value: the compiler cannot fuse the operation that made x into the
// operation that uses x. This costs nothing where the compiler supports GNU asm.
SPECAGG_FUNCTION SPECAGG_LANE void forbid_contraction([[maybe_unused]] auto& x) {
#if defined(__CUDA_ARCH__)
  // Nothing to do for a vec: its operators are intrinsics, which are never fused. (ptxas would
  // ignore an asm.)
#elif !defined(__GNUC__)
  volatile auto rounded = x;
  x = rounded;
#elif defined(__FMA__) || defined(__FMA4__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#elif !defined(__x86_64__) && \
    !defined(__i386__)  // x86-64 and i386 without FMA have no fused instruction
  asm("" : "+m"(x));
#endif
}

// ---- 16-bit numbers -----------------------------------------------------------------------------

// Exact: every half and every bfloat16 is a float. A signalling NaN becomes quiet.
SPECAGG_FUNCTION SPECAGG_LANE float float_of_f16(std::uint16_t h) {
#if SPECAGG_PTX
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));  // this loses the payload of a NaN
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
SPECAGG_FUNCTION SPECAGG_LANE float float_of_bf16(std::uint16_t h) {
  return bit_cast<float>(std::uint32_t(h) << 16);
}

// Converts a stored number to the type it is computed in.
SPECAGG_FUNCTION SPECAGG_LANE float number(f16 h) { return float_of_f16(h.bits); }
SPECAGG_FUNCTION SPECAGG_LANE float number(bf16 h) { return float_of_bf16(h.bits); }
SPECAGG_FUNCTION SPECAGG_LANE float number(float x) { return x; }
SPECAGG_FUNCTION SPECAGG_LANE double number(double x) { return x; }
// The nearest f16, the even one of two equally near: as the machines' own instruction, but for the
// payload of NaN.
SPECAGG_LANE f16 f16_of_float(float x) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(x), sign = bits >> 16 & 0x8000u,
                      rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u)};
  if (rest >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};
  if (rest < 0x38800000u)  // subnormal: units of 2^-24, the last place of 0.5
    return {std::uint16_t(sign | (bit_cast<std::uint32_t>(bit_cast<float>(rest) + 0.5f) & 0x7ffu))};
  return {std::uint16_t(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13)};
}
// Converts back: the nearest number of S, the even one of two equally near. Rounded once; by way of
// a float it would be rounded twice.
template <class S>
SPECAGG_LANE S stored(double x) {
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
    // Count: |x| in units of the last place, rounded to nearest. A carry into the exponent, or to
    // infinity, gives the right bits.
    const double place = bit_cast<double>(std::uint64_t(1023 + exponent - digits) << 52);
    const double magnitude = bit_cast<double>(rest) / place;  // exact
    auto count = std::uint32_t(magnitude);
    const double over = magnitude - double(count);
    if (over > 0.5 || (over == 0.5 && count % 2 == 1)) ++count;
    return S{std::uint16_t(sign | ((std::uint32_t(exponent - lowest) << digits) + count))};
  }
}

}  // namespace detail
SPECAGG_END
