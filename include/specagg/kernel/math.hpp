// SPDX-License-Identifier: Apache-2.0
// The library's own exp, log and pow. They use exactly rounded operations only, so they give the
// same bits on every instruction set and device. Their error bounds are constants. The tests check
// these for every float and for millions of doubles.
#pragma once
#include <specagg/kernel/simd.hpp>

SPECAGG_BEGIN

namespace detail {

// 2^r = 1 + r (c0 + c1 r + ...) on [-1/2, 1/2], exact at 0; minimax in relative error (Remez),
// 9.1e-8 and 3.4e-18. log m = 2 s + s^3 (l0 + l1 s^2 + ...), s = (m - 1) / (m + 1), m in [sqrt 1/2,
// sqrt 2); minimax, 5e-12 and 9e-21.
template <class T>
struct coefficients;
template <>
struct coefficients<float> {
  static constexpr float exp2[] = {0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f,
                                   0x1.5bba14p-10f};
  static constexpr float log[] = {0x1.555554p-1f, 0x1.999a78p-2f, 0x1.243954p-2f, 0x1.e2e676p-3f};
  static constexpr float rounder = 0x1.8p23f + 127.f, log2e = 0x1.715476p0f,
                         log2e_low = 0x1.4ae0cp-26f;
  // ln2 in 14 bits: n * ln2 is exact
  static constexpr float ln2 = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
};
template <>
struct coefficients<double> {
  static constexpr double exp2[] = {
      0x1.62e42fefa39efp-1,  0x1.ebfbdff82c5a4p-3,  0x1.c6b08d7049fe8p-5,  0x1.3b2ab6fba011ap-7,
      0x1.5d87fe78cd6cfp-10, 0x1.4309130ed8cd5p-13, 0x1.ffcbfba980f96p-17, 0x1.62bfc79d4b59fp-20,
      0x1.b5267cdfd91eep-24, 0x1.e61b4f9a207f5p-28, 0x1.e79bb6fc55606p-32};
  static constexpr double log[] = {0x1.5555555555555p-1, 0x1.9999999999dc5p-2, 0x1.249249242ed2bp-2,
                                   0x1.c71c7255840bdp-3, 0x1.745cdf2387eedp-3, 0x1.3b2087f76d846p-3,
                                   0x1.0f5f948ed431fp-3, 0x1.0f4c192f32f2bp-3};
  static constexpr double rounder = 0x1.8p52 + 1023., log2e = 0x1.71547652b82fep0,
                          log2e_low = 0x1.777d0ffda0d24p-56;
  static constexpr double ln2 = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
};

// Horner's rule, unrolled: c(0) + r (c(1) + ...). c takes a number that is known at compile time.
template <int Size, int I = 0, class V, class C>
SPECAGG_FUNCTION SPECAGG_INLINE V polynomial(V r, const C& c) {
  const V now(c(std::integral_constant<int, I>()));
  if constexpr (I + 1 == Size) return now;
  else return fma(r, polynomial<Size, I + 1>(r, c), now);
}
// The tables above, accessed one number at a time (device code can use the numbers, but not the
// arrays).
template <class T>
struct exp2_table {
  static constexpr int size = sizeof(coefficients<T>::exp2) / sizeof(T);
  template <int I>
  SPECAGG_FUNCTION constexpr T operator()(std::integral_constant<int, I>) const {
    constexpr T c = coefficients<T>::exp2[I];
    return c;
  }
};
template <class T>
struct log_table {
  static constexpr int size = sizeof(coefficients<T>::log) / sizeof(T);
  template <int I>
  SPECAGG_FUNCTION constexpr T operator()(std::integral_constant<int, I>) const {
    constexpr T c = coefficients<T>::log[I];
    return c;
  }
};

}  // namespace detail

// Bounds of the relative error. For a slightly larger argument exp may return a result one unit in
// the last place smaller; log never does.
template <class T>
inline constexpr double exp_error = sizeof(T) == 4 ? 1.9e-7 : 2.2e-16;
template <class T>
inline constexpr double log_error = sizeof(T) == 4 ? 9e-8 : 2e-16;
// The relative error of pow, given |y log x|.
template <class T>
constexpr double pow_error(double y_log_x) {
  return exp_error<T> + (log_error<T> + std::numeric_limits<T>::epsilon() / 2) * y_log_x;
}

// The factor that exp_scaled takes: log2(e) / temperature as an unevaluated sum of two T.
template <class T>
struct exp_scale {
  T high, low;
  SPECAGG_FUNCTION static exp_scale of_temperature(double temperature) {
    using C = detail::coefficients<double>;
    const double x = C::log2e / temperature;
    if constexpr (sizeof(T) == 4) return {T(x), T(x - double(T(x)))};
    else {  // one Newton step recovers the error of the division
      const double r = fma(-x, temperature, C::log2e);
      return {x, (r + C::log2e_low) / temperature};
    }
  }
};

// exp returns 0 where its result is below 2^(least_exponent - 1/2). Its other results are never
// subnormal, so flush-to-zero makes no difference.
template <class T>
inline constexpr T least_exponent = sizeof(T) == 4 ? -125 : -1021;

// e^(x / temperature) for x <= 0. Every softmax uses it, with x = logit - max. The result lies in
// [0, 1]: exactly 1 at 0, 0 where it is below 2^(least - 1/2), NaN for NaN.
template <class V, class T = typename V::value_type>
SPECAGG_FUNCTION SPECAGG_INLINE V exp_scaled(V x, exp_scale<T> scale, T least = least_exponent<T>) {
  using C = detail::coefficients<T>;
  constexpr int size = detail::exp2_table<T>::size;
  // its low bits: the integer n = round(x log2(e) / temperature)
  const V t = fma(x, V(scale.high), V(C::rounder));
  const V n = t - V(C::rounder);
  const V r = fma(x, V(scale.low), fma(x, V(scale.high), -n));
  const V y = fma(r, detail::polynomial<size>(r, detail::exp2_table<T>()), V(1));
  return zero_where(t < V(C::rounder + least), times_exp2(y, n, t));
}

namespace detail {

template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> exp_of(vec<T, N> x) {
  using V = vec<T, N>;
  using C = coefficients<T>;
  constexpr T largest = sizeof(T) == 4 ? T(0x1.62e42ep6) : T(0x1.62e42fefa39efp9);
  // The exponent may be 128, and 2^128 is not a float. For x > 0 the exponent is made one smaller
  // and the result is doubled.
  const V big = select(x > V(0), V(1), V(0));
  const V t = fma(x, V(C::log2e), V(C::rounder)) - big;
  const V n = (t - V(C::rounder)) + big;
  const V r = fma(x, V(C::log2e_low), fma(x, V(C::log2e), -n));
  const V y =
      (fma(r, polynomial<exp2_table<T>::size>(r, exp2_table<T>()), V(1)) * shift_to_exponent(t)) *
      (big + V(1));
  return select(x > V(largest), V(std::numeric_limits<T>::infinity()),
                select(t < V(C::rounder + least_exponent<T>), V(0), y));
}

template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> log_of(vec<T, N> x) {
  using V = vec<T, N>;
  using C = coefficients<T>;
  constexpr int size = log_table<T>::size;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  // A subnormal number is read as 2^digits times as much.
  constexpr int bias = std::numeric_limits<T>::max_exponent - 1, digits = sizeof(T) == 4 ? 24 : 53;
  const auto small = x < V(std::numeric_limits<T>::min());
  const V scaled = select(small, x * V(T(std::uint64_t(1) << digits)), x);
  V m = mantissa_of(scaled), e = exponent_of(scaled) - select(small, V(bias + digits), V(bias));
  const auto high = m > V(T(0x1.6a09e6p0));
  m = select(high, m * V(T(0.5)), m);
  e = select(high, e + V(1), e);
  const V f = m - V(1), s = f / (V(2) + f), z = s * s;
  // log m = f - s (f - z R): the leading term f is exact (same arrangement as fdlibm)
  const V low = fma(e, V(C::ln2_low), s * fma(z, polynomial<size>(z, log_table<T>()), -f));
  V y = fma(e, V(C::ln2), f + low);
  y = select(x > V(0), y, select(x < V(0), V(std::numeric_limits<T>::quiet_NaN()), V(-infinity)));
  return select(x < V(infinity), y, x);  // +inf and NaN are returned as they are
}

// Functions of doubles are not inlined. Audits compile many policies in double, and a policy with
// several inlined logarithms would take minutes to compile.
template <int N>
SPECAGG_FUNCTION SPECAGG_OUTLINE vec<double, N> exp_outlined(vec<double, N> x) {
  return exp_of(x);
}
template <int N>
SPECAGG_FUNCTION SPECAGG_OUTLINE vec<double, N> log_outlined(vec<double, N> x) {
  return log_of(x);
}

}  // namespace detail

// e^x for any x: +inf above the logarithm of the largest finite number; otherwise as exp_scaled.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> exp(vec<T, N> x) {
  if constexpr (sizeof(T) == 8) return detail::exp_outlined(x);
  else return detail::exp_of(x);
}
// Natural logarithm: -inf at 0, NaN for negative x and for NaN, +inf at +inf. Under flush-to-zero a
// subnormal x is 0.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> log(vec<T, N> x) {
  if constexpr (sizeof(T) == 8) return detail::log_outlined(x);
  else return detail::log_of(x);
}

// log(1 + x) without cancellation (Kahan): both factors contain the rounding error of y, so it
// cancels.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V log_1_plus(V x) {
  const V y = 1 + x;
  return select(y == 1, x, log(y) * x / (y - 1));
}

// log(1 + x) - x for x >= -1 without cancellation. With s = x / (2 + x), log(1 + x) = 2 s +
// s^3 (...), and 2 s - x = -s x.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V log_1_plus_less(V x) {
  using table = detail::log_table<typename V::value_type>;
  const V s = x / (2 + x), z = s * s;
  const V near = s * fma(z, detail::polynomial<table::size>(z, table()), -x);
  return select(abs(x) < V(0.25), near, log(1 + x) - x);
}

// x^y for x >= 0, computed as exp(y log x). x^0 = 1 for any x, and 1^y = 1 for finite y.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> pow(vec<T, N> x, std::type_identity_t<vec<T, N>> y) {
  return select(y == vec<T, N>(0), vec<T, N>(1), exp(y * log(x)));
}

// exp, log and pow of one double: the bits of a lane.
template <std::same_as<double> D>
SPECAGG_FUNCTION SPECAGG_INLINE D exp(D x) {
  return exp(vec<D, 1>(x)).v;
}
template <std::same_as<double> D>
SPECAGG_FUNCTION SPECAGG_INLINE D log(D x) {
  return log(vec<D, 1>(x)).v;
}
template <std::same_as<double> D>
SPECAGG_FUNCTION SPECAGG_INLINE D pow(D x, D y) {
  return pow(vec<D, 1>(x), vec<D, 1>(y)).v;
}

SPECAGG_END
