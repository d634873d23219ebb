// SPDX-License-Identifier: Apache-2.0
// One of each kind of kernel, for nvcc to compile without a word.
#include <specagg/backend/cuda/ragged.hpp>
#include <specagg/backend/cuda/sharded.hpp>
#include <specagg/backend/cuda/tree.hpp>
#include <specagg/backend/cuda/verify.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/lossy.hpp>
#include <specagg/policy/token_cascade.hpp>

using specagg::bf16;
using specagg::f16;
using namespace specagg::cuda;

#define KERNEL(S, policies, verifier)                                                           \
  template cudaError_t specagg::cuda::verify(const batch<S>&, const policies&, const verifier&, \
                                             const outcome&, void*, std::size_t, cudaStream_t);
using many = const specagg::token_v3*;  // a policy for each request
KERNEL(float, specagg::lossless, specagg::token_verifier)
KERNEL(float, specagg::lossless, specagg::block_verifier)
KERNEL(float, specagg::lossless, specagg::match_verifier)
KERNEL(float, specagg::lossless, coupled)
KERNEL(bf16, specagg::lossy, specagg::token_verifier)
KERNEL(f16, many, specagg::token_verifier)

#define RAGGED(S, draft, policies, verifier)                                                 \
  template cudaError_t specagg::cuda::verify(const ragged_batch<S, draft>&, const policies&, \
                                             const verifier&, const ragged_outcome&, void*,  \
                                             std::size_t, cudaStream_t);
RAGGED(bf16, probability, specagg::lossless, specagg::token_verifier)
RAGGED(float, one_hot, specagg::lossless, specagg::block_verifier)
template cudaError_t specagg::cuda::verify(const filtered_batch<bf16, probability>&,
                                           const specagg::lossless&, const specagg::token_verifier&,
                                           const ragged_outcome&, void*, std::size_t, cudaStream_t);

template cudaError_t specagg::cuda::verify_shard(const sharded_batch<bf16>&,
                                                 const specagg::lossless&,
                                                 const specagg::token_verifier&, const outcome&,
                                                 shard_step&, cudaStream_t);

#define TREES(S, policies, verifier)                                                            \
  template cudaError_t specagg::cuda::verify_trees(const tree_batch<S>&, const policies&,       \
                                                   const verifier&, const tree_outcome&, void*, \
                                                   std::size_t, cudaStream_t);
TREES(float, specagg::lossless, specagg::traversal)
TREES(bf16, many, specagg::recursive_rejection)
