// SPDX-License-Identifier: Apache-2.0
// Exact-match verification: draw z ~ pi at every position, and continue while z is the drafted
// token. Other engines call it "sample and match". It is the right choice for greedy decoding.
// Otherwise it accepts with probability sum q pi, which is less than 1 - TV(q, pi).
// Proved: proofs/token.v, `verify_match_emits_pi`.
#pragma once
#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN

// Contract: specagg.hpp.
template <class Policy, class QRows = detail::in_braces, class PRows = detail::in_braces, Chooser C>
SPECAGG_FUNCTION verdict verify_match(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch) {
  if (!detail::usable(drafted, policy, out)) return verdict{.why = status::invalid_parameter};
  verdict result;
  std::size_t g = drafted.size();
  bool deciding = true;
  const detail::law_source laws{policy, q_rows, p_rows, scratch};
  const detail::drawing by{drafted.start, chooser, scratch};
  for (std::size_t j = 0; j < g && (deciding || !drafted.acceptances.empty()); ++j) {
    const token_id y = drafted.tokens[j];
    if (!drafted.acceptances.empty())
      (void)laws.template with_law<detail::draft_row::always>(
          j, [&](const auto& rows, const auto& pi) {
            const draft_acceptance o{rows.sum_where_drafted([&](auto at) { return at.q * pi(at); }),
                                     detail::examine(rows, pi, y).w};
            if (o.of_row < infinity && o.of_token < infinity) drafted.acceptances[j] = o;
            return status::ok;
          });
    if (!deciding) continue;
    emission e;
    result.why = laws.with_law(j, [&](const auto& rows, const auto& pi) {
      e.why = detail::examine(rows, pi, y).e.why;
      if (e.why != status::ok) g = j;  // a token outside the support
      if (g == j && !drafted.bonus) return e.why;
      const stream use = g == j ? stream::bonus : stream::residual;
      return by.draw_token(rows, pi, pi, by.at(use, j), e);
    });
    if (result.why != status::ok) return result;
    deciding = g > j && e.token == y;
    e.from = deciding ? origin::accepted : g > j ? origin::residual : origin::bonus;
    result.accepted += deciding;
    detail::emit(e, drafted.end_of_text, out, result);
  }
  if (deciding) result.why = by.draw_bonus(laws, drafted, g, status::ok, out, result);
  return result;
}

SPECAGG_END
