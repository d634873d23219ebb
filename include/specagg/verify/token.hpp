// SPDX-License-Identifier: Apache-2.0
// Token verification towards any law pi. A drafted token is accepted with probability
// 1 - TV(q, pi). Leviathan et al. 2023 and Chen et al. 2023 for pi = p. Proved: proofs/token.v,
// `verify_token_emits_pi`, `acceptance_is_1_minus_tv`.
#pragma once
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// Contract: specagg.hpp.
template <class Policy, class QRows, class PRows, Chooser C>
SPECAGG_FUNCTION verdict verify_token(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch) {
  verdict result;
  if (!detail::usable(drafted, policy, out)) {
    result.why = status::invalid_parameter;
    return result;
  }
  std::size_t g = drafted.size();
  bool deciding = true;  // after a rejection only acceptances are computed

  for (std::size_t j = 0; j < g && (deciding || !drafted.acceptances.empty()); ++j) {
    const bool decides = deciding;
    bool bound = false;
    const status s = detail::with_law<detail::draft_row::always>(
        policy, q_rows, p_rows, j, [&](const auto& rows, const auto& pi) {
          bound = true;
          if (!specagg::can_weigh(rows, scratch)) return status::invalid_parameter;
          const auto d = detail::examine(rows, pi, drafted.tokens[j]);
          if (!(d.w < infinity)) return status::undefined_target;
          if (d.e.why != status::ok) g = j;  // a token outside the support
          else if (!drafted.acceptances.empty())
            drafted.acceptances[j] = detail::measure(rows, pi, d);
          if (!decides) return status::ok;
          if (g == j && !drafted.bonus) return d.e.why;
          emission e;
          const status decided = detail::keep_or_replace(
              rows, pi, d, std::uint32_t(drafted.start + j), drafted.start, chooser, scratch, e);
          if (decided != status::ok) return decided;
          deciding = e.from == origin::accepted;
          result.accepted += deciding;
          detail::emit(e, drafted.end_of_text, out, result);
          return status::ok;
        });
    if (s == status::ok) continue;
    if (decides)
      result.why = bound ? s
                         : detail::draw_bonus(drafted, j, s, policy, q_rows, p_rows, chooser,
                                              scratch, out, result);
    return result;
  }
  if (deciding)
    result.why = detail::draw_bonus(drafted, g, status::ok, policy, q_rows, p_rows, chooser,
                                    scratch, out, result);
  return result;
}

SPECAGG_END
