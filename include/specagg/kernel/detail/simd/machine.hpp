// SPDX-License-Identifier: Apache-2.0
// The machine that this translation unit is compiled for: its intrinsics, and the number of lanes
// of a register. Part of kernel/simd.hpp.
#pragma once
#include <specagg/kernel/detail/simd/lane.hpp>

// g++ 12 warns about an undefined operand that is part of its own AVX-512 intrinsics, as if it were
// ours.
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
namespace detail {

#if defined(__CUDACC__) || (SPECAGG_ISA_ID == 0 && !defined(__GNUC__))
inline constexpr int native_bytes = 0;
#else
inline constexpr int native_bytes = SPECAGG_ISA_ID == 3 ? 64 : SPECAGG_ISA_ID == 2 ? 32 : 16;
#endif
template <class T>
inline constexpr int native_lanes = native_bytes == 0 ? 1 : native_bytes / int(sizeof(T));

// The rare way of an fma of all lanes: a call, so that the code stands once.
template <class V>
SPECAGG_OUTLINE V fma_emulated_call(const V& a, const V& b, const V& c) {
  return fma_emulated(a, b, c);
}
#if SPECAGG_ASKS_FOR_FMA
// fma of all lanes by one test of the machine.
template <class V>
SPECAGG_LANE V fma_as_asked(const V& a, const V& b, const V& c) {
  return machine_has_fma() ? fma_instruction(a, b, c) : fma_emulated_call(a, b, c);
}
#endif

}  // namespace detail
SPECAGG_END
