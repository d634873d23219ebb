// SPDX-License-Identifier: Apache-2.0
// specagg: given rows of logits from two or more models, decide which tokens to emit.
//
//   row      a model's distribution of the next token. The engine keeps the logits; a row is a view
//            of them, or of probabilities (rows/). q is the draft model's, p the target model's
//   policy   says which distribution pi the emitted token has, as an equation of q and p (policy/).
//            lossless is pi = p
//   verify   accepts a prefix of the drafted tokens and draws one more token, so that each emitted
//            token has the law pi (verify/)
//   verdict  how many drafted tokens were accepted, how many tokens were emitted, and why not more
//   status   ok, or the one reason why there is no token; what was emitted before remains
//
//   logits --process--> row --policy--> pi --verify--> accepted prefix + one token + status
//
// The functions, each explained at its declaration. q_rows and p_rows are lists of rows, such as
// rows_of_logits(logits, V, sampling); chooser is random_streams(seed, request):
//   token_id draw_draft(row, start, j, chooser, scratch)                        verify/verify.hpp
//   verdict verify_token(drafted, q_rows, p_rows, policy, chooser, out, scratch)
//                                                                               verify/token.hpp
//   verdict verify_block(drafted, q_rows, p_rows, policy, chooser, out, scratch)
//                                                                               verify/block.hpp
//   verdict verify_match(drafted, q_rows, p_rows, policy, chooser, out, scratch)
//                                                                               verify/match.hpp
//   verdict verify_coupled(coupled, q_rows, p_rows, policy, noise, out)         verify/coupled.hpp
//   tree_verdict verify_tree(tree, laws, q_rows, p_rows, policy, chooser, work)
//                                                                               verify/tree.hpp
//   void verify_batch(request, verdicts, scratch, verifier, pool)               verify/batch.hpp
//   emission sample_residual(q, p, policy, u, scratch)                          kernels.hpp
// They allocate no memory, throw no exception and need no run-time type information.
//
// The headers stand in the order in which the data flows, and each includes only headers above it.
// decoders.hpp, which includes this header, has the code that proposes tokens, calls models and
// writes whole texts.
#pragma once
#include <specagg/detail/hide_macros.hpp>
#include <specagg/config.hpp>
#include <specagg/compiled_once.hpp>
#include <specagg/token.hpp>
#include <specagg/half.hpp>
#include <specagg/kernel/vec.hpp>
#include <specagg/kernel/simd.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/kernel/reduce.hpp>
#include <specagg/kernel/exponentials.hpp>
#include <specagg/kernel/softmax.hpp>
#include <specagg/kernel/select.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/distribution.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/rows/cut_row.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/rows/rows.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/policy/any_of.hpp>
#include <specagg/policy/policies_of.hpp>
#include <specagg/policy/models.hpp>
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
#include <specagg/verify/draft_tree.hpp>
#include <specagg/verify/tree.hpp>
#include <specagg/verify/verifiers.hpp>
#include <specagg/verify/raw_logits.hpp>
#include <specagg/verify/stateful.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/kernels.hpp>
#include <specagg/detail/restore_macros.hpp>
