// SPDX-License-Identifier: Apache-2.0
// vec<T, N> of one machine register: xsimd's batch. xsimd 8.1 has no multiply-add with one
// rounding, and on NEON no division and square root of floats with one rounding; they are added
// here. On AVX-512 its -x is 0 - x, which loses -0, so vec uses the compiler's own / and - on
// registers. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/avx512.hpp>
#include <specagg/kernel/detail/simd/neon.hpp>

#if SPECAGG_ISA_ID != 0
SPECAGG_BEGIN
namespace detail {
template <class T>
using batch = xsimd::batch<T, arch>;
}  // namespace detail

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct lane_mask<T, N> {
  using batch_bool = typename detail::batch<T>::batch_bool_type;
  batch_bool m;
  friend SPECAGG_LANE lane_mask operator&(lane_mask a, lane_mask b) { return {a.m & b.m}; }
  friend SPECAGG_LANE lane_mask operator|(lane_mask a, lane_mask b) { return {a.m | b.m}; }
  friend SPECAGG_LANE lane_mask operator!(lane_mask a) { return {~a.m}; }
  explicit operator bool() const { return detail::branch_on_lanes<T>::say(); }
  friend SPECAGG_LANE bool any(lane_mask a) { return xsimd::any(a.m); }
  friend SPECAGG_LANE std::uint32_t bits(lane_mask a) {
    return detail::bits_of_lanes(typename batch_bool::register_type(a.m));
  }
};

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct vec<T, N> {
  using value_type = T;
  using mask_type = lane_mask<T, N>;
  using batch = detail::batch<T>;
  using reg = typename batch::register_type;
  static constexpr int lanes = N;
  batch v;

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_LANE vec(S s) : v(static_cast<T>(s)) {}
  SPECAGG_LANE vec(batch b) : v(b) {}
  static SPECAGG_LANE vec load(const T* x) { return batch::load_unaligned(x); }
  // Loads lanes 0..n-1 from memory (nothing after them is read) and sets the others to fill. 0 <= n
  // <= N.
  static SPECAGG_LANE vec load_partial(const T* x, int n, T fill) {
#if SPECAGG_ISA_ID == 3
    return batch(detail::partial(x, n, fill));
#else
    T y[std::size_t(N)];
    for (int i = 0; i < N; ++i) y[i] = i < n ? x[i] : fill;
    return load(y);
#endif
  }
  static SPECAGG_LANE vec load(const f16* x) { return batch(detail::wide(x)); }
  static SPECAGG_LANE vec load(const bf16* x) { return batch(detail::wide(x)); }
  template <class S>
  static SPECAGG_LANE vec load_partial(const S* x, int n, T fill) {
    S y[std::size_t(N)] = {};
    for (int i = 0; i < n; ++i) y[i] = x[i];
    return select(iota(0) < vec(n), load(y), vec(fill));
  }
  static SPECAGG_LANE vec load_i8(const std::int8_t* x) { return batch(detail::wide_i8(x)); }
  static SPECAGG_LANE vec iota(T first) {
    T y[std::size_t(N)];
    for (int i = 0; i < N; ++i) y[i] = first + T(i);
    return load(y);
  }
  SPECAGG_LANE void store(T* x) const { v.store_unaligned(x); }
  SPECAGG_LANE void store(f16* x) const { detail::narrow(reg(v), x); }

  friend SPECAGG_LANE vec operator+(vec a, vec b) { return a.v + b.v; }
  friend SPECAGG_LANE vec operator-(vec a, vec b) { return a.v - b.v; }
  friend SPECAGG_LANE vec operator*(vec a, vec b) { return a.v * b.v; }
  friend SPECAGG_LANE vec operator/(vec a, vec b) { return batch(reg(a.v) / reg(b.v)); }
  friend SPECAGG_LANE vec operator-(vec a) { return batch(-reg(a.v)); }
  friend SPECAGG_LANE mask_type operator<(vec a, vec b) { return {a.v < b.v}; }
  friend SPECAGG_LANE mask_type operator<=(vec a, vec b) { return {a.v <= b.v}; }
  friend SPECAGG_LANE mask_type operator>(vec a, vec b) { return {a.v > b.v}; }
  friend SPECAGG_LANE mask_type operator>=(vec a, vec b) { return {a.v >= b.v}; }
  friend SPECAGG_LANE mask_type operator==(vec a, vec b) { return {a.v == b.v}; }
  friend SPECAGG_LANE vec select(mask_type m, vec a, vec b) { return xsimd::select(m.m, a.v, b.v); }
  friend SPECAGG_LANE vec zero_where(mask_type m, vec a) {
#if SPECAGG_ISA_ID == 1 || \
    SPECAGG_ISA_ID == 2  // select would first test the sign of each lane of m
    return batch(detail::cleared(typename batch::batch_bool_type::register_type(m.m), reg(a.v)));
#else
    return select(m, 0, a);
#endif
  }
  // unordered: b
  friend SPECAGG_LANE vec max(vec a, vec b) { return detail::lane_max(a.v, b.v); }
  // unordered: b
  friend SPECAGG_LANE vec min(vec a, vec b) { return detail::lane_min(a.v, b.v); }
  friend SPECAGG_LANE vec sqrt(vec a) { return detail::root(a.v); }
  friend SPECAGG_LANE vec abs(vec a) { return xsimd::abs(a.v); }
#if SPECAGG_ISA_ID == 1 && SPECAGG_ASKS_FOR_FMA
  friend SPECAGG_LANE vec fma(vec a, vec b, vec c) { return detail::fma_as_asked(a, b, c); }
  friend SPECAGG_LANE vec fma_instruction(vec a, vec b, vec c) {
    return batch(detail::fma_instruction(reg(a.v), reg(b.v), reg(c.v)));
  }
  friend SPECAGG_LANE vec fma_emulated(vec a, vec b, vec c) {
    return batch(detail::fused(reg(a.v), reg(b.v), reg(c.v)));
  }
#else
  friend SPECAGG_LANE vec fma(vec a, vec b, vec c) {
    return batch(detail::fused(reg(a.v), reg(b.v), reg(c.v)));
  }
#endif
  friend SPECAGG_LANE vec uncontracted(vec a) {
    reg r = a.v;
    detail::forbid_contraction(r);
    return batch(r);
  }
  friend SPECAGG_LANE T reduce_add(vec a) { return detail::tree_add(reg(a.v)); }
  friend SPECAGG_LANE T reduce_max(vec a) { return detail::tree_max(reg(a.v)); }
  friend SPECAGG_LANE vec shift_to_exponent(vec t) {
    return batch(detail::exponent_shift(reg(t.v)));
  }
  friend SPECAGG_LANE vec times_exp2(vec y, [[maybe_unused]] vec n, [[maybe_unused]] vec t) {
#if SPECAGG_ISA_ID == 3
    return batch(detail::scaled(reg(y.v), reg(n.v)));
#else
    return y * shift_to_exponent(t);
#endif
  }
  // an integer in the low bits of 2^mantissa_bits, which is subtracted
  friend SPECAGG_LANE vec exponent_of(vec x) {
    const vec anchor = T(B(1) << mantissa_bits);
    return (batch(detail::shift_right_exponent(reg(x.v))) | anchor.v) - anchor.v;
  }
  friend SPECAGG_LANE vec mantissa_of(vec x) {
    const batch low(detail::bit_cast<T>(B((B(1) << mantissa_bits) - 1)));
    return (x.v & low) | batch(T(1));
  }

 private:
  using B = detail::bits_of<T>;
  static constexpr int mantissa_bits = detail::mantissa_bits<T>;
};
SPECAGG_END
#endif
