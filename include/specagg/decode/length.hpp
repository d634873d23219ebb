// SPDX-License-Identifier: Apache-2.0
// How long a draft is.
#pragma once
#include <concepts>
#include <cstddef>
#include <span>

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
// does) or on which drafter was asked, a length that has seen such tokens changes the law. In that
// case the length sees a round only up to its first rejected token (speculative_round), and must
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

SPECAGG_END
