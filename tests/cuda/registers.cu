// SPDX-License-Identifier: Apache-2.0
// One kernel each time, which KERNEL says. scripts/cuda-kernels writes what ptxas says of it into
// docs/cuda-kernels.txt.
#include <specagg/backend/cuda/ragged.hpp>
#include <specagg/backend/cuda/sharded.hpp>
#include <specagg/backend/cuda/tree.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/lossy.hpp>
#include <specagg/policy/token_cascade.hpp>

using namespace specagg;
using namespace specagg::cuda;
using namespace specagg::cuda::detail;
template <bool Whole>
using b16 = drafts<padded<batch<bf16>>, Whole>;
template <bool Whole>
using f32 = drafts<padded<batch<float>>, Whole>;
template <bool Whole>
using ragged_logits = drafts<ragged<ragged_batch<bf16>>, Whole>;
template <bool Whole>
using filtered_logits = filtered_drafts<ragged<filtered_batch<bf16>>, Whole>;
template <bool Whole>
using filtered_f32 = filtered_drafts<ragged<filtered_batch<float>>, Whole>;
template <bool Whole>
using shards = sharded_drafts<padded<sharded_batch<bf16>>, Whole>;

#define SUM(...)                                                                        \
  template __global__ void specagg::cuda::detail::sum_rows(__VA_ARGS__, division, bool, \
                                                           block_sum<float>*);
#define FILTER(...) \
  template __global__ void specagg::cuda::detail::filter_rows(__VA_ARGS__, bool, block_sum<float>*);
#define VERIFY(whole, batch, outcome, policy, verifier)                                          \
  template __global__ void                                                                       \
  specagg::cuda::detail::verify_requests<batch<whole>, same_for_all<policy>, verifier, outcome>( \
      batch<whole>, same_for_all<policy>, verifier, block_sum<float>*, outcome);
#define TREES(whole, policy, verifier)                                                      \
  template __global__ void                                                                  \
  specagg::cuda::detail::verify_trees<bf16, whole, same_for_all<policy>, verifier>(         \
      trees<nodes<bf16>, whole>, same_for_all<policy>, verifier, block_sum<float>*, float*, \
      tree_outcome);

#if KERNEL == 0
SUM(b16<true>)
#elif KERNEL == 1
SUM(b16<false>)
#elif KERNEL == 2
SUM(f32<true>)
#elif KERNEL == 3
FILTER(filtered_logits<true>)
#elif KERNEL == 4
VERIFY(true, b16, outcome, lossless, token_verifier)
#elif KERNEL == 5
VERIFY(true, f32, outcome, lossless, token_verifier)
#elif KERNEL == 6
VERIFY(true, ragged_logits, ragged_outcome, lossless, token_verifier)
#elif KERNEL == 7
VERIFY(true, filtered_logits, ragged_outcome, lossless, token_verifier)
#elif KERNEL == 8
VERIFY(true, shards, outcome, lossless, token_verifier)
#elif KERNEL == 9
VERIFY(false, shards, outcome, lossless, token_verifier)
#elif KERNEL == 10
VERIFY(true, b16, outcome, lossless, block_verifier)
#elif KERNEL == 11
VERIFY(true, b16, outcome, lossless, match_verifier)
#elif KERNEL == 12
VERIFY(true, b16, outcome, lossless, coupled)
#elif KERNEL == 13
VERIFY(true, b16, outcome, token_v3, token_verifier)
#elif KERNEL == 14
VERIFY(true, b16, outcome, lossy, token_verifier)
#elif KERNEL == 15
TREES(true, lossless, traversal)
#elif KERNEL == 16
TREES(true, lossless, recursive_rejection)
#elif KERNEL == 17
FILTER(filtered_f32<true>)
#endif
