// SPDX-License-Identifier: Apache-2.0
// The base of all other headers: the version, checks of the compiler, and one namespace per
// instruction set.
#pragma once

#define SPECAGG_VERSION_MAJOR 0
#define SPECAGG_VERSION_MINOR 5
#define SPECAGG_VERSION_PATCH 0
#define SPECAGG_VERSION "0.5.0"

// The second line ends the compilation: older compilers would go on with thousands of errors.
#if !defined(SPECAGG_ALLOW_OTHER_COMPILERS) && defined(__cplusplus) && __cplusplus < 202002L
#error "specagg: needs C++20: compile with -std=c++20 or newer"
#define SPECAGG_STOP_ <specagg needs C++20>
#include SPECAGG_STOP_
#endif

// -ffast-math lets the compiler assume that NaN and infinity do not exist, and lets it reorder
// sums. Rows of NaN would then pass as valid, and tokens would differ from machine to machine.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#define SPECAGG_FAST_MATH_ 1
#else
#define SPECAGG_FAST_MATH_ 0
#endif
#if SPECAGG_FAST_MATH_ && !defined(SPECAGG_ALLOW_FAST_MATH)
#error \
    "specagg: -ffast-math hides NaN and changes tokens from machine to machine; compile this file without it (SPECAGG_ALLOW_FAST_MATH accepts that)"
#endif

#if !defined(__GNUC__) && !defined(__CUDACC__) && !defined(SPECAGG_ALLOW_OTHER_COMPILERS)
#error \
    "specagg: tested with g++ 12 and newer and clang++ 14 and newer; with this compiler nobody knows (SPECAGG_ALLOW_OTHER_COMPILERS tries)"
#endif

#if !defined(__CUDA_ARCH__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error \
    "specagg: this target evaluates float expressions in a wider type (x87); use -msse2 -mfpmath=sse"
#endif

// Whether asm is PTX: nvcc compiles for the device. (A test defines __CUDA_ARCH__ as well, but not
// __NVCC__.)
#if defined(__CUDA_ARCH__) && defined(__NVCC__)
#define SPECAGG_PTX 1
#else
#define SPECAGG_PTX 0
#endif

// A function that runs on the host and inside a CUDA block.
#if defined(__CUDACC__)
#define SPECAGG_FUNCTION __host__ __device__
#else
#define SPECAGG_FUNCTION
#endif

// Which instructions the vectors of kernel/simd.hpp use. SPECAGG_SCALAR: what the compiler makes of
// plain code, without intrinsics and xsimd. The name is also an inline namespace. Without it, two
// translation units built for different instruction sets would share one copy of every inline
// function. The linker could then choose the copy that crashes the older machine.
#if defined(SPECAGG_SCALAR) || defined(__CUDACC__)  // device code works on pairs of plain numbers
#define SPECAGG_ISA scalar
#elif !defined(__has_include)
#define SPECAGG_ISA scalar
#elif !__has_include(<xsimd/xsimd.hpp>)
// Slower, but the same tokens: xsimd is the only dependency, and it is optional.
#define SPECAGG_ISA scalar
#elif defined(__AVX512F__) && defined(__AVX512CD__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)
#if defined(__AVX512VNNI__)  // the CPU backend has a faster kernel for it
#define SPECAGG_ISA avx512vnni
#else
#define SPECAGG_ISA avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SPECAGG_ISA avx2
#elif defined(__SSE2__) && \
    defined(__FMA__)  // 128-bit vectors too, but other instructions: these get their own name
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

// The compiler prints this once for each file. The tokens are the same, only slower, so nothing
// else would show it.
#if !defined(SPECAGG_SCALAR) && !defined(SPECAGG_ALLOW_SLOW) && !defined(__CUDACC__) && \
    defined(__GNUC__)
#if defined(__has_include) && !__has_include(<xsimd/xsimd.hpp>)
#pragma message( \
    "specagg: xsimd/xsimd.hpp was not found: vectors of 128 bits at most, several times slower (SPECAGG_ALLOW_SLOW silences this)")
#elif defined(__x86_64__) && !defined(__FMA__)
#pragma message( \
    "specagg: no AVX2 and FMA: several times slower; -march=native, -mavx2 -mfma -mf16c, or specagg_dispatch in CMake (SPECAGG_ALLOW_SLOW silences this)")
#endif
#endif

// SPECAGG_ISA as a string, for reports.
#define SPECAGG_STRING_(x) #x
#define SPECAGG_STRING(x) SPECAGG_STRING_(x)

#define SPECAGG_ISA_ID_scalar 0
#define SPECAGG_ISA_ID_scalar_avx 0
#define SPECAGG_ISA_ID_scalar_fma 0
#define SPECAGG_ISA_ID_sse2 1
#define SPECAGG_ISA_ID_sse2_avx 1
#define SPECAGG_ISA_ID_sse2_fma 1
#define SPECAGG_ISA_ID_avx2 2
#define SPECAGG_ISA_ID_avx512 3
#define SPECAGG_ISA_ID_avx512vnni 3
#define SPECAGG_ISA_ID_neon 4
#define SPECAGG_CAT_(a, b) a##b
#define SPECAGG_CAT(a, b) SPECAGG_CAT_(a, b)
#define SPECAGG_ISA_ID SPECAGG_CAT(SPECAGG_ISA_ID_, SPECAGG_ISA)

// Scalar code, too, has other instructions under -mfma or -mavx: names of their own.
#if SPECAGG_ISA_ID == 0 && !defined(__CUDACC__)
#if defined(__FMA__)
#undef SPECAGG_ISA
#define SPECAGG_ISA scalar_fma
#elif defined(__AVX__)
#undef SPECAGG_ISA
#define SPECAGG_ISA scalar_avx
#endif
#endif

// How much the compiler inlines decides how long compilation takes, and how fast the hot loops are.
//   LANE     one operation on one register or number: always inlined
//   INLINE   formulas of such operations, and rows that return 16 lanes: always inlined where a
//            register holds 8 floats or more. Elsewhere 16 lanes are 4 registers, and the compiler
//            decides
//   PAIR     operations on vectors wider than a register: the compiler decides, but inside FLATTEN
//            all are inlined
//   FLATTEN  loops over the vocabulary; INNER (after the parameters) marks the lambdas in them.
//            Both work as INLINE
//   OUTLINE  never inlined: rarely called, or too long to have twice
// SPECAGG_COMPILE_FAST leaves all but LANE to the compiler, and no loop is unrolled (UNROLLS). The
// tokens are the same; loops over the vocabulary take several times as long. It is for tests and
// audits, and for programs whose time goes into their models.
#if defined(__CUDACC__)
#define SPECAGG_LANE __forceinline__
#define SPECAGG_INLINE __forceinline__
#define SPECAGG_PAIR __forceinline__
#define SPECAGG_OUTLINE inline __noinline__
#define SPECAGG_INNER
#define SPECAGG_FLATTEN
#elif defined(__GNUC__)
#define SPECAGG_LANE inline __attribute__((always_inline))
#define SPECAGG_OUTLINE inline __attribute__((noinline))
#define SPECAGG_PAIR inline
#if (SPECAGG_ISA_ID == 2 || SPECAGG_ISA_ID == 3) && !defined(SPECAGG_COMPILE_FAST)
#define SPECAGG_INLINE inline __attribute__((always_inline))
#define SPECAGG_INNER __attribute__((always_inline))
#define SPECAGG_FLATTEN __attribute__((flatten, noinline))
#else
#define SPECAGG_INLINE inline
#define SPECAGG_INNER
#define SPECAGG_FLATTEN
#endif
#else
#define SPECAGG_LANE inline
#define SPECAGG_INLINE inline
#define SPECAGG_PAIR inline
#define SPECAGG_OUTLINE inline
#define SPECAGG_INNER
#define SPECAGG_FLATTEN
#endif

// Rounds x to its type and keeps it in the given register class. The compiler cannot fuse the
// product that made x into a later sum.
#if defined(__GNUC__)
#define SPECAGG_FORBID_CONTRACTION(x, register_class) asm("" : register_class(x))
#else
#define SPECAGG_FORBID_CONTRACTION(x, register_class) static_cast<void>(x)
#endif

// nvcc warns if a host-and-device function is instantiated for rows of the host. It is an error on
// the device only.
#if defined(__CUDACC__)
#define SPECAGG_PUSH_WARNINGS_ _Pragma("nv_diagnostic push") _Pragma("nv_diag_suppress 20011,20014")
#define SPECAGG_POP_WARNINGS_ _Pragma("nv_diagnostic pop")
// Stands around code that calls a policy's functions: a function that lacks SPECAGG_FUNCTION is an
// error. Otherwise nvcc would leave the call out.
#define SPECAGG_BEGIN_CALLS _Pragma("nv_diagnostic push") _Pragma("nv_diag_error 20011,20014")
#else
#define SPECAGG_PUSH_WARNINGS_
#define SPECAGG_POP_WARNINGS_
#define SPECAGG_BEGIN_CALLS
#endif
#define SPECAGG_END_CALLS SPECAGG_POP_WARNINGS_

// Each build setting that changes generated code adds a suffix to the inline namespace, so objects
// built differently can be linked together. A build without NDEBUG checks more. nvcc has other
// vectors than g++, in host code, too. A part of an instruction set is used by the compiler, though
// not by the library.
#if defined(NDEBUG) || defined(__CUDACC__)
#define SPECAGG_CHECKS_LAWS 0
#define SPECAGG_CHECKED_
#else
#define SPECAGG_CHECKS_LAWS 1
#define SPECAGG_CHECKED_ _checked
#endif
#if defined(__CUDACC__)
#define SPECAGG_CUDA_ _cuda
#else
#define SPECAGG_CUDA_
#endif
#if SPECAGG_FAST_MATH_
#define SPECAGG_FAST_ _fastmath
#else
#define SPECAGG_FAST_
#endif
#if defined(SPECAGG_COMPILE_FAST)
#define SPECAGG_COMPACT_ _compact
#define SPECAGG_UNROLLS false
#else
#define SPECAGG_COMPACT_
#define SPECAGG_UNROLLS true
#endif
#if defined(__AVX512F__) && SPECAGG_ISA_ID != 3
#define SPECAGG_PARTLY_ _avx512f
#elif defined(__AVX2__) && SPECAGG_ISA_ID < 2
#define SPECAGG_PARTLY_ _avx2
#elif defined(__SSE4_1__) && !defined(__AVX__)
#define SPECAGG_PARTLY_ _sse4
#else
#define SPECAGG_PARTLY_
#endif
#define SPECAGG_CAT6_(a, b, c, d, e, f) a##b##c##d##e##f
#define SPECAGG_CAT6(a, b, c, d, e, f) SPECAGG_CAT6_(a, b, c, d, e, f)
#define SPECAGG_BUILD_                                                                       \
  SPECAGG_CAT6(SPECAGG_ISA, SPECAGG_PARTLY_, SPECAGG_CUDA_, SPECAGG_FAST_, SPECAGG_COMPACT_, \
               SPECAGG_CHECKED_)

#define SPECAGG_BEGIN    \
  SPECAGG_PUSH_WARNINGS_ \
  namespace specagg {    \
  inline namespace SPECAGG_BUILD_ {
#define SPECAGG_END \
  }                 \
  }                 \
  SPECAGG_POP_WARNINGS_
