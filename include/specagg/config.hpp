// SPDX-License-Identifier: Apache-2.0
// What every other header stands on: the version, the compiler's promises, and one namespace per instruction set.
#pragma once

#define SPECAGG_VERSION_MAJOR 0
#define SPECAGG_VERSION_MINOR 1
#define SPECAGG_VERSION_PATCH 0
#define SPECAGG_VERSION "0.1.0"

// -ffast-math lets the compiler assume that NaN and infinity do not exist and reorder sums: rows of NaN would pass as
// valid, and tokens would differ from machine to machine.
#if !defined(SPECAGG_ALLOW_FAST_MATH) && \
    (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
     (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__))
#error "specagg: -ffast-math hides NaN and changes tokens from machine to machine; compile this file without it (SPECAGG_ALLOW_FAST_MATH accepts that)"
#endif

#if !defined(__CUDA_ARCH__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "specagg: this target evaluates float expressions in a wider type (x87); use -msse2 -mfpmath=sse"
#endif

// A function that runs on the host and inside a CUDA block.
#if defined(__CUDACC__)
#define SPECAGG_FUNCTION __host__ __device__
#else
#define SPECAGG_FUNCTION
#endif

#if defined(__CUDACC__)
#define SPECAGG_INLINE __forceinline__
#define SPECAGG_OUTLINE inline __noinline__
#define SPECAGG_INNER
#define SPECAGG_FLATTEN
#elif defined(__GNUC__)
#define SPECAGG_INLINE inline __attribute__((always_inline))
#define SPECAGG_OUTLINE inline __attribute__((noinline))
#else
#define SPECAGG_INLINE inline
#define SPECAGG_OUTLINE inline
#endif

// Loops over the vocabulary and the lambdas in them (INNER stands behind their parameters) are inlined where a register
// holds 8 floats or more. Where 16 lanes are 4 registers or 16 scalars that would treble the time to compile.
#if defined(__GNUC__) && defined(__AVX2__) && !defined(SPECAGG_SCALAR) && !defined(__CUDACC__)
#define SPECAGG_INNER __attribute__((always_inline))
#define SPECAGG_FLATTEN __attribute__((flatten, noinline))
#else
#define SPECAGG_INNER
#define SPECAGG_FLATTEN
#endif

// Which instructions the vectors of kernel/simd.hpp are made of. SPECAGG_SCALAR asks for plain scalar code.
// The name is also an inline namespace: two translation units built for different instruction sets would otherwise
// share one copy of every inline function, and the linker's choice could crash the older machine.
#if defined(SPECAGG_SCALAR) || defined(__CUDACC__)  // device code works on pairs of plain numbers
#define SPECAGG_ISA scalar
#elif !defined(__has_include)
#define SPECAGG_ISA scalar
#elif !__has_include(<xsimd/xsimd.hpp>)
#define SPECAGG_ISA scalar  // slow, same tokens: xsimd is the only dependency, and it is optional
#elif defined(__AVX512F__) && defined(__AVX512CD__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#define SPECAGG_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SPECAGG_ISA avx2
#elif defined(__SSE2__) && defined(__FMA__)  // 128-bit vectors too, but other instructions: names of their own
#define SPECAGG_ISA sse2_fma
#elif defined(__SSE2__) && defined(__AVX__)
#define SPECAGG_ISA sse2_avx
#elif defined(__SSE2__)
#define SPECAGG_ISA sse2
#elif defined(__aarch64__)
#define SPECAGG_ISA neon
#else
#define SPECAGG_ISA scalar
#endif

// SPECAGG_ISA as a string, for reports.
#define SPECAGG_STRING_(x) #x
#define SPECAGG_STRING(x) SPECAGG_STRING_(x)

// nvcc warns where a function for both sides is instantiated for rows of the host's; on the device that is an error.
#if defined(__CUDACC__)
#define SPECAGG_PUSH_WARNINGS_ _Pragma("nv_diagnostic push") _Pragma("nv_diag_suppress 20011,20014")
#define SPECAGG_POP_WARNINGS_ _Pragma("nv_diagnostic pop")
#else
#define SPECAGG_PUSH_WARNINGS_
#define SPECAGG_POP_WARNINGS_
#endif

#define SPECAGG_BEGIN    \
  SPECAGG_PUSH_WARNINGS_ \
  namespace specagg {    \
  inline namespace SPECAGG_ISA {
#define SPECAGG_END \
  }                 \
  }                 \
  SPECAGG_POP_WARNINGS_
