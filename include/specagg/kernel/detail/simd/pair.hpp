// SPDX-License-Identifier: Apache-2.0
// vec<T, N> wider than a register: a pair of halves. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/registers.hpp>
#include <specagg/kernel/detail/simd/scalar.hpp>

SPECAGG_BEGIN

template <class T, int N>
  requires(N > detail::native_lanes<T>)
struct lane_mask<T, N> {
  lane_mask<T, N / 2> lo, hi;  // of the first half of the lanes, and the second
  SPECAGG_FUNCTION friend SPECAGG_PAIR lane_mask operator&(lane_mask a, lane_mask b) {
    return {a.lo & b.lo, a.hi & b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR lane_mask operator|(lane_mask a, lane_mask b) {
    return {a.lo | b.lo, a.hi | b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR lane_mask operator!(lane_mask a) { return {!a.lo, !a.hi}; }
  SPECAGG_FUNCTION explicit operator bool() const { return detail::branch_on_lanes<T>::say(); }
  SPECAGG_FUNCTION friend SPECAGG_PAIR bool any(lane_mask a) { return any(a.lo) || any(a.hi); }
  SPECAGG_FUNCTION friend SPECAGG_PAIR std::uint32_t bits(lane_mask a) {
    return bits(a.lo) | bits(a.hi) << N / 2;
  }
};

template <class T, int N>
  requires(N > detail::native_lanes<T>)
struct vec<T, N> {
  using value_type = T;
  using mask_type = lane_mask<T, N>;
  using half = vec<T, N / 2>;
  static constexpr int lanes = N;
  half lo, hi;  // the first half of the lanes, and the second

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_FUNCTION SPECAGG_PAIR vec(S s) : lo(s), hi(s) {}
  SPECAGG_FUNCTION SPECAGG_PAIR vec(half a, half b) : lo(a), hi(b) {}
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_PAIR vec load(const S* x) {
    return {half::load(x), half::load(x + N / 2)};
  }
  // a call: only the last tokens of a row need it, but it would be in every loop
  template <class S>
  SPECAGG_FUNCTION static SPECAGG_OUTLINE vec load_partial(const S* x, int n, T fill) {
    return n > N / 2 ? vec{half::load(x), half::load_partial(x + N / 2, n - N / 2, fill)}
                     : vec{half::load_partial(x, n, fill), half(fill)};
  }
  SPECAGG_FUNCTION static SPECAGG_PAIR vec load_i8(const std::int8_t* x) {
    return {half::load_i8(x), half::load_i8(x + N / 2)};
  }
  SPECAGG_FUNCTION static SPECAGG_PAIR vec iota(T first) {
    return {half::iota(first), half::iota(first + T(N / 2))};
  }
  template <class S>
  SPECAGG_FUNCTION SPECAGG_PAIR void store(S* x) const {
    lo.store(x);
    hi.store(x + N / 2);
  }

  SPECAGG_FUNCTION friend SPECAGG_PAIR vec operator+(vec a, vec b) {
    return {a.lo + b.lo, a.hi + b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec operator-(vec a, vec b) {
    return {a.lo - b.lo, a.hi - b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec operator*(vec a, vec b) {
    return {a.lo * b.lo, a.hi * b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec operator/(vec a, vec b) {
    return {a.lo / b.lo, a.hi / b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec operator-(vec a) { return {-a.lo, -a.hi}; }
  SPECAGG_FUNCTION friend SPECAGG_PAIR mask_type operator<(vec a, vec b) {
    return {a.lo < b.lo, a.hi < b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR mask_type operator<=(vec a, vec b) {
    return {a.lo <= b.lo, a.hi <= b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR mask_type operator>(vec a, vec b) {
    return {a.lo > b.lo, a.hi > b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR mask_type operator>=(vec a, vec b) {
    return {a.lo >= b.lo, a.hi >= b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR mask_type operator==(vec a, vec b) {
    return {a.lo == b.lo, a.hi == b.hi};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec select(mask_type m, vec a, vec b) {
    return {select(m.lo, a.lo, b.lo), select(m.hi, a.hi, b.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec zero_where(mask_type m, vec a) {
    return {zero_where(m.lo, a.lo), zero_where(m.hi, a.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec max(vec a, vec b) {
    return {max(a.lo, b.lo), max(a.hi, b.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec raised(vec bound, vec x) {
    return {raised(bound.lo, x.lo), raised(bound.hi, x.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec min(vec a, vec b) {
    return {min(a.lo, b.lo), min(a.hi, b.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec abs(vec a) { return {abs(a.lo), abs(a.hi)}; }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec sqrt(vec a) { return {sqrt(a.lo), sqrt(a.hi)}; }
#if SPECAGG_ISA_ID <= 1 && SPECAGG_ASKS_FOR_FMA
  friend SPECAGG_PAIR vec fma(vec a, vec b, vec c) { return detail::fma_as_asked(a, b, c); }
  friend SPECAGG_PAIR vec fma_instruction(vec a, vec b, vec c) {
    return {fma_instruction(a.lo, b.lo, c.lo), fma_instruction(a.hi, b.hi, c.hi)};
  }
  friend SPECAGG_PAIR vec fma_emulated(vec a, vec b, vec c) {
    return {fma_emulated(a.lo, b.lo, c.lo), fma_emulated(a.hi, b.hi, c.hi)};
  }
#else
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec fma(vec a, vec b, vec c) {
    return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
  }
#endif
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec uncontracted(vec a) {
    return {uncontracted(a.lo), uncontracted(a.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR T reduce_add(vec a) { return reduce_add(a.lo + a.hi); }
  SPECAGG_FUNCTION friend SPECAGG_PAIR T reduce_max(vec a) { return reduce_max(max(a.lo, a.hi)); }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec shift_to_exponent(vec t) {
    return {shift_to_exponent(t.lo), shift_to_exponent(t.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec times_exp2(vec y, vec n, vec t) {
    return {times_exp2(y.lo, n.lo, t.lo), times_exp2(y.hi, n.hi, t.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec exponent_of(vec x) {
    return {exponent_of(x.lo), exponent_of(x.hi)};
  }
  SPECAGG_FUNCTION friend SPECAGG_PAIR vec mantissa_of(vec x) {
    return {mantissa_of(x.lo), mantissa_of(x.hi)};
  }
};

SPECAGG_END
