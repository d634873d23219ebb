// SPDX-License-Identifier: Apache-2.0
// The input and the output of a verification. They are the same for every verifier.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/policy/checked.hpp>
#include <specagg/policy/detail/law.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/policies_of.hpp>
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
  const auto& normalised = row.normalise();
  if (normalised.why() != status::ok || !specagg::can_weigh(normalised, scratch)) return no_token;
  return specagg::draw(normalised, m, chooser, scratch);
}
// Contract: specagg.hpp.
template <Row R, Chooser C>
token_id draw_draft(const R& row, std::uint32_t start, std::size_t j, C&& chooser,
                    std::span<double> scratch) {
  return specagg::draw_draft(row, {stream::draft, std::uint32_t(start + j), start}, chooser,
                             scratch);
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

namespace detail {

// The checks before every verification: the parameters are in range, and there is room for every
// result.
template <class Policy>
SPECAGG_FUNCTION bool usable(const draft& drafted, const Policy& policy,
                             std::span<const emission> out) {
  const std::size_t g = drafted.size();
  for (draft_acceptance& o : drafted.acceptances) o = {};
  return specagg::valid(policy) && out.size() >= g + drafted.bonus &&
         (drafted.acceptances.empty() || drafted.acceptances.size() >= g);
}

// The checks of a policy and of rows before a verification (detail/misfit.hpp).
template <class Policy>
struct check_combines_rows {
  static constexpr bool fits = !is_raw_logits<Policy>;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: raw_logits combines logits, not rows: verify by "
                  "raw_logits_verifier(token_verifier(), memory, sampling); a decoder is given it "
                  "after the request (docs/mathematics.md)");
  }
};
template <class Policy>
struct check_two_models {
  static constexpr bool fits = models_of<Policy> == 2;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: this policy combines another number of models than two (more models: "
                  "docs/decoders.md)");
  }
};
template <class QRows, class PRows>
struct check_value_types {
  static constexpr bool fits = std::is_same_v<value_of_rows<QRows>, value_of_rows<PRows>>;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: the rows of draft and target must have one value type, both float or "
                  "both double (docs/engine.md)");
  }
};
template <class Policy, class PRows>
struct check_policy_of_rows {
  using check = check_policy<Policy, value_of_rows<PRows>>;
  static constexpr bool fits = check::fits;
  SPECAGG_FUNCTION static void say() { check::say(); }
};
template <class Policy, class QRows, class PRows>
using misfit_of_law =
    typename first_misfit<check_combines_rows<Policy>, check_two_models<Policy>, check_rows<QRows>,
                          check_rows<PRows>, check_value_types<QRows, PRows>,
                          check_policy_of_rows<Policy, PRows>>::type;

// invalid_parameter if the policy reads the draft's row and the row is cut, else ok.
template <class Policy, class Q>
SPECAGG_FUNCTION constexpr status whole_enough(const Q&) {
  return reads_draft<Policy> && is_cut<Q> ? status::invalid_parameter : status::ok;
}

// Returns f(q, p) with the normalised rows of position j; missing_row if a row was not given; or
// why the rows cannot be read.
template <bool Confidence, class QRows, class PRows, class F>
SPECAGG_FUNCTION status with_rows(QRows& q_rows, PRows& p_rows, std::size_t j, F&& f) {
  return detail::with_row_at(q_rows, j, [&](const auto& q_row) {
    return detail::with_row_at(p_rows, j, [&](const auto& p_row) {
      if (!detail::fit_together(q_row, p_row)) return status::vocabulary_mismatch;
      const auto& q = q_row.normalise(Confidence);
      if (const status s = readable(q, Confidence); s != status::ok) return s;
      const auto& p = p_row.normalise(Confidence);
      if (const status s = readable(p, Confidence); s != status::ok) return s;
      return f(q, p);
    });
  });
}
// Likewise with the target's row alone.
template <bool Confidence, class PRows, class F>
SPECAGG_FUNCTION status with_target_row(PRows& p_rows, std::size_t j, F&& f) {
  return detail::with_row_at(p_rows, j, [&](const auto& p_row) {
    const auto& p = p_row.normalise(Confidence);
    if (const status s = readable(p, Confidence); s != status::ok) return s;
    return f(p);
  });
}
// The two rows of a position as a policy sees them.
template <class Policy, class Q, class P>
SPECAGG_FUNCTION auto pair_for(const Q& q, const P& p) {
  return detail::seen_by<Policy>(row_pair<reads_confidence<Policy>, Q, P>(q, p));
}

// When the draft's row is read: always, or only if the policy reads it.
enum class draft_row { always, if_read };
// Calls f(rows, pi) with the normalised rows of position j and pi bound to them. Returns f's
// status, or why the rows cannot be read. A list of policies, a policy chosen at run time
// (policy/any_of.hpp) and a row of several kinds (rows/any_row.hpp) are resolved here, so f and all
// loops in it are compiled for what was chosen.
template <draft_row Draft, class Policy, class QRows, class PRows, class F>
SPECAGG_FUNCTION status with_law(const Policy& policy, QRows& q_rows, PRows& p_rows, std::size_t j,
                                 F&& f) {
  constexpr bool reads_q = Draft == draft_row::always || reads_draft<Policy>;
  using misfit = misfit_of_law<Policy, std::conditional_t<reads_q, QRows, PRows>, PRows>;
  constexpr bool confidence = reads_confidence<Policy>;
  if constexpr (PolicyList<Policy>) {
    const auto here = policy[j];
    if (!specagg::valid(here)) return status::invalid_parameter;
    return detail::with_law<Draft>(here, q_rows, p_rows, j, f);
  } else if constexpr (CompiledForEach<Policy>) {
    return specagg::with_chosen(policy, [&](const auto& chosen) {
      return detail::with_law<Draft>(chosen, q_rows, p_rows, j, f);
    });
  } else if constexpr (Misfit<misfit>) {
    misfit::say();
    return status::invalid_parameter;
  } else if constexpr (reads_q) {
    return detail::with_rows<confidence>(q_rows, p_rows, j, [&](const auto& q, const auto& p) {
      if (const status s = whole_enough<Policy>(q); s != status::ok) return s;
      const auto rows = detail::pair_for<Policy>(q, p);
      return f(rows, detail::bind_law(rows, policy));
    });
  } else {
    return detail::with_target_row<confidence>(p_rows, j, [&](const auto& p) {
      using P = std::remove_cvref_t<decltype(p)>;
      const auto rows = detail::seen_by<Policy>(target_rows<confidence, P>(p));
      return f(rows, detail::bind_law(rows, policy));
    });
  }
}

// Says which members of a view are the draft's row, from which the token was drawn, and the
// target's row, whose log-probability is reported.
struct pair_sides {
  template <class At>
  SPECAGG_FUNCTION static auto q(const At& at) -> decltype(at.q) {
    return at.q;
  }
  template <class At>
  SPECAGG_FUNCTION static auto p(const At& at) -> decltype(at.p) {
    return at.p;
  }
};

// ok, or why a drafted token y of probability t = q(y) is outside the support: it was not drawn
// from its row.
SPECAGG_FUNCTION inline status outside_support(token_id y, std::size_t vocabulary, double t) {
  if (y < 0 || std::size_t(y) >= vocabulary) return status::token_out_of_range;
  return t > 0 ? status::ok : status::draft_not_in_support;
}

// The sum of the weights scale w without a token of weight scale w(y). total: the sum with it.
SPECAGG_FUNCTION inline double without_token(double total, double scale, double w) {
  const double left = fma(-scale, w, total);
  return left > 0 ? left : 0;
}
// sum (claim pi - q)+. If the draft's row is one token, that is claim (1 - pi(y)), and no pass is
// needed.
template <class Rows, class Pi>
SPECAGG_FUNCTION double sum_of_residual(const Rows& rows, const Pi& pi, double claim) {
  if constexpr (requires { rows.drafted(); })
    return without_token(claim, claim,
                         as_double(pi(specagg::at(rows, std::size_t(rows.drafted())))));
  else return rows.sum([&](auto at) { return positive(fma(claim, pi(at), -at.q)); });
}

// A drafted token and its rows: w = pi(y), t = q(y) (1 where no draft row is read), and the
// emission if it is accepted. If e.why is not ok the token is outside the support, and the draft
// ends before it.
struct examined {
  emission e;
  double w = 0, t = 0;
};
template <class Sides = pair_sides, class Rows, class Pi>
SPECAGG_FUNCTION examined examine(const Rows& rows, const Pi& pi, token_id y) {
  examined d{{.token = y, .why = outside_support(y, rows.size(), 1)}, 0, 0};
  if (d.e.why != status::ok) return d;
  const auto seen = specagg::at(rows, std::size_t(y));
  d.w = as_double(pi(seen));
  d.t = 1;
  if constexpr (requires { Sides::q(seen); }) d.t = as_double(Sides::q(seen));
  if constexpr (requires { requires Rows::draft_is_cut; })
    if (!(d.t > 0)) d.w = 0, d.t = 1;  // it was not kept
  d.e.why = outside_support(y, rows.size(), d.t);
  d.e.log_pi = log_to_report(rows, d.w);
  d.e.log_p = log_to_report(rows, as_double(Sides::p(seen)));
  return d;
}
template <class Rows, class Pi>
SPECAGG_FUNCTION draft_acceptance measure(const Rows& rows, const Pi& pi, const examined& d) {
  return {acceptance_rate(rows, pi), d.w < d.t ? d.w / d.t : 1};
}

// Draws one position's token from `weight` and computes its log-probabilities; or returns the
// reason why there is no token.
template <class Sides = pair_sides, class Rows, class Pi, class Weight, Chooser C>
SPECAGG_FUNCTION status draw_token(const Rows& rows, const Pi& pi, const Weight& weight, moment m,
                                   C& chooser, std::span<double> scratch, emission& out) {
  if (!specagg::can_weigh(rows, scratch)) return status::invalid_parameter;
  const auto w = specagg::weigh(rows, weight, scratch);
  // NaN too
  if (!(w.total < std::numeric_limits<double>::infinity())) return status::undefined_target;
  const token_id z = w.total > 0 ? chooser.draw(m, w) : no_token;
  if (z == no_token) return status::undefined_target;
  const auto seen = specagg::at(rows, std::size_t(z));
  out.token = z;
  out.log_pi = log_to_report(rows, as_double(pi(seen)));
  out.log_p = log_to_report(rows, as_double(Sides::p(seen)));
  return status::ok;
}

// ---- the decision: accept a drafted token, or draw a replacement --------------------------------

// True with probability min(1, pi(y) / q(y)).
template <Chooser C>
SPECAGG_FUNCTION bool kept(const examined& d, std::uint32_t position, std::uint32_t start,
                           C& chooser) {
  return chooser.coin({stream::coin, position, start}, d.w, d.t);
}
// Draws the token that replaces a rejected one from the residual norm((claim pi - q)+). A rejection
// implies that the residual has mass. If round-off left none, it draws from pi.
template <class Sides = pair_sides, class Rows, class Pi, Chooser C>
SPECAGG_FUNCTION status draw_residual(const Rows& rows, const Pi& pi, double claim,
                                      std::uint32_t position, std::uint32_t start, C& chooser,
                                      std::span<double> scratch, emission& out) {
  out.from = origin::residual;
  const moment m{stream::residual, position, start};
  const auto left = [&](auto at) { return positive(fma(claim, pi(at), -Sides::q(at))); };
  if (detail::draw_token<Sides>(rows, pi, left, m, chooser, scratch, out) == status::ok)
    return status::ok;
  return detail::draw_token<Sides>(rows, pi, pi, m, chooser, scratch, out);
}
// Accepts or replaces: decides the token of one position. If the drafted token is outside the
// support it cannot be accepted, and the token is drawn from pi.
template <class Sides = pair_sides, class Rows, class Pi, Chooser C>
SPECAGG_FUNCTION status keep_or_replace(const Rows& rows, const Pi& pi, const examined& d,
                                        std::uint32_t position, std::uint32_t start, C& chooser,
                                        std::span<double> scratch, emission& out) {
  out = d.e;
  if (!(d.w < std::numeric_limits<double>::infinity())) return status::undefined_target;
  if (d.e.why != status::ok) {
    out.from = origin::bonus;
    return detail::draw_token<Sides>(rows, pi, pi, {stream::bonus, position, start}, chooser,
                                     scratch, out);
  }
  if (detail::kept(d, position, start, chooser)) return status::ok;
  return detail::draw_residual<Sides>(rows, pi, 1, position, start, chooser, scratch, out);
}

// Writes an emission after those of the verdict, and says if it ends the text.
SPECAGG_FUNCTION inline void emit(const emission& e, const end_tokens& ends,
                                  std::span<emission> out, verdict& result) {
  out[result.emitted++] = e;
  if (ends.contains(e.token)) result.ended = e.token;
}

// Makes e the bonus at position g: the given token, or what draw(rows, pi) writes into e, called
// with the rows and the law of that position. whole: the draft did not end early; else the law is
// the policy's.
template <class Policy, class QRows, class PRows, class Draw>
SPECAGG_FUNCTION status bonus_of(bonus_choice bonus, bool whole, const Policy& policy,
                                 QRows& q_rows, PRows& p_rows, std::size_t g, emission& e,
                                 Draw&& draw) {
  if (whole && bonus.is_given()) {
    e.token = bonus.token();
    e.log_pi = e.log_p = std::numeric_limits<double>::quiet_NaN();
    return e.token < 0 ? status::token_out_of_range : status::ok;
  }
  if constexpr (!std::is_same_v<Policy, lossless>)
    if (whole && bonus.is_target())
      return detail::with_law<draft_row::if_read>(lossless(), q_rows, p_rows, g, draw);
  return detail::with_law<draft_row::if_read>(policy, q_rows, p_rows, g, draw);
}

// The token after a draft whose g tokens were all accepted; does nothing if none is wanted.
// `ended`: why the draft ended early, else ok.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION status draw_bonus(const draft& drafted, std::size_t g, status ended,
                                   const Policy& policy, QRows& q_rows, PRows& p_rows, C& chooser,
                                   std::span<double> scratch, std::span<emission> out,
                                   verdict& result) {
  if (ended == status::missing_row || ended == status::vocabulary_mismatch) return ended;
  if (!drafted.bonus_follows(g)) return ended;
  emission e{.from = origin::bonus, .why = ended};
  const status s = detail::bonus_of(
      drafted.bonus, ended == status::ok, policy, q_rows, p_rows, g, e,
      [&](const auto& rows, const auto& pi) {
        return detail::draw_token(rows, pi, pi,
                                  {stream::bonus, std::uint32_t(drafted.start + g), drafted.start},
                                  chooser, scratch, e);
      });
  if (s == status::ok) detail::emit(e, drafted.end_of_text, out, result);
  return s;
}

}  // namespace detail

// Doubles of scratch that a verifier needs for rows of V tokens and drafts of gamma. Block
// verification keeps the rows and the law of each position in it (verify/detail/kept.hpp).
inline constexpr std::size_t scratch_of_position = 128;
SPECAGG_FUNCTION constexpr std::size_t verify_scratch(std::size_t vocabulary,
                                                      std::size_t gamma = 0) {
  return block_count(vocabulary) + gamma * (1 + scratch_of_position) + 1;
}

SPECAGG_END
