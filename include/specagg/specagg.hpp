// SPDX-License-Identifier: Apache-2.0
// specagg decides which tokens to emit, given rows of logits from two or more models.
//
// The order of these headers is the order in which the data flows. Each header includes only headers above it:
//   logits --process--> row --policy--> pi --verify--> accepted prefix + one token + status --decode: commit, roll back
#pragma once
#include <specagg/config.hpp>
#include <specagg/token.hpp>
#include <specagg/half.hpp>
#include <specagg/kernel/simd.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/kernel/reduce.hpp>
#include <specagg/kernel/softmax.hpp>
#include <specagg/kernel/select.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/random.hpp>
#include <specagg/distribution.hpp>
#include <specagg/process.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/policy/any_of.hpp>
#include <specagg/policy/models.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/lossy.hpp>
#include <specagg/policy/mentored.hpp>
#include <specagg/policy/cascade.hpp>
#include <specagg/policy/cascade_log.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/policy/combine.hpp>
#include <specagg/policy/extremes.hpp>
#include <specagg/policy/power.hpp>
#include <specagg/policy/log_linear.hpp>
#include <specagg/policy/contrastive.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/policy/unanimous.hpp>
#include <specagg/policy/checked.hpp>
#include <specagg/verify/verify.hpp>
#include <specagg/verify/token.hpp>
#include <specagg/verify/block.hpp>
#include <specagg/verify/match.hpp>
#include <specagg/verify/coupled.hpp>
#include <specagg/verify/unanimous.hpp>
#include <specagg/verify/verifiers.hpp>
#include <specagg/verify/raw_logits.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/decode/text.hpp>
#include <specagg/decode/speculative.hpp>
#include <specagg/decode/collaborative.hpp>
#include <specagg/decode/cascade.hpp>
#include <specagg/decode/stop.hpp>
#include <specagg/plan/acceptance.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/plan/draft_length.hpp>
#include <specagg/plan/link.hpp>
#include <specagg/plan/dragon.hpp>
#include <specagg/plan/profiler.hpp>
