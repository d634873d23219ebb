// SPDX-License-Identifier: Apache-2.0
// Token ids and statuses. Plain data: the same types in every translation unit. Their functions are
// always inlined, so no unit runs another's copy, whose instructions its machine may not have.
#pragma once
#include <concepts>
#include <cstdint>
#include <span>

#include <specagg/config.hpp>

namespace specagg {

// An argument whose elements outlive the call: an object with a name, or a view such as a span.
template <class R>
concept Lasting =
    std::is_lvalue_reference_v<R> || std::ranges::enable_borrowed_range<std::remove_cvref_t<R>>;
// Elements side by side in memory: a span, a vector, an array.
template <class R>
concept Contiguous = requires(R& r) { std::span(r); };

using token_id = std::int32_t;  // 0..V-1

// no token; in a draft: the draft ends here (padding of ragged batches)
inline constexpr token_id no_token = -1;

// The tokens that end a text: none, one, or several. With several, the caller keeps the memory
// alive.
class end_tokens {
 public:
  SPECAGG_FUNCTION SPECAGG_LANE constexpr end_tokens(token_id only = no_token) : only_(only) {}
  template <Lasting Tokens>  // a temporary container does not compile
    requires std::convertible_to<Tokens, std::span<const token_id>>
  SPECAGG_FUNCTION SPECAGG_LANE constexpr end_tokens(Tokens&& several) : several_(several) {}
  SPECAGG_FUNCTION SPECAGG_LANE constexpr bool contains(token_id t) const {
    for (const token_id end : several_)
      if (t == end) return true;
    return t == only_ && t != no_token;
  }

 private:
  std::span<const token_id> several_;
  token_id only_ = no_token;
};

// How far a sum of probabilities may be from 1 and still be scaled to 1.
inline constexpr double normalisation_tolerance = 1e-3;

// The outcome of one row, one verification or one model call. Core functions return a status and
// never throw. "no token" means: no token at that position. If only the draft's row is invalid, the
// draft ends before it (struct draft, specagg.hpp).
enum class [[nodiscard]] status : std::uint8_t {
  ok,
  draft_not_in_support,  // q(y) = 0: y was not sampled from q; the draft ended before it
  token_out_of_range,    // a drafted id is < -1 or >= V: the draft ended before it
  // NaN, +inf or a negative probability in a row, or every token masked: no token
  invalid_row,
  not_normalised,  // probabilities whose sum is further than 1e-3 from 1: no token
  // pi does not exist for these rows (disjoint rows in a product, a weight of +inf): no token
  undefined_target,
  vocabulary_mismatch,  // rows of different sizes or shards in one verification: no token
  invalid_parameter,    // a temperature, top-p ... outside its range: no token
  context_full,         // the model has no room for the given tokens: nothing was appended
  model_failed,         // the model could not compute a row
  stopped,              // the caller asked the model to stop: nothing was appended
  rollback_refused,     // the model cannot go back to that position: nothing was forgotten
  no_draft,             // the drafter has nothing to propose here; no error
  missing_row,          // the list of rows ends before this position: no token
};

// The enumerator's name as text.
constexpr const char* name(status s) {
  switch (s) {
    case status::ok: return "ok";
    case status::draft_not_in_support: return "draft_not_in_support";
    case status::token_out_of_range: return "token_out_of_range";
    case status::invalid_row: return "invalid_row";
    case status::not_normalised: return "not_normalised";
    case status::undefined_target: return "undefined_target";
    case status::vocabulary_mismatch: return "vocabulary_mismatch";
    case status::invalid_parameter: return "invalid_parameter";
    case status::context_full: return "context_full";
    case status::model_failed: return "model_failed";
    case status::stopped: return "stopped";
    case status::rollback_refused: return "rollback_refused";
    case status::no_draft: return "no_draft";
    case status::missing_row: return "missing_row";
  }
  return "unknown";
}

}  // namespace specagg
