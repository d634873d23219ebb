// SPDX-License-Identifier: Apache-2.0
// What goes into a verification and what comes out: the same for every verifier.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/policy/policy.hpp>
#include <specagg/random.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// The tokens a draft proposed for positions start, start + 1, ... of the text. A no_token (-1) ends the draft early
// (padding of ragged batches), and so does the first end-of-text token: what stands behind it is dropped.
struct draft {
  std::span<const token_id> tokens = {};
  std::uint32_t start = 0;
  token_id end_of_text = no_token;
  bool bonus = true;  // draw a token more when all were accepted and the text has not ended

  SPECAGG_FUNCTION std::size_t size() const {
    std::size_t g = 0;
    while (g < tokens.size() && tokens[g] != no_token)
      if (tokens[g++] == end_of_text) break;
    return g;
  }
  SPECAGG_FUNCTION bool ends_text(std::size_t g) const { return g > 0 && tokens[g - 1] == end_of_text; }
};

enum class origin : std::uint8_t { accepted, residual, bonus };
constexpr const char* name(origin o) {
  return o == origin::accepted ? "accepted" : o == origin::residual ? "residual" : "bonus";
}

// One emitted token. log_pi and log_p: its log-probability under the target law and under the target model's row.
struct emission {
  token_id token = no_token;
  origin from = origin::accepted;
  status why = status::ok;  // ok, draft_not_in_support or token_out_of_range
  double log_pi = 0, log_p = 0;
};

// What the rows say about a drafted position, whether it was reached or not: overlap = sum min(q, pi), the probability
// that a token from q is accepted there; ratio = min(1, pi(y) / q(y)), the probability that the drafted y is.
struct overlap {
  double acceptance = 0, ratio = 0;
};

// accepted: drafted tokens kept. emitted: tokens written (accepted, plus one residual or bonus token if there is one).
// why: ok, or what is wrong with row number `emitted`, for which no token could be emitted.
struct verdict {
  std::size_t accepted = 0, emitted = 0;
  status why = status::ok;
};

// Expected tokens per round from the overlaps of one draft, whatever was accepted:
// 1 + sum_k a_k prod_{j<k} min(1, pi_j(y_j) / q_j(y_j)). Unbiased for token verification.
inline double expected_tokens(std::span<const overlap> draft) {
  double expected = 1, reached = 1;
  for (const overlap& o : draft) {
    expected = fma(o.acceptance, reached, expected);
    reached *= o.ratio;
  }
  return expected;
}

namespace detail {

// rows(j) if it can be called, else rows[j]: the row of position j, made only when it is needed.
template <class Rows>
SPECAGG_FUNCTION decltype(auto) row_number(Rows& rows, std::size_t j) {
  if constexpr (requires { rows(j); }) return as_row(rows(j));
  else return as_row(rows[j]);
}

template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE double number(V x) {
  return double(settled(x).v);
}

}  // namespace detail

namespace detail {

// What stands before every verification: parameters in range, room for every result.
template <class Policy>
SPECAGG_FUNCTION bool usable(const draft& drafted, const Policy& policy, std::span<const emission> out,
                             std::span<overlap> overlaps) {
  const std::size_t g = drafted.size();
  for (overlap& o : overlaps) o = {};
  return valid(policy) && out.size() >= g + drafted.bonus && (overlaps.empty() || overlaps.size() >= g);
}

// f(rows, pi) for the pair of rows number j, normalised, and the law bound to them; or what is wrong with them.
template <class Policy, class QRows, class PRows, class F>
SPECAGG_FUNCTION status with_law(const Policy& policy, QRows& q_rows, PRows& p_rows, std::size_t j, F&& f) {
  constexpr bool confidence = reads_confidence<Policy>;
  auto q = row_number(q_rows, j);
  auto p = row_number(p_rows, j);
  static_assert(TargetPolicy<Policy, typename decltype(p)::value_type>,
                "specagg: the policy is no TargetPolicy (policy/policy.hpp)");
  if (q.size() != p.size()) return status::vocabulary_mismatch;
  if (const status s = q.normalise(confidence); s != status::ok) return s;
  if (const status s = p.normalise(confidence); s != status::ok) return s;
  const row_pair<confidence, decltype(q), decltype(p)> rows(q, p);
  return f(rows, policy.bind(rows));
}

// The same for a position whose draft row is not needed unless the policy reads it.
template <class Policy, class QRows, class PRows, class F>
SPECAGG_FUNCTION status with_target_law(const Policy& policy, QRows& q_rows, PRows& p_rows, std::size_t j, F&& f) {
  if constexpr (reads_draft<Policy>) {
    return with_law(policy, q_rows, p_rows, j, f);
  } else {
    auto p = row_number(p_rows, j);
    if (const status s = p.normalise(reads_confidence<Policy>); s != status::ok) return s;
    const target_rows<reads_confidence<Policy>, decltype(p)> rows(p);
    return f(rows, policy.bind(rows));
  }
}

// A drafted token under its rows: w = pi(y), t = q(y), and the emission it would be.
struct judgement {
  emission e;
  double w = 0, t = 0;
};
template <class Rows, class Pi>
SPECAGG_FUNCTION judgement judge(const Rows& rows, const Pi& pi, token_id y) {
  judgement d{{.token = y, .why = status::token_out_of_range}, 0, 0};
  if (y < 0 || std::size_t(y) >= rows.size()) return d;
  const auto seen = at(rows, std::size_t(y));
  d.w = number(pi(seen)), d.t = number(seen.q);
  d.e.why = d.t > 0 ? status::ok : status::draft_not_in_support;
  d.e.log_pi = log(d.w), d.e.log_p = log(number(seen.p));
  return d;
}
template <class Rows, class Pi>
SPECAGG_FUNCTION overlap measure(const Rows& rows, const Pi& pi, const judgement& d) {
  return {rows.sum_where_drafted([&](auto at) { return min(at.q, pi(at)); }),
          d.t > 0 ? (d.w < d.t ? d.w / d.t : 1) : double(d.w > 0)};
}

// The token drawn from `weight` for one position and its log-probabilities, or why there is none.
template <class Rows, class Pi, class Weight, Chooser C>
SPECAGG_FUNCTION status draw_token(const Rows& rows, const Pi& pi, const Weight& weight, moment m, C& chooser,
                                   std::span<double> scratch, emission& out) {
  if (!can_weigh(rows, scratch)) return status::invalid_parameter;
  const auto w = weigh(rows, weight, scratch);
  if (!(w.total < std::numeric_limits<double>::infinity())) return status::undefined_target;  // NaN too
  const token_id z = w.total > 0 ? chooser.draw(m, w) : no_token;
  if (z == no_token) return status::undefined_target;
  const auto seen = at(rows, std::size_t(z));
  out.token = z, out.log_pi = log(number(pi(seen))), out.log_p = log(number(seen.p));
  return status::ok;
}
// The token that replaces a rejected one: from norm((claim pi - q)+); from pi itself if the draft was not drawn from q,
// or if that weight is nowhere positive.
template <class Rows, class Pi, Chooser C>
SPECAGG_FUNCTION status draw_residual(const Rows& rows, const Pi& pi, double claim, moment m, C& chooser,
                                      std::span<double> scratch, emission& out) {
  out.from = origin::residual;
  if (out.why == status::ok) {
    const auto left = [&](auto at) { return positive(fma(claim, pi(at), -at.q)); };
    if (draw_token(rows, pi, left, m, chooser, scratch, out) == status::ok) return status::ok;
  }
  return draw_token(rows, pi, pi, m, chooser, scratch, out);
}
// The token after a draft of g accepted ones; nothing if none is wanted.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION status draw_bonus(const draft& drafted, std::size_t g, const Policy& policy, QRows& q_rows,
                                   PRows& p_rows, C& chooser, std::span<double> scratch, std::span<emission> out,
                                   verdict& result) {
  if (!drafted.bonus || drafted.ends_text(g)) return status::ok;
  emission e{.from = origin::bonus};
  const status s = with_target_law(policy, q_rows, p_rows, g, [&](const auto& rows, const auto& pi) {
    return draw_token(rows, pi, pi, {stream::bonus, std::uint32_t(drafted.start + g), drafted.start}, chooser, scratch,
                      e);
  });
  if (s == status::ok) out[result.emitted++] = e;
  return s;
}

}  // namespace detail

// Doubles of scratch that a verifier needs for rows of V tokens and drafts of gamma.
SPECAGG_FUNCTION constexpr std::size_t verify_scratch(std::size_t vocabulary, std::size_t gamma = 0) {
  return block_count(vocabulary) + gamma + 1;
}

SPECAGG_END
