// SPDX-License-Identifier: Apache-2.0
// vec<T, 1>: one number, plain arithmetic. It is used to read single tokens of a row, and inside a
// CUDA block. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/number.hpp>
#include <specagg/kernel/vec.hpp>

SPECAGG_BEGIN
namespace detail {
// `if`, ?:, && and || call this on a comparison: one error, for lanes of any type.
template <class Once>
struct no_branch_on_lanes {
  SPECAGG_FUNCTION static bool say() {
    static_assert(!std::is_void_v<Once>,
                  "specagg: a policy compares 16 tokens at once, so a comparison is no bool: write "
                  "select(condition, a, b) for ?: and if, & for &&, | for || "
                  "(docs/write-your-own-policy.md)");
    return false;
  }
};
template <class T>
using branch_on_lanes = no_branch_on_lanes<std::conditional_t<(sizeof(T) > 0), void, T>>;
}  // namespace detail

template <class T>
struct lane_mask<T, 1> {
  bool m;  // of the one lane
  SPECAGG_FUNCTION friend SPECAGG_LANE lane_mask operator&(lane_mask a, lane_mask b) {
    return {a.m && b.m};
  }
  SPECAGG_FUNCTION friend SPECAGG_LANE lane_mask operator|(lane_mask a, lane_mask b) {
    return {a.m || b.m};
  }
  SPECAGG_FUNCTION friend SPECAGG_LANE lane_mask operator!(lane_mask a) { return {!a.m}; }
  SPECAGG_FUNCTION explicit operator bool() const { return detail::branch_on_lanes<T>::say(); }
  SPECAGG_FUNCTION friend SPECAGG_LANE bool any(lane_mask a) { return a.m; }
  SPECAGG_FUNCTION friend SPECAGG_LANE std::uint32_t bits(lane_mask a) { return a.m; }
};

template <class T>
struct vec<T, 1> {
  using value_type = T;
  using mask_type = lane_mask<T, 1>;
  static constexpr int lanes = 1;
  T v;

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_FUNCTION SPECAGG_LANE vec(S s) : v(static_cast<T>(s)) {}
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_LANE vec load(const S* x) {
    return detail::number(*x);
  }
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_LANE vec load_partial(const S* x, int n, T fill) {
    return n > 0 ? detail::number(*x) : fill;
  }
  static SPECAGG_LANE vec load_i8(const std::int8_t* x) { return *x; }
  SPECAGG_FUNCTION static SPECAGG_LANE vec iota(T first) { return first; }
  SPECAGG_FUNCTION SPECAGG_LANE void store(T* x) const { *x = v; }
  SPECAGG_LANE void store(f16* x) const { *x = detail::f16_of_float(v); }

#if defined(__CUDA_ARCH__)  // the intrinsics are never contracted, with any -fmad
#define SPECAGG_SCALAR_OP(op, f32, f64)                                \
  SPECAGG_FUNCTION friend SPECAGG_LANE vec operator op(vec a, vec b) { \
    if constexpr (sizeof(T) == 4) return f32(a.v, b.v);                \
    else return f64(a.v, b.v);                                         \
  }
#else
#define SPECAGG_SCALAR_OP(op, f32, f64) \
  SPECAGG_FUNCTION friend SPECAGG_LANE vec operator op(vec a, vec b) { return a.v op b.v; }
#endif
  SPECAGG_SCALAR_OP(+, __fadd_rn, __dadd_rn)
  SPECAGG_SCALAR_OP(-, __fsub_rn, __dsub_rn)
  SPECAGG_SCALAR_OP(*, __fmul_rn, __dmul_rn)
  SPECAGG_SCALAR_OP(/, __fdiv_rn, __ddiv_rn)
#undef SPECAGG_SCALAR_OP
  SPECAGG_FUNCTION friend SPECAGG_LANE vec operator-(vec a) { return -a.v; }
  SPECAGG_FUNCTION friend SPECAGG_LANE mask_type operator<(vec a, vec b) { return {a.v < b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_LANE mask_type operator<=(vec a, vec b) { return {a.v <= b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_LANE mask_type operator>(vec a, vec b) { return {a.v > b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_LANE mask_type operator>=(vec a, vec b) { return {a.v >= b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_LANE mask_type operator==(vec a, vec b) { return {a.v == b.v}; }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec select(mask_type m, vec a, vec b) { return m.m ? a : b; }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec zero_where(mask_type m, vec a) { return m.m ? 0 : a.v; }
  // unordered: b
  SPECAGG_FUNCTION friend SPECAGG_LANE vec max(vec a, vec b) { return a.v > b.v ? a : b; }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec raised(vec bound, vec x) {
#if SPECAGG_PTX
    if constexpr (sizeof(T) == 4) {  // one instruction instead of two
      asm("max.NaN.f32 %0, %0, %1;" : "+f"(x.v) : "f"(bound.v));
      return x;
    }
#endif
    return max(bound, x);
  }
  // unordered: b
  SPECAGG_FUNCTION friend SPECAGG_LANE vec min(vec a, vec b) { return a.v < b.v ? a : b; }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec abs(vec a) { return a.v < 0 ? -a.v : a.v + 0; }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec sqrt(vec a) { return T(std::sqrt(a.v)); }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec fma(vec a, vec b, vec c) {
    return detail::fused(a.v, b.v, c.v);
  }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec uncontracted(vec a) {
    detail::forbid_contraction(a.v);
    return a;
  }
  SPECAGG_FUNCTION friend SPECAGG_LANE T reduce_add(vec a) { return a.v; }
  SPECAGG_FUNCTION friend SPECAGG_LANE T reduce_max(vec a) { return a.v; }

  // Bit operations for exp and log. shift_to_exponent: the low bits of t become the exponent of a
  // power of two.
  SPECAGG_FUNCTION friend SPECAGG_LANE vec shift_to_exponent(vec t) {
    return detail::bit_cast<T>(B(detail::bit_cast<B>(t.v) << mantissa_bits));
  }
  // y 2^n for an integer n; t is the argument of shift_to_exponent for the same n. Exact if the
  // result is normal.
  SPECAGG_FUNCTION friend SPECAGG_LANE vec times_exp2(vec y, vec /*n*/, vec t) {
    return y * shift_to_exponent(t);
  }
  // exponent_of: the biased exponent of a positive normal x, as a number. mantissa_of: x with the
  // exponent of 1, so it lies in [1, 2).
  SPECAGG_FUNCTION friend SPECAGG_LANE vec exponent_of(vec x) {
    return T(detail::bit_cast<B>(x.v) >> mantissa_bits);
  }
  SPECAGG_FUNCTION friend SPECAGG_LANE vec mantissa_of(vec x) {
    using detail::bit_cast;
    const B one = bit_cast<B>(T(1)), low = (B(1) << mantissa_bits) - 1;
    return bit_cast<T>(B((bit_cast<B>(x.v) & low) | one));
  }

 private:
  using B = detail::bits_of<T>;
  static constexpr int mantissa_bits = detail::mantissa_bits<T>;
};

SPECAGG_END
