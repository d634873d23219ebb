// SPDX-License-Identifier: Apache-2.0
// Token verification towards any target law: accept y ~ q with probability min(1, pi(y) / q(y)), else draw from
// norm((pi - q)+). Each emitted token has exactly the law pi given the text before it; a draft is accepted with
// probability 1 - TV(q, pi). Leviathan et al. 2023 and Chen et al. 2023 for pi = p.
#pragma once
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

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
SPECAGG_FUNCTION verdict verify_token(const draft& drafted, QRows&& q_rows, PRows&& p_rows, const Policy& policy,
                                      C& chooser, std::span<emission> out, std::span<double> scratch,
                                      std::span<overlap> overlaps = {}) {
  verdict result;
  if (!detail::usable(drafted, policy, out, overlaps)) return result.why = status::invalid_parameter, result;
  const std::size_t g = drafted.size();
  bool deciding = true;  // behind a rejection only overlaps are computed

  for (std::size_t j = 0; j < g && (deciding || !overlaps.empty()); ++j) {
    const bool decides = deciding;
    const auto position = std::uint32_t(drafted.start + j);
    const status s = detail::with_law(policy, q_rows, p_rows, j, [&](const auto& rows, const auto& pi) {
      auto [e, w, t] = detail::judge(rows, pi, drafted.tokens[j]);
      if (!(w < infinity)) return status::undefined_target;
      if (!overlaps.empty()) overlaps[j] = detail::measure(rows, pi, {e, w, t});
      if (!decides) return status::ok;
      deciding = chooser.coin({stream::coin, position, drafted.start}, w, t);
      if (!deciding) {
        const moment m{stream::residual, position, drafted.start};
        const status drawn = detail::draw_residual(rows, pi, 1, m, chooser, scratch, e);
        if (drawn != status::ok) return drawn;
      }
      result.accepted += deciding;
      out[result.emitted++] = e;
      return status::ok;
    });
    if (s == status::ok) continue;
    if (decides) result.why = s;
    return result;
  }
  if (deciding) result.why = detail::draw_bonus(drafted, g, policy, q_rows, p_rows, chooser, scratch, out, result);
  return result;
}

SPECAGG_END
