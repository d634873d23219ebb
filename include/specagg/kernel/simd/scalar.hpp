// SPDX-License-Identifier: Apache-2.0
// vec<T, N> for machines without known vector registers, or without xsimd: an array of lanes. The loops are short and
// have no branches, so a compiler that can use vectors does so. (Inside a CUDA block it is a pair of halves, because an
// array would be stored in memory.) Part of kernel/simd.hpp.
#pragma once
#include <bit>

#include <specagg/kernel/simd/machine.hpp>

#if SPECAGG_ISA_ID == 0 && !defined(__CUDACC__)
SPECAGG_BEGIN

template <class T, int N>
  requires(N > 1)
struct mask<T, N> {
  detail::bits_of<T> m[N];  // 0 or 1
#define SPECAGG_LANES(type, r, of) \
  type r;                          \
  for (int i = 0; i < N; ++i) of;  \
  return r
  friend SPECAGG_PAIR mask operator&(mask a, mask b) { SPECAGG_LANES(mask, r, r.m[i] = a.m[i] & b.m[i]); }
  friend SPECAGG_PAIR mask operator|(mask a, mask b) { SPECAGG_LANES(mask, r, r.m[i] = a.m[i] | b.m[i]); }
  friend SPECAGG_PAIR mask operator!(mask a) { SPECAGG_LANES(mask, r, r.m[i] = a.m[i] ^ 1); }
  friend SPECAGG_PAIR bool any(mask a) {
    detail::bits_of<T> r = 0;
    for (int i = 0; i < N; ++i) r |= a.m[i];
    return r != 0;
  }
};

template <class T, int N>
  requires(N > 1)
struct vec<T, N> {
  using value_type = T;
  using mask_type = mask<T, N>;
  using one = vec<T, 1>;
  static constexpr int lanes = N;
  T v[N];

  vec() = default;
  template <class S>
    requires std::is_arithmetic_v<S> SPECAGG_PAIR vec(S s) {
      for (int i = 0; i < N; ++i) v[i] = static_cast<T>(s);
    }
  template <class S>
  static SPECAGG_PAIR vec load(const S* x) {
    SPECAGG_LANES(vec, r, r.v[i] = detail::number(x[i]));
  }
  template <class S>
  static SPECAGG_PAIR vec load_partial(const S* x, int n, T fill) {
    SPECAGG_LANES(vec, r, r.v[i] = i < n ? detail::number(x[i]) : fill);
  }
  static SPECAGG_PAIR vec load_i8(const std::int8_t* x) { SPECAGG_LANES(vec, r, r.v[i] = x[i]); }
  static SPECAGG_PAIR vec iota(T first) { SPECAGG_LANES(vec, r, r.v[i] = first + T(i)); }
  SPECAGG_PAIR void store(T* x) const {
    for (int i = 0; i < N; ++i) x[i] = v[i];
  }

  friend SPECAGG_PAIR vec operator+(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] + b.v[i]); }
  friend SPECAGG_PAIR vec operator-(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] - b.v[i]); }
  friend SPECAGG_PAIR vec operator*(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] * b.v[i]); }
  friend SPECAGG_PAIR vec operator/(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] / b.v[i]); }
  friend SPECAGG_PAIR vec operator-(vec a) { SPECAGG_LANES(vec, r, r.v[i] = -a.v[i]); }
  friend SPECAGG_PAIR mask_type operator<(vec a, vec b) { SPECAGG_LANES(mask_type, r, r.m[i] = a.v[i] < b.v[i]); }
  friend SPECAGG_PAIR mask_type operator<=(vec a, vec b) { SPECAGG_LANES(mask_type, r, r.m[i] = a.v[i] <= b.v[i]); }
  friend SPECAGG_PAIR mask_type operator>(vec a, vec b) { SPECAGG_LANES(mask_type, r, r.m[i] = a.v[i] > b.v[i]); }
  friend SPECAGG_PAIR mask_type operator>=(vec a, vec b) { SPECAGG_LANES(mask_type, r, r.m[i] = a.v[i] >= b.v[i]); }
  friend SPECAGG_PAIR mask_type operator==(vec a, vec b) { SPECAGG_LANES(mask_type, r, r.m[i] = a.v[i] == b.v[i]); }
  friend SPECAGG_PAIR vec select(mask_type m, vec a, vec b) {
    SPECAGG_LANES(vec, r, r.v[i] = m.m[i] ? a.v[i] : b.v[i]);
  }
  friend SPECAGG_PAIR vec zero_where(mask_type m, vec a) { SPECAGG_LANES(vec, r, r.v[i] = m.m[i] ? 0 : a.v[i]); }
  friend SPECAGG_PAIR vec max(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
  friend SPECAGG_PAIR vec min(vec a, vec b) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
  friend SPECAGG_PAIR vec abs(vec a) { SPECAGG_LANES(vec, r, r.v[i] = a.v[i] < 0 ? -a.v[i] : a.v[i] + 0); }
  friend SPECAGG_PAIR vec sqrt(vec a) { SPECAGG_LANES(vec, r, r.v[i] = T(std::sqrt(a.v[i]))); }
  friend SPECAGG_PAIR vec fma(vec a, vec b, vec c) {
#if !defined(__FMA__) && !defined(__FP_FAST_FMAF) && !defined(__aarch64__)
    if constexpr (sizeof(T) == 4) {
      double s[N];
      for (int i = 0; i < N; ++i) s[i] = double(a.v[i]) * double(b.v[i]) + double(c.v[i]);
      vec r;
      for (int i = 0; i < N; ++i) r.v[i] = float(s[i]);
      constexpr int low = std::endian::native == std::endian::little ? 0 : 1;
      std::uint32_t word[2 * N], twice = 0;
      std::memcpy(word, s, sizeof s);
      for (int i = 0; i < N; ++i)
        twice |= std::uint32_t((word[2 * i + low] & 0x1fffffffu) == 0x10000000u) |
                 std::uint32_t((word[2 * i + 1 - low] & 0x7fffffffu) - 1 < 0x380fffffu);
      if (twice) return by_odd(a, b, c);
      return r;
    }
#endif
    SPECAGG_LANES(vec, r, r.v[i] = detail::fused(a.v[i], b.v[i], c.v[i]));
  }
  friend SPECAGG_PAIR vec uncontracted(vec a) {
    for (int i = 0; i < N; ++i) detail::forbid_contraction(a.v[i]);
    return a;
  }
  friend SPECAGG_PAIR T reduce_add(vec a) {
    for (int h = N / 2; h > 0; h /= 2)
      for (int i = 0; i < h; ++i) a.v[i] = a.v[i] + a.v[i + h];
    return a.v[0];
  }
  friend SPECAGG_PAIR T reduce_max(vec a) {
    for (int h = N / 2; h > 0; h /= 2)
      for (int i = 0; i < h; ++i) a.v[i] = a.v[i] > a.v[i + h] ? a.v[i] : a.v[i + h];
    return a.v[0];
  }
  friend SPECAGG_PAIR vec shift_to_exponent(vec t) { SPECAGG_LANES(vec, r, r.v[i] = shift_to_exponent(one(t.v[i])).v); }
  friend SPECAGG_PAIR vec times_exp2(vec y, vec /*n*/, vec t) { return y * shift_to_exponent(t); }
  friend SPECAGG_PAIR vec exponent_of(vec x) { SPECAGG_LANES(vec, r, r.v[i] = exponent_of(one(x.v[i])).v); }
  friend SPECAGG_PAIR vec mantissa_of(vec x) { SPECAGG_LANES(vec, r, r.v[i] = mantissa_of(one(x.v[i])).v); }
#undef SPECAGG_LANES

 private:
  static SPECAGG_OUTLINE vec by_odd(const vec& a, const vec& b, const vec& c) {
    vec r;
    for (int i = 0; i < N; ++i) r.v[i] = detail::fused_by_odd(a.v[i], b.v[i], c.v[i]);
    return r;
  }
};

SPECAGG_END
#endif
