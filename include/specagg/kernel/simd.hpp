// SPDX-License-Identifier: Apache-2.0
// vec<T, N>: N lanes of float or double with the same bits on every instruction set. Only this
// header and the folder kernel/detail/simd/ use xsimd.
//
// The library computes with vec<T, 16> on every machine: 1 x 512, 2 x 256 or 4 x 128 bits, or 16
// numbers. A wide vec is a pair of halves, recursively (compilers keep such pairs in registers, but
// spill arrays of registers to memory). Every operation here is exactly rounded (IEEE 754: + - * /
// sqrt fma) or moves bits, so all machines give the same lanes. The author of a formula must do one
// thing: write fma(a, b, c) where a product is added to something. The compiler may or may not
// contract a plain a * b + c, and then the bits depend on its flags. (Rows return, and reductions
// take, uncontracted values: a product there stays a product.)
#pragma once
#include <concepts>

// One file each: single numbers, one lane, the machines (sse2, avx2, avx512, neon), one register
// (with xsimd, or scalar.hpp), pairs of halves.
#include <specagg/kernel/detail/simd/pair.hpp>
#include <specagg/kernel/vec.hpp>

SPECAGG_BEGIN

// ---- for formulas -------------------------------------------------------------------------------

// (x)+ = max(0, x); NaN stays NaN.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> positive(vec<T, N> x) {
  return max(vec<T, N>(0), x);
}
// max(bound, x) for a bound that is not NaN; NaN stays NaN.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> raised(vec<T, N> bound, vec<T, N> x) {
  return max(bound, x);
}
// Selects a or b by one bool for all lanes.
template <class T, int N>
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> select(bool c, vec<T, N> a, vec<T, N> b) {
  return c ? a : b;
}
// Selects one of two numbers, lane by lane: select(c, 0, 1).
template <class T, int N, class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
SPECAGG_FUNCTION SPECAGG_INLINE vec<T, N> select(lane_mask<T, N> c, A a, B b) {
  return select(c, vec<T, N>(a), vec<T, N>(b));
}
// Selects one of two numbers by one bool: select(alpha > 0, 0, 1) in a policy.
template <class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
SPECAGG_FUNCTION SPECAGG_LANE constexpr std::common_type_t<A, B> select(bool c, A a, B b) {
  return c ? a : b;
}
// a * b + c with one rounding for plain doubles, so that formulas look the same outside the
// lambdas. (It is a template. With a function, `using namespace specagg` would make calls ambiguous
// with the C library's function of the same name.)
template <std::same_as<double> D>
SPECAGG_FUNCTION SPECAGG_INLINE D fma(D a, D b, D c) {
  return detail::fused(a, b, c);
}

SPECAGG_END
