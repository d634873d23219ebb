// SPDX-License-Identifier: Apache-2.0
// vec<T, N> of 16 bytes without xsimd: the vectors of g++ and clang++, which become what the
// machine has (SSE2 on any x86-64, NEON on aarch64, else single numbers). Part of kernel/simd.hpp.
#pragma once
#include <cstdint>
#include <cstring>

#include <specagg/kernel/detail/simd/machine.hpp>

#if SPECAGG_ISA_ID == 0 && defined(__GNUC__) && !defined(__CUDACC__)
SPECAGG_BEGIN
namespace detail {

// The vector types of T: numbers, their bits, and what a comparison gives (0 or -1).
template <class T>
struct vectors {
  using sign = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef T numbers __attribute__((vector_size(16)));
  typedef bits_of<T> bits __attribute__((vector_size(16)));
  typedef sign signs __attribute__((vector_size(16)));
};

}  // namespace detail

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct lane_mask<T, N> {
  typename detail::vectors<T>::signs m;
  friend SPECAGG_LANE lane_mask operator&(lane_mask a, lane_mask b) { return {a.m & b.m}; }
  friend SPECAGG_LANE lane_mask operator|(lane_mask a, lane_mask b) { return {a.m | b.m}; }
  friend SPECAGG_LANE lane_mask operator!(lane_mask a) { return {~a.m}; }
  explicit operator bool() const { return detail::branch_on_lanes<T>::say(); }
  friend SPECAGG_LANE bool any(lane_mask a) {
    std::uint64_t words[2];
    std::memcpy(words, &a.m, sizeof words);
    return (words[0] | words[1]) != 0;
  }
  friend SPECAGG_LANE std::uint32_t bits(lane_mask a) {
    std::uint32_t all = 0;
    for (int i = 0; i < N; ++i) all |= std::uint32_t(a.m[i] & 1) << i;
    return all;
  }
};

template <class T, int N>
  requires(N > 1 && N == detail::native_lanes<T>)
struct vec<T, N> {
  using value_type = T;
  using mask_type = lane_mask<T, N>;
  using vectors = detail::vectors<T>;
  using reg = typename vectors::numbers;
  using bits = typename vectors::bits;
  using signs = typename vectors::signs;
  static constexpr int lanes = N;
  reg v;

  vec() = default;
  SPECAGG_LANE vec(reg r) : v(r) {}
  template <class S>
    requires std::is_arithmetic_v<S>
  SPECAGG_LANE vec(S s) {
    const T t = static_cast<T>(s);
    if constexpr (N == 4) v = reg{t, t, t, t};
    else v = reg{t, t};
  }
  static SPECAGG_LANE vec load(const T* x) {
    reg r{};  // g++ 12 does not see that the loop sets all of it
    std::memcpy(&r, x, sizeof r);
    return r;
  }
  template <class S>
  static SPECAGG_LANE vec load(const S* x) {
    return each([=](int i) { return detail::number(x[i]); });
  }
  template <class S>
  static SPECAGG_LANE vec load_partial(const S* x, int n, T fill) {
    return each([=](int i) { return i < n ? T(detail::number(x[i])) : fill; });
  }
  static SPECAGG_LANE vec load_i8(const std::int8_t* x) {
    return each([=](int i) { return x[i]; });
  }
  static SPECAGG_LANE vec iota(T first) {
    return each([=](int i) { return first + T(i); });
  }
  SPECAGG_LANE void store(T* x) const { std::memcpy(x, &v, sizeof v); }
  SPECAGG_LANE void store(f16* x) const {
    for (int i = 0; i < N; ++i) x[i] = detail::f16_of_float(v[i]);
  }

  friend SPECAGG_LANE vec operator+(vec a, vec b) { return a.v + b.v; }
  friend SPECAGG_LANE vec operator-(vec a, vec b) { return a.v - b.v; }
  friend SPECAGG_LANE vec operator*(vec a, vec b) { return a.v * b.v; }
  friend SPECAGG_LANE vec operator/(vec a, vec b) { return a.v / b.v; }
  friend SPECAGG_LANE vec operator-(vec a) { return -a.v; }
  friend SPECAGG_LANE mask_type operator<(vec a, vec b) { return {a.v < b.v}; }
  friend SPECAGG_LANE mask_type operator<=(vec a, vec b) { return {a.v <= b.v}; }
  friend SPECAGG_LANE mask_type operator>(vec a, vec b) { return {a.v > b.v}; }
  friend SPECAGG_LANE mask_type operator>=(vec a, vec b) { return {a.v >= b.v}; }
  friend SPECAGG_LANE mask_type operator==(vec a, vec b) { return {a.v == b.v}; }
  friend SPECAGG_LANE vec select(mask_type m, vec a, vec b) {
    return reg((m.m & signs(a.v)) | (~m.m & signs(b.v)));
  }
  friend SPECAGG_LANE vec zero_where(mask_type m, vec a) { return reg(~m.m & signs(a.v)); }
  friend SPECAGG_LANE vec max(vec a, vec b) { return a.v > b.v ? a.v : b.v; }  // unordered: b
  friend SPECAGG_LANE vec min(vec a, vec b) { return a.v < b.v ? a.v : b.v; }  // unordered: b
  friend SPECAGG_LANE vec abs(vec a) { return reg(bits(a.v) & (~B(0) >> 1)); }
  friend SPECAGG_LANE vec sqrt(vec a) {
    return each([=](int i) { return std::sqrt(a.v[i]); });
  }
#if SPECAGG_ASKS_FOR_FMA || (defined(__x86_64__) && defined(__FMA__))
  friend SPECAGG_LANE vec fma_instruction(vec a, vec b, vec c) {
    if constexpr (N == 4) asm("vfmadd231ps %2, %1, %0" : "+x"(c.v) : "x"(a.v), "x"(b.v));
    else asm("vfmadd231pd %2, %1, %0" : "+x"(c.v) : "x"(a.v), "x"(b.v));
    return c;
  }
#endif
  friend SPECAGG_LANE vec fma(vec a, vec b, vec c) {
#if SPECAGG_ASKS_FOR_FMA
    return detail::fma_as_asked(a, b, c);
#elif defined(__x86_64__) && defined(__FMA__)
    return fma_instruction(a, b, c);
#elif defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
    return each([=](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
#else
    return fma_emulated(a, b, c);
#endif
  }
  friend SPECAGG_LANE vec fma_emulated(vec a, vec b, vec c) {  // floats: as detail::emulated_fused
    if constexpr (N == 2) {
      return each([=](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
    } else {
      double s[N];
      bool twice = false;
      for (int i = 0; i < N; ++i) {
        s[i] = double(a.v[i]) * double(b.v[i]) + double(c.v[i]);
        twice |= detail::may_round_twice(s[i]);
      }
      if (twice) return by_odd(a, b, c);
      return each([&](int i) { return s[i]; });
    }
  }
  friend SPECAGG_LANE vec uncontracted(vec a) {
    detail::forbid_contraction(a.v);
    return a;
  }
  friend SPECAGG_LANE T reduce_add(vec a) {
    if constexpr (N == 4) return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    else return a.v[0] + a.v[1];
  }
  friend SPECAGG_LANE T reduce_max(vec a) {
    const auto larger = [](T x, T y) { return x > y ? x : y; };
    if constexpr (N == 4) return larger(larger(a.v[0], a.v[2]), larger(a.v[1], a.v[3]));
    else return larger(a.v[0], a.v[1]);
  }
  friend SPECAGG_LANE vec shift_to_exponent(vec t) { return reg(bits(t.v) << mantissa_bits); }
  friend SPECAGG_LANE vec times_exp2(vec y, vec /*n*/, vec t) { return y * shift_to_exponent(t); }
  friend SPECAGG_LANE vec exponent_of(vec x) {
    const bits e = bits(x.v) >> mantissa_bits;
    return each([=](int i) { return T(e[i]); });
  }
  friend SPECAGG_LANE vec mantissa_of(vec x) {
    const B one = detail::bit_cast<B>(T(1)), low = (B(1) << mantissa_bits) - 1;
    return reg((bits(x.v) & low) | one);
  }

 private:
  using B = detail::bits_of<T>;
  static constexpr int mantissa_bits = detail::mantissa_bits<T>;
  template <class F>
  static SPECAGG_LANE vec each(const F& f) {
    reg r{};  // g++ 12 does not see that the loop sets all of it
    for (int i = 0; i < N; ++i) r[i] = static_cast<T>(f(i));
    return r;
  }
  static SPECAGG_OUTLINE vec by_odd(vec a, vec b, vec c) {
    return each([=](int i) { return detail::fused_by_odd(a.v[i], b.v[i], c.v[i]); });
  }
};

SPECAGG_END
#endif
