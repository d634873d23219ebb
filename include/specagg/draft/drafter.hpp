// SPDX-License-Identifier: Apache-2.0
// Drafters propose tokens. A drafter is a model (draft/model.hpp), a model of another vocabulary
// (draft/mapped.hpp), a lookup in the text (draft/lookup.hpp), several drafters in turn
// (draft/first_of.hpp), or your own.
#pragma once
#include <concepts>
#include <span>

#include <specagg/rows/process.hpp>
#include <specagg/text.hpp>

SPECAGG_BEGIN

// The position at which a drafter is asked for a row. tokens: the text and, after it, the `drafted`
// tokens of this round's draft.
struct draft_position {
  std::span<const token_id> tokens;
  std::size_t drafted = 0;
  bool confidence = false;  // the row at temperature 1 will be read too
  bool computed = false;    // the call of the drafter's model was made (model_drafter::call)
};

// A drafter gives rows, and the round draws the tokens from them. So q is the row that the token
// was drawn from, for any drafter, and no drafter can make a law wrong.
//   row_type      a NormalisedRow: normal_form<one_hot_row<float>>, likewise of a sparse_row or a
//                 processed_row, or an any_row of several such kinds
//   vocab_size()  V, the size of its rows
//   next(at, processor, row, confidence)
//                 the row of the token that follows at.tokens. Writes `row`, with its view at
//                 temperature 1 if at.confidence, and `confidence` in [0, 1]: how sure the drafter
//                 is of its row. Only the length of drafts depends on it. The row must stay
//                 readable until at.drafted is 0 again. The processor, a processor_ref, has been
//                 pushed all of at.tokens; a drafter may apply() it to its row, as a model does, or
//                 not. Any status but ok: there is no row here, and the draft ends. no_draft: the
//                 drafter has nothing to propose; `stopped` ends decoding. The row should be a
//                 function of at.tokens. It may depend on statistics of earlier rounds, but never
//                 on the random numbers that verification uses. Coupled verification uses the
//                 numbers of rejected tokens again: with it, the drafter must forget the tokens
//                 drafted after a rejection.
//   position()    the number of tokens of the text that it knows. It learns later ones from
//                 at.tokens.
//   rollback(n)   forgets what it knows beyond n tokens. As for a LogitSource.
template <class D, class P = processor_ref<typename D::row_type::value_type>>
concept Drafter = Follower<D> && NormalisedRow<typename D::row_type> &&
                  requires(D& d, const draft_position& at, P& processor, typename D::row_type& row,
                           double& confidence) {
                    { d.vocab_size() } -> std::convertible_to<std::size_t>;
                    { d.next(at, processor, row, confidence) } -> std::same_as<status>;
                  };

// Calls f(drafter, number) until it returns true, and returns whether it did. f is called for the
// drafter itself, or in turn for each drafter that it consists of (draft/first_of.hpp).
bool any_in_turn(auto& drafter, auto&& f) {
  if constexpr (requires { drafter.in_turn(f); }) return drafter.in_turn(f);
  else return f(drafter, std::size_t(0));
}
// How many drafters D consists of.
template <class D>
constexpr std::size_t drafter_count = [] {
  if constexpr (requires { D::drafters; }) return D::drafters;
  else return std::size_t(1);
}();

SPECAGG_END
