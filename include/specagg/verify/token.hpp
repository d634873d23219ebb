// SPDX-License-Identifier: Apache-2.0
// Token verification towards any target law: accept y ~ q with probability min(1, pi(y) / q(y)), else draw from
// norm((pi - q)+). Each emitted token has exactly the law pi given the text before it; a draft is accepted with
// probability 1 - TV(q, pi). Leviathan et al. 2023 and Chen et al. 2023 for pi = p.
#pragma once
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

namespace detail {

// The token drawn for one position, its log-probabilities, or why there is none.
template <class Rows, class Pi, class Weight, Chooser C>
status draw_token(const Rows& rows, const Pi& pi, const Weight& weight, moment m, C& chooser, std::span<double> scratch,
                  emission& out) {
  const auto w = weigh(rows, weight, scratch);
  if (!(w.total < std::numeric_limits<double>::infinity())) return status::undefined_target;  // NaN too
  const token_id z = w.total > 0 ? chooser.draw(m, w) : no_token;
  if (z == no_token) return status::undefined_target;
  const auto seen = at(rows, std::size_t(z));
  out.token = z, out.log_pi = log(number(pi(seen))), out.log_p = log(number(seen.p));
  return status::ok;
}

}  // namespace detail

// Verifies a draft of g tokens.
//   q_rows, p_rows  the rows the draft was sampled from and the target's: anything indexable, or callables, of Rows or
//                   other Distributions. p_rows is asked for 0..g, each at most once, in order, and not beyond the
//                   first rejection (unless overlaps are wanted); q_rows for 0..g-1, and for g (one more call of the
//                   draft model) only if every token was accepted, a bonus is wanted and the policy reads the draft.
//   out             at least g + 1 emissions, the first verdict.emitted of them written
//   scratch         verify_scratch(V) doubles
//   overlaps        empty, or g elements: filled for every drafted position, also behind a rejection, at the price of
//                   one pass over the rows of each
// A position whose row is invalid, or whose law does not exist, emits nothing: the prefix before it stands. A drafted
// token outside the vocabulary, or of probability 0 under q, has not been sampled from q: it is reported; if pi gives
// it mass it is accepted as it is, otherwise the position is drawn from pi.
template <class Policy, class QRows, class PRows, Chooser C>
verdict verify_token(const draft& drafted, QRows&& q_rows, PRows&& p_rows, const Policy& policy, C& chooser,
                     std::span<emission> out, std::span<double> scratch, std::span<overlap> overlaps = {}) {
  using P = std::remove_cvref_t<decltype(detail::row_number(p_rows, 0))>;
  using Q = std::remove_cvref_t<decltype(detail::row_number(q_rows, 0))>;
  static_assert(TargetPolicy<Policy, typename P::value_type>,
                "specagg: the policy is no TargetPolicy (policy/policy.hpp)");
  constexpr bool confidence = reads_confidence<Policy>;
  verdict result;
  if (!valid(policy)) return result.why = status::invalid_parameter, result;
  const std::size_t g = drafted.size();
  bool deciding = true;  // behind a rejection only overlaps are computed

  for (std::size_t j = 0; j < g && (deciding || !overlaps.empty()); ++j) {
    const auto fail = [&](status s) {
      if (deciding) result.why = s;
      return result;
    };
    Q q = detail::row_number(q_rows, j);
    P p = detail::row_number(p_rows, j);
    if (q.size() != p.size()) return fail(status::vocabulary_mismatch);
    if (const status s = q.normalise(confidence); s != status::ok) return fail(s);
    if (const status s = p.normalise(confidence); s != status::ok) return fail(s);
    const row_pair<confidence, Q, P> rows(q, p);
    const auto pi = policy.bind(rows);

    const token_id y = drafted.tokens[j];
    const bool in_range = y >= 0 && std::size_t(y) < p.size();
    double w = 0, t = 0;
    emission e{.token = y};
    if (in_range) {
      const auto seen = at(rows, std::size_t(y));
      w = detail::number(pi(seen)), t = detail::number(seen.q);
      if (!(w < std::numeric_limits<double>::infinity())) return fail(status::undefined_target);
      e.log_pi = log(w), e.log_p = log(detail::number(seen.p));
    }
    if (!overlaps.empty()) {
      const double kept = rows.sum([&](auto at) { return min(at.q, pi(at)); });
      overlaps[j] = {kept, t > 0 ? (w < t ? w / t : 1) : double(w > 0)};
    }
    if (!deciding) continue;
    e.why = !in_range ? status::token_out_of_range : !(t > 0) ? status::draft_not_in_support : status::ok;
    const auto position = std::uint32_t(drafted.start + j);
    if (chooser.coin({stream::coin, position, drafted.start}, w, t)) {
      out[result.emitted++] = e, ++result.accepted;
      continue;
    }
    deciding = false;
    const moment m{stream::residual, position, drafted.start};
    e.from = origin::residual;
    status s = status::undefined_target;
    if (e.why == status::ok)
      s = detail::draw_token(
          rows, pi, [&](auto at) { return positive(settled(pi(at)) - at.q); }, m, chooser, scratch, e);
    // Not from q, or pi - q nowhere positive (it was rejected by rounding alone): pi itself.
    if (s != status::ok) s = detail::draw_token(rows, pi, pi, m, chooser, scratch, e);
    if (s != status::ok) return fail(s);
    out[result.emitted++] = e;
  }
  if (!deciding || !drafted.bonus || drafted.ends_text(g)) return result;

  const moment m{stream::bonus, std::uint32_t(drafted.start + g), drafted.start};
  emission e{.from = origin::bonus};
  P p = detail::row_number(p_rows, g);
  status s = p.normalise(confidence);
  if (s == status::ok) {
    if constexpr (reads_draft<Policy>) {
      Q q = detail::row_number(q_rows, g);
      s = q.size() != p.size() ? status::vocabulary_mismatch : q.normalise(confidence);
      if (s == status::ok) {
        const row_pair<confidence, Q, P> rows(q, p);
        const auto pi = policy.bind(rows);
        s = detail::draw_token(rows, pi, pi, m, chooser, scratch, e);
      }
    } else {
      const target_rows<confidence, P> rows(p);
      const auto pi = policy.bind(rows);
      s = detail::draw_token(rows, pi, pi, m, chooser, scratch, e);
    }
  }
  if (s == status::ok) out[result.emitted++] = e;
  else result.why = s;
  return result;
}

SPECAGG_END
