// SPDX-License-Identifier: Apache-2.0
// Speed-ups in closed form. c: cost of a step of q divided by that of a step of p, >= 0. v:
// measured cost of scoring a draft (gamma + 1 tokens) divided by that of one step, >= 1; the papers
// have v = 1.
#pragma once
#include <concepts>

#include <specagg/plan/acceptance.hpp>

SPECAGG_BEGIN
namespace plan {

// Speculative decoding over the target alone, from what was measured: E / (c g + v). E: tokens per
// round, g: draft steps per round.
constexpr double round_speedup(double tokens, double draft_steps, double c, double v = 1) {
  return tokens / (c * draft_steps + v);
}
// Speed-up with constant acceptance a: (1 - a^(gamma+1)) / ((1 - a) (c gamma + v)) (Leviathan et
// al. 2023, Theorem 3.8, with v). If the law reads the draft's row, its bonus token costs one more
// draft step: c (gamma + a^gamma).
constexpr double speculative_speedup(double a, std::size_t gamma, double c, double v = 1,
                                     bool law_reads_draft = false) {
  const double more = law_reads_draft ? integer_power(a, gamma) : 0;
  return round_speedup(expected_tokens(a, gamma), double(gamma) + more, c, v);
}
// gamma is a whole number. For a measured number of draft steps there is round_speedup.
template <std::floating_point Steps>
double speculative_speedup(double a, Steps draft_steps, double c, double v = 1) = delete;

// Naive CoS over running both models for every token: (1 - a^gamma) (1 + c) / ((1 - a) (c gamma +
// v)), gamma >= 1 (Fu et al. 2025, Theorem 3.1, with v).
constexpr double naive_cos_speedup(double a, std::size_t gamma, double c, double v = 1) {
  return expected_tokens(a, gamma, false) * (1 + c) / (c * double(gamma) + v);
}

// CoS with alternating proposers is a renewal process over rounds. In a round of state
//   D  no bonus token waits: q drafts gamma_q, p scores         cost c gamma_q + v_p
//   P  one of p waits: p drafts gamma_p - 1 tokens, q scores    cost gamma_p - 1 + c v_q
//   Q  one of q waits: q drafts gamma_q - 1 tokens, p scores    cost c (gamma_q - 1) + v_p
// all tokens are accepted with probability A = a_q^gamma_q (in D and Q: the next state is P) or B =
// a_p^gamma_p (in P: the next state is Q). Otherwise the next state is D.
struct alternating {
  double a_q = 0, a_p = 0;               // acceptance of drafts of q and of p, in [0, 1]
  std::size_t gamma_q = 1, gamma_p = 1;  // >= 1
  double c = 1, v_q = 1, v_p = 1;        // v of q and of p when they score
};
// Its averages in a long text.
struct alternating_rates {
  double pi_d = 0, pi_p = 0, pi_q = 0;  // fraction of rounds in each state
  double calls_q = 0, calls_p = 0;      // calls of each model per round, scoring included
  double tokens = 0, cost = 0;          // per round; cost in steps of p
  double speedup = 0;                   // over both models for every token: (1 + c) tokens / cost
};
// In closed form.
constexpr alternating_rates rates(const alternating& x) {
  const double A = integer_power(x.a_q, x.gamma_q), B = integer_power(x.a_p, x.gamma_p),
               gq = double(x.gamma_q), gp = double(x.gamma_p);
  alternating_rates r;
  r.pi_p = A / (1 + A);
  r.pi_q = A * B / (1 + A);
  r.pi_d = (1 - A * B) / (1 + A);
  r.calls_q = r.pi_d * gq + r.pi_q * (gq - 1) + r.pi_p;
  r.calls_p = r.pi_d + r.pi_q + r.pi_p * (gp - 1);
  r.tokens = (r.pi_d + r.pi_q) * expected_tokens(x.a_q, x.gamma_q, false) +
             r.pi_p * expected_tokens(x.a_p, x.gamma_p, false);
  r.cost = r.pi_d * (x.c * gq + x.v_p) + r.pi_q * (x.c * (gq - 1) + x.v_p) +
           r.pi_p * (x.c * x.v_q + gp - 1);
  r.speedup = (1 + x.c) * r.tokens / r.cost;
  return r;
}

}  // namespace plan
SPECAGG_END
