// SPDX-License-Identifier: Apache-2.0
// What a round of speculative decoding (speculative.hpp) is made with: lengths of drafts, options,
// memory; and its result.
#pragma once
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// Decides how long a draft is, up to gamma, and which of several drafters (draft/first_of.hpp)
// proposes each token. This one always drafts gamma tokens, each from the first drafter that has a
// row; plan/draft_length.hpp has one that learns where to stop. drafter: its number, 0 if there is
// only one.
//
// The emitted law does not change if the decision to draft on depends on the text, the drafted
// tokens and the next row, but not on the token drawn from that row; and also on earlier rounds,
// but not on the random numbers of later ones. These are fresh, but for coupled verification: there
// a later round draws its tokens with the noise that drafted tokens after a rejection were drawn
// with. If pi depends on the draft's row, and that on where the round began (as a draft head's
// does) or on which drafter was asked, a length that has seen such tokens changes the law. So in
// that case it is shown the round only up to the first rejected token (speculative_round), and must
// not read a clock. Proved: proofs/coupled.v, `remembers_verified_is_pi`,
// `remembers_rejected_is_not_pi`.
struct fixed_draft_length {
  static constexpr bool reads_acceptances = false, reads_confidence = false;
  void begin() {}
  // Is one more row of this drafter worth its cost, before the row is known?
  bool another(std::size_t /*drafter*/) const { return true; }
  // The row is known now: is it worth drafting a token from it and scoring it? If not, the next
  // drafter is asked. confidence: of the drafter (of a model, 0 unless reads_confidence).
  bool keep(std::size_t /*drafter*/, double /*confidence*/) const { return true; }
  // Called after the round: the acceptances of the draft (if reads_acceptances), the tokens
  // emitted, the rows asked of each drafter.
  void observe(std::span<const draft_acceptance>, std::size_t, std::span<const std::size_t>) {}
};
// A type of lengths.
template <class L>
concept DraftLength =
    requires(L& length, std::size_t n, std::span<const draft_acceptance> acceptances,
             std::span<const std::size_t> asked) {
      { length.reads_acceptances } -> std::convertible_to<bool>;
      { length.reads_confidence } -> std::convertible_to<bool>;
      length.begin();
      { length.another(n) } -> std::convertible_to<bool>;
      { length.keep(n, 0.5) } -> std::convertible_to<bool>;
      length.observe(acceptances, n, asked);
    };

// What a workspace is made with.
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
  decode_options options;
  std::size_t vocabulary, gamma;  // gamma: that there is memory for
  std::vector<T> target_logits = std::vector<T>((gamma + 1) * vocabulary);
  std::vector<R> draft_rows = std::vector<R>(gamma + 1);
  std::vector<normal_form<processed_row<T>>> target_rows =
      std::vector<normal_form<processed_row<T>>>(gamma + 1);
  // Of each token: the number of the drafter that it came from, and the confidence of the row.
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
// The same for a draft model, with its logits.
template <class T>
struct speculative_workspace : drafting_workspace<T, normal_form<processed_row<T>>> {
  std::vector<T> draft_logits;  // (gamma + 1) x V
  speculative_workspace(std::size_t vocab_size, const decode_options& of)
      : drafting_workspace<T, normal_form<processed_row<T>>>(vocab_size, of),
        draft_logits((of.gamma + 1) * vocab_size) {}
};

// The result of one round. `emitted` tokens were appended to the text (workspace.emissions says
// where each came from). They have the law pi even if `why` is not ok; `why` only says why there
// are no more. draft_why: why the draft ended early, if the drafter gave no row: no_draft, or what
// is wrong with a model's (a grammar's dead end, NaN, a full context).
struct [[nodiscard]] speculative_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

SPECAGG_END
