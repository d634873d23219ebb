// SPDX-License-Identifier: Apache-2.0
// Block verification towards any law pi: the draft is verified as a whole. Sun et al. 2024, Block
// Verification Accelerates Speculative Decoding (arXiv:2403.10444), for pi = p. The proof uses only
// one property of p: it sums to 1. Proved: proofs/block.v, `verify_block_emits_pi`,
// `block_accepts_at_least_token`.
#pragma once
#include <specagg/verify/detail/kept.hpp>

SPECAGG_BEGIN

namespace detail {

// Writes the claims w of a draft of g tokens and the emissions of its tokens. If the draft ends
// early, g is its length, and the status says why.
template <class At>
SPECAGG_FUNCTION status write_claims(At& at, const draft& drafted, std::span<double> claim,
                                     std::span<double> sums, std::span<emission> out,
                                     std::size_t& g) {
  status ended = status::ok;
  claim[0] = 1;
  for (std::size_t i = 0; i < g; ++i) {
    ended = at.with(i, [&](const auto& rows, const auto& pi) {
      if (!specagg::can_weigh(rows, sums)) return status::invalid_parameter;
      const auto d = detail::examine(rows, pi, drafted.tokens[i]);
      if (d.e.why != status::ok) return d.e.why;
      if (!(d.w < infinity)) return status::undefined_target;
      if (!drafted.acceptances.empty()) drafted.acceptances[i] = d.acceptance(rows, pi);
      const double share = claim[i] * d.w;
      claim[i + 1] = share < d.t ? share / d.t : 1;
      out[i] = d.e;
      return status::ok;
    });
    if (ended != status::ok) g = i;
  }
  return ended;
}
// Returns tau, from the claims. why: ok, or why the rows cannot be read.
template <class At, Chooser C>
SPECAGG_FUNCTION std::size_t accepted_as_block(At& at, const draft& drafted,
                                               std::span<const double> claim, std::size_t g,
                                               C& chooser, status& why) {
  std::size_t tau = g;
  for (; tau > 0; --tau) {
    double h = claim[tau];
    if (tau < g && h > 0) {
      why = at.with(tau, [&](const auto& rows, const auto& pi) {
        const double left = detail::sum_of_residual(rows, pi, claim[tau]);
        const double all = left + (1 - claim[tau]);
        h = all > 0 ? left / all : 1;
        return status::ok;
      });
      if (why != status::ok) return 0;
    }
    if (chooser.coin({stream::coin, std::uint32_t(drafted.start + tau - 1), drafted.start}, h, 1))
      break;
  }
  return tau;
}

}  // namespace detail

//   w[0] = 1;  w[i] = min(1, w[i-1] pi_i(y_i) / q_i(y_i))      the claim on i tokens
//   h[i] = S / (S + 1 - w[i]),  S = sum_v (w[i] pi_{i+1}(v) - q_{i+1}(v))+ ;  h[g] = w[g]
//   tau  = the largest i with U_i < h[i], else 0: the number of accepted tokens. If tau = g a bonus
//          token follows, else a token from norm((w pi - q)+) at tau + 1
//
// Contract: specagg.hpp. The coins are tested from the last to the first, so if the whole draft is
// accepted no pass for h is needed. Claims are doubles; with rows of floats S has a relative error
// of 2e-6.
template <class Policy, class QRows = detail::in_braces, class PRows = detail::in_braces, Chooser C>
SPECAGG_FUNCTION verdict verify_block(const draft& drafted, QRows&& q_rows, PRows&& p_rows,
                                      const Policy& policy, C&& chooser, std::span<emission> out,
                                      std::span<double> scratch) {
  if (!detail::usable(drafted, policy, out)) return verdict{.why = status::invalid_parameter};
  if constexpr (CompiledForEach<Policy>) {
    return specagg::with_chosen(policy, [&](const auto& chosen) {
      return specagg::verify_block(drafted, q_rows, p_rows, chosen, chooser, out, scratch);
    });
  } else {
    std::size_t g = drafted.size();
    using positions = detail::kept_positions<Policy, std::remove_reference_t<QRows>,
                                             std::remove_reference_t<PRows>>;
    const std::size_t kept = positions::memory_of(g);
    if (scratch.size() < kept + g + 1) return verdict{.why = status::invalid_parameter};
    verdict result;
    const std::span<double> claim = scratch.last(g + 1),
                            sums = scratch.first(scratch.size() - claim.size() - kept);
    const detail::law_source laws{policy, q_rows, p_rows, sums};
    const detail::drawing by{drafted.start, chooser, sums};
    positions at(laws, scratch.subspan(sums.size(), kept));

    const status ended = detail::write_claims(at, drafted, claim, sums, out, g);
    const std::size_t tau = detail::accepted_as_block(at, drafted, claim, g, chooser, result.why);
    if (result.why != status::ok) return result;
    result.accepted = result.emitted = tau;
    if (drafted.ends_text(tau)) result.ended = drafted.tokens[tau - 1];
    if (tau == g) {
      result.why = by.draw_bonus(laws, drafted, g, ended, out, result);
      return result;
    }
    emission e;
    result.why = at.with(tau, [&](const auto& rows, const auto& pi) {
      return by.draw_residual(rows, pi, claim[tau], tau, e);
    });
    if (result.why == status::ok) detail::emit(e, drafted.end_of_text, out, result);
    return result;
  }
}

SPECAGG_END
