// SPDX-License-Identifier: Apache-2.0
// specagg: given rows of logits from two or more models, decide which tokens to emit.
//
//   row      a model's distribution of the next token. The engine keeps the logits; a row is a view
//            of them, or of probabilities. q is the draft model's, p the target model's
//   policy   says which distribution pi the emitted token has, as an equation of q and p (policy/).
//            lossless is pi = p
//   verify   accepts a prefix of the drafted tokens and draws one more token, so that each emitted
//            token has the law pi
//
//   logits --process--> row --policy--> pi --verify--> accepted prefix + one token + status
//
// This file declares what a program calls. Each declaration repeats that of a definition, which a
// test compares. Default arguments stand at the definitions; the contracts here name them. The
// functions allocate no memory, throw no exception and need no run-time type information. They
// write only memory that they are given for it, which may not overlap with anything else that they
// are given. decoders.hpp, which includes this header, has the code that proposes tokens, calls
// models and writes whole texts.
#pragma once
#include <specagg/detail/hide_macros.hpp>
#include <specagg/verify/batch.hpp>

namespace specagg {

// ok, or why there is no token; name(status) is its text. A row is an invalid_row (NaN, +inf, a
// negative probability, or every token masked), not_normalised (its sum is further than 1e-3 from
// 1; nearer sums are scaled), a missing_row, or of another size: vocabulary_mismatch.
// undefined_target: pi does not exist for these rows. invalid_parameter: a parameter is out of
// range, or memory is too small. A drafted token y is token_out_of_range if y < -1 or y >= V, and
// draft_not_in_support if q(y) = 0: it was not drawn from its row.
enum class status : std::uint8_t;

// The tokens that a draft model proposed.
//   tokens       a span of their ids, 0..V-1
//   start        the position of the first one in the text; 0 by default
//   end_of_text  the tokens that end the text: none, an id, or a span of several
//   bonus        the token after them: true, drawn from pi; false, none; after the whole draft also
//                bonus_choice::target(), drawn from p, and bonus_choice::given(id), the caller's
//   acceptances  empty, or a draft_acceptance for each drafted token: of_row, sum min(q, pi);
//                of_token, min(1, pi(y) / q(y)). A verifier writes all of them, also after a
//                rejection; from the position where the draft ended early they are 0. They cost a
//                pass over each row
// A draft ends early at
//   * a no_token (-1): padding of ragged batches
//   * an end-of-text token: the first one is the last token of the draft
//   * a token outside the support: one that was not drawn from its row. Its id is outside the
//     vocabulary, or q(y) = 0 (only checked where the verifier or the policy reads draft rows)
//   * an invalid draft row, for example a fully masked one: no token can have been drawn from it
// The tokens before the end are verified as a shorter draft. If all of them are accepted, the next
// token is drawn from pi. Its emission says in `why` what ended the draft. So the emitted law is
// exact in all these cases, on one condition: the tokens of the support must have the law q. A mask
// or a vocabulary map that puts some of q's tokens outside the support changes q; apply it to the
// row.
struct draft;

// One emitted token.
//   token          its id
//   from           origin::accepted, from the draft; residual, in place of a rejected token; bonus,
//                  or after a draft that ended early
//   why            ok, or what ended the draft at this position: draft_not_in_support,
//                  token_out_of_range, or what is wrong with the draft's row
//   log_pi, log_p  its log-probability under pi and under the target model's row
struct emission;

// The result of a verification.
//   accepted  the number of accepted drafted tokens
//   emitted   the number of tokens in `out`: the accepted ones, plus one residual or bonus token if
//             there is one. `out` may be overwritten after them, too
//   why       ok, or why no token could be emitted at position start + emitted (without a bonus:
//             what ended the draft there)
//   ended     the end-of-text token that is the last emitted token, accepted or drawn; no_token
//             while the text goes on
struct verdict;

// A tree of drafts: tokens, parents, start, end_of_text, bonus (given(): invalid_parameter). Node 0
// is the text. Node i has token tokens[i - 1] and follows node parents[i - 1] < i. The children of
// a node stand in proposal order: each was drawn from a law L that may depend on the path to it and
// on the siblings before it, but not on coins. A node at depth d has position start + d - 1. A node
// is left out, with all that follows it, if
//   * its token is no_token: padding
//   * its token is outside the support, or its L is invalid (struct draft): the emission at that
//     position says it in `why`
//   * its parent is an end of text
// Two siblings may have the same token.
struct draft_tree;

}  // namespace specagg

SPECAGG_BEGIN

// Rows view memory that does not change before the call returns. S is float, double, bf16 or f16,
// and T float or double: one T for draft and target (bf16 and f16 are read as float).
//   processed_row<S>(logits, sampling)    a span of V logits (-inf: a masked token), and
//                                         sampling{.temperature, .top_k, .top_p, .min_p}, applied
//                                         in this order, or in that of .order; the defaults 1, 0,
//                                         1, 0 change nothing. Temperature 0: the largest logit
//   softmax_row<S>(logits, temperature)   the same without filters; the temperature is above 0
//   dense_row<T>(probabilities)           a span of V probabilities
//   sparse_row<T>(ids, probabilities, V)  spans: the tokens with mass, ids ascending
//   one_hot_row<T>(token, V)              one token: a draft that was chosen, not drawn
// A list of rows is a vector, an array or a span of these or of any class with size() and [v]; or
// rows_of(count, make_row), where make_row(j) is called when row j is read, and the lists of draft
// and target share no buffer; or rows_of_logits: the processed_rows of a matrix [rows][V], a span,
// vector or array that outlives the list. If its size is no multiple of V, every row is
// vocabulary_mismatch. `how` is sampling{} by default.
template <class L>
auto rows_of_logits(L&& logits, std::size_t vocabulary, const sampling& how);

// Draws token j of a draft, at position start + j; start as in struct draft.
//   row      the draft's row there. A normalised row costs one pass less, here and in verification
//   chooser  random_streams(seed, request); each request of a seed has a number of its own. Its
//            numbers are functions of these, the position and the use: copies draw the same
//   scratch  verify_scratch(V) doubles
// Returns a token with the law q; no_token if the row is invalid or scratch is too small. Draw a
// tree by draw_node (verify/tree.hpp): two tokens that are drawn here for one position share one
// random number.
template <Row R, Chooser C>
token_id draw_draft(const R& row, std::uint32_t start, std::size_t j, C&& chooser,
                    std::span<double> scratch);
// Likewise. Also writes the row's normal form, for the verification's q_rows: then one pass over a
// row of logits is enough for both.
template <Row R, Chooser C>
token_id draw_draft(const R& row, std::uint32_t start, std::size_t j, C&& chooser,
                    std::span<double> scratch, normal_form<R>& normal);

// Verifies a draft of g tokens. A token y is accepted with probability min(1, pi(y) / q(y)), else
// one from norm((pi - q)+) replaces it and is the last. Each emitted token has the law pi, given
// the text before it, if each drafted token was drawn from its row q.
//   q_rows, p_rows  the rows that the draft was drawn from, and the target's: lists whose row j is
//                   of position start + j. Rows are asked for in order, p_rows for 0..g, q_rows for
//                   0..g-1 (and for g if all tokens were accepted, the bonus is drawn from pi and
//                   the policy reads the draft), each at most once (the target's twice where the
//                   draft's row is invalid), and none beyond the first rejection unless acceptances
//                   are wanted. At temperature 0 token verification by a policy that reads the
//                   target alone (lossless, typical) asks for no row of the draft, unless it is a
//                   cut_row or acceptances are wanted; a policy whose pi(y) is neither 0 nor 1
//                   there asks for both rows again
//   policy          a struct of policy/, such as lossless{}, or a list with one for each position
//   chooser         random_streams(seed, request), as the draft was drawn with
//   out             at least g + 1 emissions, or g without a bonus
//   scratch         verify_scratch(V) doubles
// If a target row is invalid, a row of the draft or target is missing, the law of a position does
// not exist or scratch is too small for it, nothing is emitted there, and `why` says it. The tokens
// before it remain emitted. Acceptances of positions without rows are 0. Nothing is emitted if the
// policy's parameters are out of range, or `out` or acceptances too short: invalid_parameter.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION verdict verify_token(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch);

// Verifies the draft as a whole, with the law of verify_token; it never accepts fewer tokens in
// expectation. Arguments and errors as for verify_token, but all rows 0..g-1 are read, and scratch
// is verify_scratch(V, g) doubles: it keeps the normalised rows of each position, so no row is
// normalised twice. (If the kinds of rows are chosen at run time, rows/any_row.hpp, a row may be
// asked for up to three times.) An invalid row of the target also ends the draft before it. It is
// reported if all tokens before it were accepted.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION verdict verify_block(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch);

// Draws from pi at every position, while the result is the drafted token. Each emitted token has
// the law pi, for any drafted tokens. Arguments and errors as for verify_token. q_rows is used only
// if the policy reads the draft or acceptances are wanted. Here an acceptance has of_row = sum q pi
// and of_token = pi(y). Both are 0 at a position with an invalid row.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION verdict verify_match(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch);

// Draws from pi with the noise that drew the draft, while the two agree: each emitted token has the
// law pi. noise: coupled_noise(seed, request). coupled: coupled_draft(draft), with tokens by
// race(normalise(row), noise, start + j). Arguments and errors as for verify_token, but no chooser
// and no scratch. q_rows is used only if the policy reads the draft. Acceptances say what happened:
// 1 for accepted tokens, 0 from the first rejected one.
template <class Policy, class QRows, class PRows>
SPECAGG_FUNCTION verdict verify_coupled(const coupled_draft& coupled, QRows&& q_rows,
                                        PRows&& p_rows, const Policy& policy,
                                        const coupled_noise& noise, std::span<emission> out);

// Verifies a tree of drafts. Each emitted token has the law pi, for any shape of the tree, if node
// i was drawn from laws[i], i >= 1.
//   laws            a list of rows: laws[i] is the row that the token of node i was drawn from: for
//                   drafts without replacement row_without (draft/row_without.hpp), for
//                   deterministic ones one_hot_row, else q. laws[0] is not read
//   q_rows, p_rows  lists: the rows of draft and target that follow node i, i >= 0. p_rows is asked
//                   for nodes where the walk goes, q_rows only if the policy reads the draft. Each
//                   may be asked for up to three times, laws twice; a row that was normalised
//                   before costs no pass again
//   work            tree_memory<T>{out, nodes, residual, scratch}, T of the rows: one emission more
//                   than it has levels; one tree_node more than it has nodes; V numbers for each
//                   level; verify_scratch(V) doubles
// laws and p_rows thus have one row more than the tree has nodes, and q_rows as many if the policy
// reads the draft. A child whose law is missing is left out, and the emission's `why` says
// missing_row. If another row is missing, the accepted path remains emitted, and the verdict says
// it. Nothing is emitted if memory is too small, the policy's parameters are out of range or a
// parent stands behind its child: invalid_parameter. Returns a verdict with `node`, the last
// accepted one: its ancestors are the accepted path.
template <class Policy, class Laws, class QRows, class PRows, Chooser C, class T, class Walker>
SPECAGG_FUNCTION tree_verdict verify_tree(const draft_tree& tree, Laws&& laws, QRows&& q_rows,
                                          PRows&& p_rows, const Policy& policy, C&& chooser,
                                          const tree_memory<T, Walker>& work);

// verdicts[i] is the verdict of request(i), of type One; every request is verified once. No result
// depends on the pool, the number of threads, or the order of the requests.
//   request   returns verification{drafted, q_rows, p_rows, policy, chooser, out}, or
//             tree_verification{tree, laws, q_rows, p_rows, policy, chooser, tree_memory} (verdicts
//             are tree_verdicts then). Called once for each i, from the pool's threads: it may read
//             shared memory, and write only memory of request i. If it, its rows or its verifier
//             throw, the caller gets the exception, and any of the verdicts may have been written
//   scratch   verify_scratch(V, gamma) doubles for each request, gamma the longest draft's; part i
//             is request i's
//   verifier  token_verifier{}, the default, block_verifier{}, match_verifier{}; for trees
//             traversal{}, the default, recursive_rejection{}; or a function: verifier(i) is the
//             verifier of request i, such as coupled_verifier{noise} (each has its own noise)
//   pool      this_thread{}, the default, thread_pool (thread_pool.hpp), or a class with for_ranges
template <class Request, class One, class Verifier, class Pool>
void verify_batch(const Request& request, std::span<typename One::verdict_type> verdicts,
                  std::span<double> scratch, const Verifier& verifier, Pool&& pool);

// Draws the token that replaces a rejected one, from the residual norm((pi - q)+); pi = p without a
// policy. It is what verify_token draws after a rejection, with the same number.
//   q, p     rows or other Distributions of one size V and one T, normalised in a copy
//   u        a uniform number in [0, 1), which decided nothing else: random_streams::uniform
//   scratch  verify_scratch(V) doubles, written. It may be what draw_draft used
// Returns the token, its log-probability under pi and under p, and status::ok in `why`; or no_token
// and why. If there is no residual (pi <= q everywhere, so nothing was rejected but by round-off),
// the token is drawn from pi itself. A token of probability 0 under pi is never returned.
template <Distribution Q, Distribution P, class Policy>
emission sample_residual(const Q& q, const P& p, const Policy& policy, double u,
                         std::span<double> scratch);
template <Distribution Q, Distribution P>
emission sample_residual(const Q& q, const P& p, double u, std::span<double> scratch);

SPECAGG_END

// The headers stand in the order in which the data flows, and each includes only headers above it.
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
#include <specagg/kernel/mass.hpp>
#include <specagg/kernel/select.hpp>
#include <specagg/kernel/prefix.hpp>
#include <specagg/kernel/logits_in_memory.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/distribution.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/rows/cut_row.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/rows/row.hpp>
#include <specagg/rows/rows.hpp>
#include <specagg/rows/sampling.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/policy/any_of.hpp>
#include <specagg/policy/policies_of.hpp>
#include <specagg/policy/models.hpp>
#include <specagg/policy/catalogue.hpp>
#include <specagg/policy/stateful.hpp>
#include <specagg/policy/phase.hpp>
#include <specagg/policy/any_stateful.hpp>
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
#include <specagg/verify/synthetic.hpp>
#include <specagg/kernels.hpp>
#include <specagg/detail/restore_macros.hpp>
