// SPDX-License-Identifier: Apache-2.0
// Speculative decoding split between a device (draft model) and a server (target model): what a
// round sends, and how long it takes. Ning et al. 2025, DSSD. The authors state that a patent has
// been filed on that protocol, CN2025108856278. Times are in any one unit; rates are in bits per
// unit of time.
#pragma once
#include <cmath>

#include <specagg/plan/acceptance.hpp>

SPECAGG_BEGIN
namespace plan {

// As the paper counts: a row of V probabilities of `bits` (b) each is sent, all smaller messages
// cost nothing. ntt (T_NTT, the paper's "non-transmission time"): the part of a round that depends
// on no size: processing, propagation and queueing.
//   DSD   T_comm = gamma V b / R_up + T_ntt            every draft row goes up
//   DSSD  T_comm = (1 - a^gamma) V b / R_down + T_ntt  one target row comes down if rejected (Eq 9)
constexpr double dsd_communication(std::size_t gamma, double vocabulary, double bits,
                                   double rate_up, double ntt) {
  return double(gamma) * vocabulary * bits / rate_up + ntt;
}
constexpr double dssd_communication(double a, std::size_t gamma, double vocabulary, double bits,
                                    double rate_down, double ntt) {
  return (1 - integer_power(a, gamma)) * (vocabulary * bits / rate_down) + ntt;
}

// Bits that a round sends up and down. The bits down are the expectation under acceptance a.
struct traffic {
  double up = 0, down = 0;
};
// The setting of a round of split decoding. vocabulary: V.
struct split {
  std::size_t gamma = 1;  // tokens that it drafts
  double vocabulary = 0;
  double bits = 16;     // per probability of a row
  double id_bits = 32;  // per token id, position or count of tokens
  // per q_j(y_j) of DSSD: a float. Fewer bits would be another q, so the law would be wrong
  double q_bits = 32;
};
//   DSD            gamma (token, row Q_j)          up     (j, token)                           down
//   DSSD           gamma (token, q_j(y_j))         up     (j, row P_j) or (gamma + 1, token)   down
//   coupled        gamma tokens                    up     (j, token)                           down
//   quantised      gamma (token, row_bits)         up     (j, token)                           down
constexpr traffic dsd_traffic(const split& s) {
  return {double(s.gamma) * (s.id_bits + s.vocabulary * s.bits), 2 * s.id_bits};
}
constexpr traffic dssd_traffic(const split& s, double a) {
  const double all = integer_power(a, s.gamma);
  return {double(s.gamma) * (s.id_bits + s.q_bits),
          s.id_bits + (1 - all) * s.vocabulary * s.bits + all * s.id_bits};
}
constexpr traffic coupled_traffic(const split& s) {
  return {double(s.gamma) * s.id_bits, 2 * s.id_bits};
}
constexpr traffic quantised_traffic(const split& s, double row_bits) {
  return {double(s.gamma) * (s.id_bits + row_bits), 2 * s.id_bits};
}

// Bits of a quantised row: which K of V tokens it has, and how l counts are distributed over them:
// log2 C(V, K) + log2 C(l + K - 1, K - 1). 1 <= K <= V, l >= 1; exact to 1e-12 K.
inline double quantised_row_bits(std::size_t vocabulary, std::size_t kept, std::size_t counts) {
  const auto log2_choose = [](std::size_t n, std::size_t k) {
    double sum = 0;
    for (std::size_t i = 0; i < k; ++i) sum += std::log2(double(n - i) / double(k - i));
    return sum;
  };
  return log2_choose(vocabulary, kept) + log2_choose(counts + kept - 1, kept - 1);
}
// whole bytes of a message of this many bits
inline double bytes(double bits) { return std::ceil(bits / 8); }

// T_comm of a round on a link.
struct link {
  double rate_up = 1, rate_down = 1, ntt = 0;
};
// ntt is that of a whole round, in both directions together.
constexpr double communication(const traffic& t, const link& l) {
  return t.up / l.rate_up + t.down / l.rate_down + l.ntt;
}

// Time of a round, T = gamma T_slm + T_llm v + T_comm (Eq 13, with v); and the speed-up over the
// large model alone, E / (c gamma + T_comm / T_llm + v). E: tokens per round; c = T_slm / T_llm.
constexpr double split_latency(std::size_t gamma, double t_slm, double t_llm, double t_comm,
                               double v = 1) {
  return double(gamma) * t_slm + t_llm * v + t_comm;
}
constexpr double split_speedup(double tokens, std::size_t gamma, double t_slm, double t_llm,
                               double t_comm, double v = 1) {
  return tokens * t_llm / split_latency(gamma, t_slm, t_llm, t_comm, v);
}

// A split beside a server that has both models (Lyu et al. 2026, Speculation at a Distance,
// arXiv:2606.25091), with equal tokens in a round. The time that one text saves in a round: the
// server's drafting time less the device's, less T_comm. Negative: the split is slower.
constexpr double split_saving(std::size_t gamma, double t_slm_device, double t_slm_server,
                              double t_comm) {
  return double(gamma) * (t_slm_server - t_slm_device) - t_comm;
}
// How many times as many texts a busy server writes if it drafts none of them: 1 + c gamma / v.
// c = T_slm of the server / T_llm.
constexpr double split_capacity(std::size_t gamma, double c, double v = 1) {
  return 1 + c * double(gamma) / v;
}

}  // namespace plan
SPECAGG_END
