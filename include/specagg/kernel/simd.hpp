// SPDX-License-Identifier: Apache-2.0
// vec<T, N>: N lanes of float or double with the same bits on every instruction set. The only header that names xsimd.
//
// The library computes on vec<T, 16> whatever the machine has: 1 x 512, 2 x 256 or 4 x 128 bits, or 16 scalars. A wide
// vec is a pair of halves, recursively (compilers keep such pairs in registers; arrays of registers they spill). Every
// operation here is exactly rounded (IEEE 754: + - * / sqrt fma) or moves bits, so lanes agree everywhere. One thing is
// left to whoever writes formulas with it: where a product meets a sum, write fma(a, b, c). A plain a * b + c may or
// may not be contracted by the compiler, and then the bits depend on its flags. (What rows hand out and what reductions
// take is uncontracted: a product there stays a product.)
#pragma once
#include <concepts>

// A file each: numbers, one lane, the machines (sse2, avx2, avx512, neon), one register, pairs of halves; scalar code.
#include <specagg/kernel/simd/pair.hpp>
#include <specagg/kernel/simd/scalar.hpp>

SPECAGG_BEGIN

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
