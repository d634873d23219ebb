// SPDX-License-Identifier: Apache-2.0
// One kernel each time, which KERNEL says. docs/cuda-kernels.txt has what ptxas says of it.
#include <specagg/backend/cuda/ragged.hpp>
#include <specagg/backend/cuda/sharded.hpp>
#include <specagg/policy/lossless.hpp>

using specagg::bf16;
using namespace specagg::cuda;
using namespace specagg::cuda::detail;

#define VERIFY(whole, batch, outcome)                                                         \
  template __global__ void specagg::cuda::detail::verify_requests<                            \
      whole, batch, same_for_all<specagg::lossless>, specagg::token_verifier, outcome>(       \
      rows_of_drafts<batch, whole>, same_for_all<specagg::lossless>, specagg::token_verifier, \
      block_sum<float>*, outcome);
using ragged_logits = ragged<bf16, bf16>;

#if KERNEL == 0
VERIFY(true, batch<bf16>, outcome)
#elif KERNEL == 1
VERIFY(true, batch<float>, outcome)
#elif KERNEL == 2
VERIFY(true, ragged_logits, ragged_outcome)
#elif KERNEL == 3
VERIFY(false, batch<bf16>, outcome)
#elif KERNEL == 4
VERIFY(true, shard<bf16>, outcome)
#elif KERNEL == 5
VERIFY(false, shard<bf16>, outcome)
#endif
