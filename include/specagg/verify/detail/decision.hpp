// SPDX-License-Identifier: Apache-2.0
// The decision about a drafted token: the parts that all verifiers are made of.
#pragma once
#include <specagg/verify/detail/law.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN
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

// Whether the rows are those of a draft and a target.
template <class Rows>
constexpr bool has_draft =
    requires(const std::remove_cvref_t<Rows>& rows) { specagg::at(rows, std::size_t()).q; };

// The sum of the weights scale w without a token of weight scale w(y). total: the sum with it.
SPECAGG_FUNCTION inline double without_token(double total, double scale, double w) {
  const double left = fma(-scale, w, total);
  return left > 0 ? left : 0;
}
// (claim pi - q)+, what is left of a claim on pi; or min(q, pi), what q and pi share. A device
// compiles each function that it sums, so there it is one.
template <class Sides, class Pi>
struct residual_or_overlap {
  const Pi& pi;
  double claim;
  bool overlap;
  template <class At>
  SPECAGG_FUNCTION SPECAGG_INLINE auto operator()(At at) const {
    const auto x = pi(at), q = Sides::q(at);
    return overlap ? min(q, x) : positive(fma(claim, x, -q));
  }
};
template <class Sides = pair_sides, class Rows, class Pi>
SPECAGG_FUNCTION auto residual_of(const Rows&, const Pi& pi, double claim) {
  if constexpr (Walked<Rows>) return residual_or_overlap<Sides, Pi>{pi, claim, false};
  else return [&pi, claim](auto at) { return positive(fma(claim, pi(at), -Sides::q(at))); };
}
// sum min(q, pi).
template <class Rows, class Pi>
SPECAGG_FUNCTION double sum_of_overlap(const Rows& rows, const Pi& pi) {
  if constexpr (Walked<Rows> && !requires { rows.drafted(); })
    return rows.sum(residual_or_overlap<pair_sides, Pi>{pi, 1, true});
  else return acceptance_rate(rows, pi);
}
// sum (claim pi - q)+. If the draft's row is one token, that is claim (1 - pi(y)), and no pass is
// needed.
template <class Rows, class Pi>
SPECAGG_FUNCTION double sum_of_residual(const Rows& rows, const Pi& pi, double claim) {
  if constexpr (requires { rows.drafted(); })
    return without_token(claim, claim,
                         as_double(pi(specagg::at(rows, std::size_t(rows.drafted())))));
  else return rows.sum(detail::residual_of(rows, pi, claim));
}

// A drafted token and its rows: w = pi(y), t = q(y) (1 where no draft row is read), and the
// emission if it is accepted. If e.why is not ok the token is outside the support, and the draft
// ends before it.
struct examined {
  emission e;
  double w = 0, t = 0;

  template <class Rows, class Pi>
  SPECAGG_FUNCTION draft_acceptance acceptance(const Rows& rows, const Pi& pi) const {
    return {sum_of_overlap(rows, pi), w < t ? w / t : 1};
  }
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
SPECAGG_FUNCTION status bonus_of(const law_source<Policy, QRows, PRows>& of, bonus_choice bonus,
                                 bool whole, std::size_t g, emission& e, Draw&& draw) {
  if (whole && bonus.is_given()) {
    e.token = bonus.token();
    e.log_pi = e.log_p = std::numeric_limits<double>::quiet_NaN();
    return e.token < 0 ? status::token_out_of_range : status::ok;
  }
  if constexpr (!std::is_same_v<Policy, lossless>)
    if (whole && bonus.is_target()) return of.by(lossless()).with_law(g, draw);
  return of.with_law(g, draw);
}

// Whether the threads of a device judge drafted tokens at the same time, each another one: the
// chooser has leading(count, judge), which says how many of the tokens 0, 1, ... judge(j) accepts.
// Only with a law that makes no sum, in which all threads would have to work together.
template <class C, class Policy>
constexpr bool judges_at_once =
    std::is_same_v<Policy, lossless> && requires(const std::remove_cvref_t<C>& c) {
      c.leading(std::size_t(), static_cast<bool (*)(std::size_t)>(nullptr));
    };

// All draws of one call: they share the position at which the draft starts, the random numbers, and
// memory for sums of weights.
template <class C>
struct drawing {
  std::uint32_t start;
  C& chooser;
  std::span<double> scratch;

  // The moment of a use at position j of the draft.
  SPECAGG_FUNCTION moment at(stream use, std::size_t j) const {
    return {use, std::uint32_t(start + j), start};
  }

  // Draws one position's token from `weight` and computes its log-probabilities; or returns the
  // reason why there is no token.
  template <class Sides = pair_sides, class Rows, class Pi, class Weight>
  SPECAGG_FUNCTION status draw_token(const Rows& rows, const Pi& pi, const Weight& weight, moment m,
                                     emission& out) const {
    if (!specagg::can_weigh(rows, scratch)) return status::invalid_parameter;
    const auto draw = [&](const auto& w) {  // nothing from a total that is 0, infinite or NaN
      return w.total > 0 && w.total < infinity ? chooser.draw(m, w) : no_token;
    };
    if constexpr (requires { rows.target(); })
      if (detail::is_target(weight)) {
        const auto& row = rows.target();
        row_sums sums{scratch};
        if constexpr (requires { rows.sums(); })
          if (rows.sums().known) sums = rows.sums();
        out.token = specagg::with_weights(row, sums, draw);
        if (out.token == no_token) return status::undefined_target;
        const double p = as_double(specagg::at(row, std::size_t(out.token)));
        out.log_pi = out.log_p = log_to_report(rows, p);
        return status::ok;
      }
    if constexpr (!std::is_same_v<Weight, target_itself> || !requires { rows.target(); }) {
      // a residual of the target's row is 0 wherever the row is
      if constexpr (requires { pi.is_target(), rows.target(); }) {
        out.token = detail::is_target(pi)
                        ? specagg::weigh_where_kept(rows.target(), rows, weight, scratch, draw)
                        : draw(specagg::weigh(rows, weight, scratch));
      } else {
        out.token = draw(specagg::weigh(rows, weight, scratch));
      }
      if (out.token == no_token) return status::undefined_target;
      const auto seen = specagg::at(rows, std::size_t(out.token));
      out.log_pi = log_to_report(rows, as_double(pi(seen)));
      out.log_p = log_to_report(rows, as_double(Sides::p(seen)));
    }
    return status::ok;
  }

  // True with probability min(1, pi(y) / q(y)). j: the position of the draft.
  SPECAGG_FUNCTION bool keep(const examined& d, std::size_t j) const {
    return chooser.coin(at(stream::coin, j), d.w, d.t);
  }
  // Accepts the first drafted tokens that a verifier would accept one after the other, and says how
  // many. Each thread judges the token with its own number and has only this emission in `out`.
  template <class Laws>
  SPECAGG_FUNCTION std::size_t accept_at_once(const Laws& laws, const draft& drafted,
                                              std::span<emission> out, verdict& result) const {
    const std::size_t n = chooser.leading(drafted.size(), [&](std::size_t j) {
      bool kept = false;
      const auto judge = [&](const auto& rows, const auto& pi) {
        const auto d = detail::examine(rows, pi, drafted.tokens[j]);
        kept = d.e.why == status::ok && d.w < std::numeric_limits<double>::infinity() &&
               (has_draft<decltype(rows)> || d.w >= 1) && keep(d, j);
        out[j] = d.e;
        return status::ok;
      };
      return laws.template with_law<draft_row::unless_greedy>(j, judge) == status::ok && kept;
    });
    result.accepted = result.emitted = n;
    if (drafted.ends_text(n)) result.ended = drafted.tokens[n - 1];
    return n;
  }
  // Draws the token that replaces a rejected one from the residual norm((claim pi - q)+). A
  // rejection implies that the residual has mass. If round-off left none, it draws from pi; and if
  // there is no draft's row, whose token then had pi(y) = 0.
  template <class Sides = pair_sides, class Rows, class Pi>
  SPECAGG_FUNCTION status draw_residual(const Rows& rows, const Pi& pi, double claim, std::size_t j,
                                        emission& out) const {
    out.from = origin::residual;
    const moment m = at(stream::residual, j);
    if constexpr (!std::is_same_v<Sides, pair_sides> || has_draft<Rows>)
      if (draw_token<Sides>(rows, pi, residual_of<Sides>(rows, pi, claim), m, out) == status::ok)
        return status::ok;
    return draw_token<Sides>(rows, pi, pi, m, out);
  }
  // Accepts or replaces: decides the token of one position. If the drafted token is outside the
  // support it cannot be accepted, and the token is drawn from pi.
  template <class Sides = pair_sides, class Rows, class Pi>
  SPECAGG_FUNCTION status keep_or_replace(const Rows& rows, const Pi& pi, const examined& d,
                                          std::size_t j, emission& out) const {
    out = d.e;
    if (!(d.w < std::numeric_limits<double>::infinity())) return status::undefined_target;
    if (d.e.why != status::ok) {
      out.from = origin::bonus;
      return draw_token<Sides>(rows, pi, pi, at(stream::bonus, j), out);
    }
    return keep(d, j) ? status::ok : draw_residual<Sides>(rows, pi, 1, j, out);
  }
  // The token after a draft whose g tokens were all accepted; does nothing if none is wanted.
  // `ended`: why the draft ended early, else ok.
  template <class Policy, class QRows, class PRows>
  SPECAGG_FUNCTION status draw_bonus(const law_source<Policy, QRows, PRows>& of,
                                     const draft& drafted, std::size_t g, status ended,
                                     std::span<emission> out, verdict& result) const {
    if (ended == status::missing_row || ended == status::vocabulary_mismatch) return ended;
    if (!drafted.bonus_follows(g)) return ended;
    emission e{.from = origin::bonus, .why = ended};
    const auto draw = [&](const auto& rows, const auto& pi) {
      return draw_token(rows, pi, pi, at(stream::bonus, g), e);
    };
    const status s = detail::bonus_of(of, drafted.bonus, ended == status::ok, g, e, draw);
    if (s == status::ok) emit(e, drafted.end_of_text, out, result);
    return s;
  }
};
template <class C>
drawing(std::uint32_t, C&, std::span<double>) -> drawing<C>;

}  // namespace detail
SPECAGG_END
