// SPDX-License-Identifier: Apache-2.0
// The names of vectors and of their comparisons. kernel/simd.hpp defines them for every number of
// lanes.
#pragma once
#include <specagg/config.hpp>

SPECAGG_BEGIN

// The instruction set this translation unit was compiled for: "avx512vnni", "avx512", "avx2",
// "sse2", "neon" or "scalar"; sse2 and scalar with "_fma" or "_avx" after it where the compiler was
// allowed those instructions.
inline constexpr const char* instruction_set = SPECAGG_STRING(SPECAGG_ISA);

// The result of a comparison: a bool for each lane. any(mask): whether one of them is true.
// bits(mask): bit i is lane i.
template <class T, int N>
struct lane_mask;
// N lanes of float or double. Operators, abs, sqrt, max, min and fma work lane by lane.
//   load(x), store(x)          N numbers in memory, of any alignment; f16 and bf16 are converted.
//                              (floats only) store to f16 rounds to nearest, ties to even
//   load_partial(x, n, fill)   the first n numbers at x (no more are read), and `fill` after them
//   load_i8(x)                 N signed bytes
//   iota(first)                first, first + 1, ...
//   select(mask, a, b)         a where the mask is true, else b
//   zero_where(mask, a)        0 where the mask is true, else a
//   reduce_add, reduce_max     over the lanes: lane i with lane i + N / 2, then i + N / 4, ...
//   uncontracted(a)            a: if it is a product, no compiler fuses it into a later sum
// `lanes` is N. A vec of one lane has its number in v.
template <class T, int N>
struct vec;

SPECAGG_END
