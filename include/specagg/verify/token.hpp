// SPDX-License-Identifier: Apache-2.0
// Token verification towards any law pi. A drafted token is accepted with probability
// 1 - TV(q, pi). Leviathan et al. 2023 and Chen et al. 2023 for pi = p. Proved: proofs/token.v,
// `verify_token_emits_pi`, `acceptance_is_1_minus_tv`.
#pragma once
#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN

// Contract: specagg.hpp.
template <class Policy, class QRows = detail::in_braces, class PRows = detail::in_braces, Chooser C>
SPECAGG_FUNCTION verdict verify_token(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch) {
  if (!detail::usable(drafted, policy, out)) return verdict{.why = status::invalid_parameter};
  verdict result;
  auto g = std::uint32_t(drafted.size());  // 32 bits: registers of a device
  bool deciding = true;                    // after a rejection only acceptances are computed
  const detail::law_source laws{policy, q_rows, p_rows, scratch};
  const detail::drawing by{drafted.start, chooser, scratch};

  std::uint32_t j = 0;
  if constexpr (detail::judges_at_once<C, Policy>)
    if (drafted.acceptances.empty())
      j = std::uint32_t(by.accept_at_once(laws, drafted, out, result));
  for (; j < g && (deciding || !drafted.acceptances.empty()); ++j) {
    const bool decides = deciding;
    bool bound = false, settled = false;
    const auto settle = [&](const auto& rows, const auto& pi) {
      constexpr bool has_draft = detail::has_draft<decltype(rows)>;
      bound = true;
      if (!specagg::can_weigh(rows, scratch)) return status::invalid_parameter;
      const auto d = detail::examine(rows, pi, drafted.tokens[j]);
      if (!(d.w < infinity)) return status::undefined_target;
      if (!has_draft && d.w > 0 && d.w < 1) {  // then acceptance depends on the draft's row
        settled = false;
        return status::ok;
      }
      if (d.e.why != status::ok) g = j;  // a token outside the support
      if constexpr (has_draft)
        if (d.e.why == status::ok && !drafted.acceptances.empty())
          drafted.acceptances[j] = d.acceptance(rows, pi);
      if (!decides) return status::ok;
      if (g == j && !drafted.bonus) return d.e.why;
      emission e;
      const status decided = by.keep_or_replace(rows, pi, d, j, e);
      if (decided != status::ok) return decided;
      deciding = e.from == origin::accepted;
      result.accepted += deciding;
      detail::emit(e, drafted.end_of_text, out, result);
      return status::ok;
    };
    status s = status::ok;
    for (bool alone = decides && drafted.acceptances.empty();; alone = false) {
      bound = false;
      settled = true;
      s = laws.template with_law<detail::draft_row::unless_greedy>(j, settle, alone);
      if (settled) break;
    }
    if (s == status::ok) continue;
    if (decides) result.why = s;
    if (!decides || bound) return result;
    g = j;  // the draft ends before it
  }
  if (deciding) result.why = by.draw_bonus(laws, drafted, g, result.why, out, result);
  return result;
}

SPECAGG_END
