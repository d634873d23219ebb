// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a drafter and a target model: draft up to gamma tokens, score them in
// one call, verify, commit, roll both back.
// Proved: proofs/decode.v, `speculative_decode_has_law`, `block_decode_has_law`.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>

#include <specagg/decode/detail/speculation.hpp>
#include <specagg/decode/length.hpp>
#include <specagg/decode/request.hpp>
#include <specagg/decode/workspace.hpp>
#include <specagg/draft/model.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// V verifies chains of tokens drawn from rows like those in the workspace W, with the chooser C:
// token_verifier, block_verifier, match_verifier, coupled_verifier, or your own
// (verify/verifiers.hpp). A tree's verifier does not.
template <class V, class W, class C>
concept ChainVerifier =
    requires(const V& verifier, W& work, C& random, std::size_t n, std::span<double> scratch) {
      verifier.propose(work.draft_rows[n], std::uint32_t(n), n, random, scratch);
    };

// The arguments of speculative_decode fit together. D drafts, M scores, C gives random numbers, V
// verifies, L says how long drafts are.
template <class D, class M, class C, class V, class L>
concept Speculates = LogitSource<std::remove_reference_t<M>> &&
                     DraftsFor<std::remove_reference_t<D>, std::remove_reference_t<M>> &&
                     Chooser<std::remove_reference_t<C>> &&
                     ChainVerifier<V, workspace_for<D, M>, std::remove_reference_t<C>> &&
                     DraftLength<std::remove_cvref_t<L>>;

namespace detail {

// f(text) with these arguments as a text. A draft model becomes a drafter.
template <class D, class M, class Policy, class C, class W, class V, class L, class F>
auto with_text(D& draft, M& target, const Policy& policy, C& random, const decode_request<W>& how,
               const V& verifier, L& length, F&& f) {
  if constexpr (LogitSource<D>) {
    model_drafter<D> drafter(draft, how.work.draft_logits, how.work.options.sample);
    return detail::with_text(drafter, target, policy, random, how, verifier, length, f);
  } else {
    together_text<D, M, Policy, C, const V&, L&> one(
        draft, target, policy, random,
        {.text = how.text, .most = how.most, .work = how.work, .processor = how.processor},
        verifier, length);
    one.accept = how.accept;  // it lasts as long as this call
    return f(one);
  }
}

}  // namespace detail

// One round. Appends 1 to how.most tokens to the text (0 only if `why` is not ok). It works in the
// workspace and allocates no memory.
//   draft     a draft model, whose rows are sampled as the target's, or a drafter. If it has no row
//             (a lookup that finds nothing, a draft model whose context is full) it drafts nothing.
//             That ends the text only if the policy reads the draft's row: `why` is then the
//             drafter's status
//   how       accept and after_round are not called
//   verifier  how drafts are verified
//   length    how long drafts are; it learns from the round if it is not const
// invalid_parameter: nothing may be appended, the policy's parameters are out of range, or the
// workspace was made for a smaller gamma.
//
// A round that fails (or throws) leaves text, drafter and length as they were, so the next one with
// the same arguments draws the same draft again: the law stays exact, although what fails may
// depend on the draft.
template <class D, class M, class Policy, class C, class V = token_verifier,
          class L = fixed_draft_length>
  requires Speculates<D, M, C, V, L>
speculative_result speculative_round(D&& draft, M&& target, const Policy& policy, C&& random,
                                     const decode_request<workspace_for<D, M>>& how,
                                     const V& verifier = {}, L&& length = {}) {
  return detail::with_text(draft, target, policy, random, how, verifier, length,
                           [](auto& one) { return detail::run_round(detail::speculation(one)); });
}

// Runs rounds until how.most tokens were appended, the text ended, how.accept returned false, or a
// round failed. Returns ok, or why the round failed. The token for which accept is false is the
// last one kept; later tokens of that round are removed. The arguments are those of a round.
//   speculative_workspace<float> work(vocab_size, decode_options{.gamma = 4});
//   speculative_decode(draft_model, target_model, lossless{}, random,
//                      {.text = text, .most = 64, .work = work})
// A drafter takes a drafting_workspace<float, row_type>.
template <class D, class M, class Policy, class C, class V = token_verifier,
          class L = fixed_draft_length>
  requires Speculates<D, M, C, V, L>
status speculative_decode(D&& draft, M&& target, const Policy& policy, C&& random,
                          const decode_request<workspace_for<D, M>>& how, const V& verifier = {},
                          L&& length = {}) {
  const auto write = [&](auto& one) {
    while (one.goes_on()) {
      detail::speculation round(one);
      const speculative_result result = detail::run_round(round);
      if (how.after_round) how.after_round(result, how.work);
      round.settle();
      round.ask_accept();
    }
    return one.why;
  };
  return detail::with_text(draft, target, policy, random, how, verifier, length, write);
}

SPECAGG_END
