// SPDX-License-Identifier: Apache-2.0
// The options, the memory and the result of a round of speculative decoding (speculative.hpp).
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <specagg/logit_source.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// The result of one round. `emitted` tokens were appended to the text (workspace.emissions says
// where each came from). They have the law pi even if `why` is not ok; `why` only says why there
// are no more. draft_why: why the draft ended early, if the drafter gave no row: no_draft, or what
// is wrong with a model's (a grammar's dead end, NaN, a full context).
struct [[nodiscard]] speculative_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

// The options of a workspace.
struct decode_options {
  std::size_t gamma = 4;  // most tokens drafted in a round; 0: only the target writes
  sampling sample = {};   // for draft and target
  end_tokens end_of_text = {};
  // also measure the acceptance of every drafted position; see expected_tokens
  bool acceptances = false;
};

// All memory that a round needs, but for the drafter's, allocated once; and the options. These may
// be changed between rounds, but for a gamma larger than the one that there is memory for. No more
// is kept for the next round; any text may use it then. T: the type of the target's logits, R: the
// drafter's row_type.
template <class T, class R>
struct drafting_workspace {
  using value_type = T;
  using result_type = speculative_result;
  decode_options options;
  std::size_t vocabulary, gamma;  // gamma: that there is memory for
  std::vector<T> target_logits = std::vector<T>((gamma + 1) * vocabulary);
  std::vector<R> draft_rows = std::vector<R>(gamma + 1);
  std::vector<normal_form<processed_row<T>>> target_rows =
      std::vector<normal_form<processed_row<T>>>(gamma + 1);
  // For each token: the number of its drafter, and the confidence of its row.
  std::vector<std::uint8_t> drafters = std::vector<std::uint8_t>(gamma);
  std::vector<double> confidences = std::vector<double>(gamma);
  std::vector<emission> emissions = std::vector<emission>(gamma + 1);
  std::vector<draft_acceptance> acceptances = std::vector<draft_acceptance>(gamma);
  std::vector<double> scratch = std::vector<double>(verify_scratch(vocabulary, gamma));

  drafting_workspace(std::size_t vocab_size, const decode_options& of)
      : options(of), vocabulary(vocab_size), gamma(of.gamma) {}
  // The target's logits after j drafted tokens.
  std::span<T> target_row(std::size_t j) {
    return std::span(target_logits).subspan(j * vocabulary, vocabulary);
  }
};
// The workspace for a draft model: a drafting_workspace with the model's logits.
template <class T>
struct speculative_workspace : drafting_workspace<T, normal_form<processed_row<T>>> {
  std::vector<T> draft_logits;  // (gamma + 1) x V
  speculative_workspace(std::size_t vocab_size, const decode_options& of)
      : drafting_workspace<T, normal_form<processed_row<T>>>(vocab_size, of),
        draft_logits((of.gamma + 1) * vocab_size) {}
};

// The workspace of speculative_decode for this draft model or drafter and this target.
template <class D, class M>
struct workspace_of_drafts {
  using type = drafting_workspace<typename M::value_type, typename D::row_type>;
};
template <LogitSource D, class M>
struct workspace_of_drafts<D, M> {
  using type = speculative_workspace<typename M::value_type>;
};
template <class D, class M>
using workspace_for =
    typename workspace_of_drafts<std::remove_reference_t<D>, std::remove_reference_t<M>>::type;

SPECAGG_END
