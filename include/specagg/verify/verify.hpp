// SPDX-License-Identifier: Apache-2.0
// The input and the output of a verification. They are the same for every verifier.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/random.hpp>
#include <specagg/rows/rows.hpp>
#include <specagg/token.hpp>

// Plain data, outside the instruction set's namespace (config.hpp): the same types in every
// translation unit. Their functions are always inlined, so no unit runs another's copy.
namespace specagg {

// The probability that a drafted position is accepted if verification reaches it, computed whether
// it did or not: for any token drawn from the row, the overlap, and for the drafted one.
struct draft_acceptance {
  double of_row = 0, of_token = 0;
};

// The bonus: the token after a draft whose tokens were all accepted, if the text has not ended.
//   true       drawn from pi. A policy that reads the draft needs the draft's row there
//   false      none
//   target()   drawn from the target's row: its law is p, also in log_pi. The draft's row there is
//              not read
//   given(y)   the caller's token. No row is read there, so log_pi and log_p are NaN, and y is not
//              compared with the vocabulary. no_token: no bonus. A smaller id: token_out_of_range
// target() and given() apply only after the last drafted token. If the draft ends earlier, the next
// token is drawn from pi; with false there is none.
class bonus_choice {
 public:
  constexpr bonus_choice() = default;
  template <std::same_as<bool> Wanted>  // no number: a token is given()
  SPECAGG_FUNCTION SPECAGG_LANE constexpr bonus_choice(Wanted wanted)
      : choice_(wanted ? from_pi : no_token) {}
  SPECAGG_FUNCTION SPECAGG_LANE static constexpr bonus_choice target() {
    return bonus_choice(from_target, 0);
  }
  SPECAGG_FUNCTION SPECAGG_LANE static constexpr bonus_choice given(token_id y) {
    return bonus_choice(y < no_token ? out_of_range : y, 0);
  }
  // Whether there is a bonus.
  SPECAGG_FUNCTION SPECAGG_LANE constexpr operator bool() const { return choice_ != no_token; }
  SPECAGG_FUNCTION SPECAGG_LANE constexpr bool is_target() const { return choice_ == from_target; }
  SPECAGG_FUNCTION SPECAGG_LANE constexpr bool is_given() const {
    return choice_ >= 0 || choice_ == out_of_range;
  }
  // The given token; negative if it was out of range.
  SPECAGG_FUNCTION SPECAGG_LANE constexpr token_id token() const { return choice_; }

 private:
  static constexpr token_id from_pi = -2, from_target = -3, out_of_range = -4;
  SPECAGG_FUNCTION SPECAGG_LANE constexpr bonus_choice(token_id choice, int) : choice_(choice) {}
  token_id choice_ = from_pi;
};

// Contract: specagg.hpp.
struct draft {
  std::span<const token_id> tokens = {};
  std::uint32_t start = 0;
  end_tokens end_of_text = {};
  bonus_choice bonus = true;  // the token after them
  std::span<draft_acceptance> acceptances = {};

  // How many tokens are drafted: up to the first no_token or end of text.
  SPECAGG_FUNCTION SPECAGG_LANE std::size_t size() const {
    std::size_t g = 0;
    while (g < tokens.size() && tokens[g] != no_token)
      if (end_of_text.contains(tokens[g++])) break;
    return g;
  }
  // Whether the first g of them end the text.
  SPECAGG_FUNCTION SPECAGG_LANE bool ends_text(std::size_t g) const {
    return g > 0 && end_of_text.contains(tokens[g - 1]);
  }
  // Whether a bonus follows if the draft has g tokens and all are accepted.
  SPECAGG_FUNCTION SPECAGG_LANE bool bonus_follows(std::size_t g) const {
    return bonus && !ends_text(g);
  }
};

// The source of an emitted token: the draft; a draw that replaces a rejected token; the bonus, or a
// draw from pi after a draft that ended early.
enum class origin : std::uint8_t { accepted, residual, bonus };
// The enumerator's name as text.
constexpr const char* name(origin o) {
  return o == origin::accepted ? "accepted" : o == origin::residual ? "residual" : "bonus";
}

// Contract: specagg.hpp.
struct emission {
  token_id token = no_token;
  origin from = origin::accepted;
  status why = status::ok;
  double log_pi = 0, log_p = 0;
};

// Contract: specagg.hpp.
struct [[nodiscard]] verdict {
  std::size_t accepted = 0, emitted = 0;
  status why = status::ok;
  token_id ended = no_token;
};

}  // namespace specagg

SPECAGG_BEGIN

// draw_draft (specagg.hpp) with the random number of any moment.
template <Row R, Chooser C>
token_id draw_draft(const R& row, moment m, C&& chooser, std::span<double> scratch) {
  row_sums sums{scratch};
  const auto& normalised = specagg::normalise(row, sums);
  if (normalised.why() != status::ok || !specagg::can_weigh(normalised, scratch)) return no_token;
  return specagg::draw(normalised, m, chooser, sums);
}
// Contract: specagg.hpp.
template <Row R, Chooser C>
token_id draw_draft(const R& row, std::uint32_t start, std::size_t j, C&& chooser,
                    std::span<double> scratch) {
  return specagg::draw_draft(row, {stream::draft, std::uint32_t(start + j), start}, chooser,
                             scratch);
}
// Contract: specagg.hpp.
template <Row R, Chooser C>
token_id draw_draft(const R& row, std::uint32_t start, std::size_t j, C&& chooser,
                    std::span<double> scratch, normal_form<R>& normal) {
  row_sums sums{scratch};
  normal = specagg::normalise(row, sums);
  if (normal.why() != status::ok || !specagg::can_weigh(normal, scratch)) return no_token;
  return specagg::draw(normal, {stream::draft, std::uint32_t(start + j), start}, chooser, sums);
}

// Expected tokens per round, from the acceptances of one draft: 1 + sum_k of_row_k prod_{j<k}
// of_token_j. It does not depend on how many tokens were accepted. Unbiased for token verification.
inline double expected_tokens(std::span<const draft_acceptance> draft) {
  double expected = 1, reached = 1;
  for (const draft_acceptance& o : draft) {
    expected = fma(o.of_row, reached, expected);
    reached *= o.of_token;
  }
  return expected;
}

// Doubles of scratch that a verifier needs for rows of V tokens and drafts of gamma. Block
// verification keeps the rows and the law of each position in it (verify/detail/kept.hpp).
inline constexpr std::size_t scratch_of_position = 128;
SPECAGG_FUNCTION constexpr std::size_t verify_scratch(std::size_t vocabulary,
                                                      std::size_t gamma = 0) {
  return block_count(vocabulary) + gamma * (1 + scratch_of_position) + 1;
}

SPECAGG_END
