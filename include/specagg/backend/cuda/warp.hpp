// SPDX-License-Identifier: Apache-2.0
// How the 32 threads of a warp, and the 16 that process a block of 1024 tokens, combine their
// numbers in the order of kernel/reduce.hpp and find a place among entries: with the bits of the
// CPU.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN
namespace cuda {

inline constexpr unsigned threads = 256;  // per thread block
inline constexpr unsigned most_in_cluster = 8;
inline constexpr std::size_t most_vocabulary = std::size_t(1) << 18;
inline constexpr std::size_t most_drafted = 16;

namespace detail {

using namespace specagg::detail;  // the CPU's parts
static_assert(SPECAGG_ISA_ID == 0, "specagg: backend/cuda outside nvcc needs SPECAGG_SCALAR");

inline constexpr std::size_t most_blocks = most_vocabulary / block_size;
// per thread block; each takes a block of 1024 tokens
inline constexpr unsigned groups = threads / 16;
static_assert(threads == block_size / 4, "a draw looks at 1024 weights, four a thread");

// The 16 threads of this thread's group, as a mask of its warp.
__device__ inline unsigned own_group() { return threadIdx.x & 16 ? 0xffff0000u : 0x0000ffffu; }
inline constexpr unsigned whole_warp = ~0u;
// The value of the thread of the group whose number differs in bit `d`. `among`: the threads that
// call it together. With whole_warp nvcc makes no code for warps that are divided.
__device__ inline float other(float x, int d, unsigned among) {
  return __shfl_xor_sync(among, x, d);
}
// The least value of the 32 threads of a warp, and the largest number; each gets it.
__device__ inline unsigned least_of_warp(unsigned x) { return __reduce_min_sync(~0u, x); }
__device__ inline float largest_of_warp(float x) {
  return unordered<float>(__reduce_max_sync(~0u, ordered(x)));
}
template <int N>
__device__ vec<float, N> other(vec<float, N> x, int d, unsigned among) {
  if constexpr (N == 1) {
    return other(x.v, d, among);
  } else if constexpr (requires { x.lo; }) {
    return {other(x.lo, d, among), other(x.hi, d, among)};
  } else {  // outside nvcc
    for (int i = 0; i < N; ++i) x.v[i] = other(x.v[i], d, among);
    return x;
  }
}

// The value of the thread whose number differs in bit `d`, among the 32 threads of a warp.
__device__ inline double other_lane(double x, int d) { return __shfl_xor_sync(~0u, x, d); }
template <class A, class B>
__device__ both<A, B> other_lane(both<A, B> x, int d) {
  return {other_lane(x.first, d), other_lane(x.second, d)};
}
// The value of the first thread of the warp.
__device__ inline double first_lane(double x) { return __shfl_sync(~0u, x, 0); }
template <class A, class B>
__device__ both<A, B> first_lane(both<A, B> x) {
  return {first_lane(x.first), first_lane(x.second)};
}
// Combines the values of the 32 threads of a warp in the order of kernel/reduce.hpp. Thread i has
// the results of blocks i, i + 32, ... A loop: nvcc makes each shuffle twice, also for a warp that
// is divided.
template <class Op, class D>
__device__ D across_warp(D x) {
#pragma unroll 1
  for (int d = 16; d > 0; d /= 2) x = reducer<Op, D>::apply(x, other_lane(x, d));
  return first_lane(x);  // of -0 and +0 the order of the two decides
}

// The value of the first thread of the group of 16.
__device__ inline double first_of_group(double x) {
  return __shfl_sync(threadIdx.x & 16 ? 0xffff0000u : 0x0000ffffu, x, 0, 16);
}
template <class A, class B>
__device__ both<A, B> first_of_group(both<A, B> x) {
  return {first_of_group(x.first), first_of_group(x.second)};
}

// Combines the accumulators of the 16 threads of a group, in the order of kernel/reduce.hpp: the
// accumulators (0 + 1) + (2 + 3), then lane i with i + 8, i + 4, i + 2, and i + 1. With 7 shuffles
// for 16: while accumulators are combined, a thread keeps two of its four lanes, and then one.
template <class Op>
__device__ double across_group(vec<float, 4> a, unsigned among = own_group()) {
  using V = vec<float, 1>;
  using R = reducer<Op, V>;
  float x[4];
  a.store(x);
  const auto halve = [&](float low, float high, int d) {
    const bool keeps_high = (threadIdx.x & unsigned(d)) != 0;
    return R::apply(keeps_high ? high : low, other(keeps_high ? low : high, d, among)).v;
  };
  V y = halve(halve(x[0], x[2], 4), halve(x[1], x[3], 4), 8);
#pragma unroll
  for (const int d : {2, 1, 4, 8}) y = R::apply(y, other(y, d, among));
  return double(y.v);
}
template <class Op, class A, class B>
__device__ auto across_group(both<A, B> a, unsigned among = own_group()) {
  return both{across_group<Op>(a.first, among), across_group<Op>(a.second, among)};
}

// As find_place() of kernel/sample.hpp, for n <= 256 entries in shared memory. Every thread of the
// warp finds the same. Not inlined: a kernel has several draws of two such places each.
SPECAGG_OUTLINE __device__ place place_in_warp(const double* entries, std::size_t n, place in) {
  static_assert(most_blocks <= 256);
#if SPECAGG_PTX
  __builtin_assume(__isShared(entries));
#endif
  unsigned begin = 0;
  const unsigned end = unsigned(n);
  if (end > 16) {
    // each thread adds up the group with the number of its lane
    double part[16];
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) {
      const unsigned k = threadIdx.x % 16 * 16 + i;
      part[i] = k < end ? entries[k] : 0;
    }
#pragma unroll
    for (unsigned k = 8; k > 0; k /= 2)
#pragma unroll
      for (unsigned i = 0; i < k; ++i) part[i] += part[i + k];
    const unsigned sixteens = (end + 15) / 16;
    in = find_in_turn([&](std::size_t i) { return __shfl_sync(~0u, part[0], int(i)); }, sixteens,
                      in);
    if (in.index == sixteens) return {n, in.rest, in.floor};
    begin = 16 * unsigned(in.index);
  }
  const unsigned count = end - begin < 16 ? end - begin : 16;
  place last = find_in_turn([&](std::size_t i) { return entries[begin + i]; }, count, in);
  last.index = last.index == count ? n : begin + last.index;
  return last;
}

}  // namespace detail
}  // namespace cuda
SPECAGG_END
