// SPDX-License-Identifier: Apache-2.0
// From rows of logits to the tokens to emit: all that a verification needs, and nothing else. These
// headers allocate no memory, throw no exception and need no run-time type information. What
// proposes tokens, calls models and plans lengths is in specagg.hpp, which includes this.
//
// The order of these headers is the order in which the data flows. Each header includes only
// headers above it:
//   logits --process--> row --policy--> pi --verify--> accepted prefix + one token + status
#pragma once
#include <specagg/config.hpp>
#include <specagg/misfit.hpp>
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
#include <specagg/any_row.hpp>
#include <specagg/process.hpp>
#include <specagg/rows.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/policy/any_of.hpp>
#include <specagg/policy/law.hpp>
#include <specagg/policy/models.hpp>
#include <specagg/policy/beside.hpp>
#include <specagg/policy/catalogue.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/policy/unanimous.hpp>
#include <specagg/policy/checked.hpp>
#include <specagg/verify/verify.hpp>
#include <specagg/verify/token.hpp>
#include <specagg/verify/block.hpp>
#include <specagg/verify/match.hpp>
#include <specagg/verify/coupled.hpp>
#include <specagg/verify/unanimous.hpp>
#include <specagg/verify/tree_walk.hpp>
#include <specagg/verify/tree.hpp>
#include <specagg/verify/verifiers.hpp>
#include <specagg/verify/raw_logits.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/kernels.hpp>
