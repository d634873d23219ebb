// SPDX-License-Identifier: Apache-2.0
// Planning: from rows to an acceptance, the best gamma, the speed-up, and what a link makes of it.
#include <array>
#include <cstdio>

#include <specagg/decoders.hpp>
using namespace specagg;

int main() {
  // One row of each model. Use the mean over many: `acceptances` of the verifiers measure it.
  const std::array<float, 4> q{0.5f, 0.25f, 0.125f, 0.125f}, p{0.375f, 0.375f, 0.125f, 0.125f};
  const double tv = total_variation(q, p), a = plan::acceptance(tv);
  std::printf("TV %.3f, so %.3f of the drafted tokens are accepted\n", tv, a);
  std::printf("c: a step of q in steps of p; v: scoring gamma + 1 tokens costs 1 + gamma / 50\n");
  const auto v = [](std::size_t gamma) { return 1 + double(gamma) / 50; };
  for (const double c : {0.02, 0.1, 0.9}) {
    const plan::fixed_draft best = plan::best_fixed_gamma(a, c, v, 32);
    std::printf("c = %.2f: gamma %2zu, %.2f tokens a round, speed-up %.2f\n", c, best.gamma,
                plan::expected_tokens(a, best.gamma), best.rate);
  }

  std::printf("q on a device, p at a server: gamma 4, V = 32000, 20 and 40 ms a step, 20 Mbit/s\n");
  const plan::split s{.gamma = 4, .vocabulary = 32000};
  const plan::link link{.rate_up = 20e3, .rate_down = 20e3, .ntt = 10};  // bits a ms; ms
  const auto report = [&](const char* protocol, const plan::traffic& t, double acceptance) {
    const double comm = plan::communication(t, link);
    const double tokens = plan::expected_tokens(acceptance, s.gamma);
    std::printf("%-12s %6.0f bytes up, %6.0f down, %5.1f ms a token\n", protocol, plan::bytes(t.up),
                plan::bytes(t.down), plan::split_latency(s.gamma, 20, 40, comm) / tokens);
  };
  report("DSD", plan::dsd_traffic(s), a);
  report("DSSD", plan::dssd_traffic(s, a), a);
  report("quantised", plan::quantised_traffic(s, plan::quantised_row_bits(32000, 8, 64)), a);
  report("coupled", plan::coupled_traffic(s), plan::least_coupled_acceptance(tv));

  std::printf("Two sites that emit one law (DRAGON), each accepted with 0.85\n");
  for (const double c_r : {10.0, 30.0, 80.0}) {  // ms
    const plan::dragon d{30, c_r, 20, 20, plan::agreement_of(0.85, 0.85)};
    const bool l = plan::side_by_recursion(d) == side::l;
    std::printf("decoding in 30 and %.0f ms, round trip 40: %s aggregates, %.1f ms a token\n", c_r,
                l ? "l" : "r", plan::latency(l ? d : plan::exchanged(d)));
  }
}

// Output:
// TV 0.125, so 0.875 of the drafted tokens are accepted
// c: a step of q in steps of p; v: scoring gamma + 1 tokens costs 1 + gamma / 50
// c = 0.02: gamma 12, 6.59 tokens a round, speed-up 4.45
// c = 0.10: gamma  8, 5.59 tokens a round, speed-up 2.85
// c = 0.90: gamma  0, 1.00 tokens a round, speed-up 1.00
// q on a device, p at a server: gamma 4, V = 32000, 20 and 40 ms a step, 20 Mbit/s
// DSD          256016 bytes up,      8 down,  59.6 ms a token
// DSSD             32 bytes up,  26491 down,  36.1 ms a token
// quantised        84 bytes up,      8 down,  33.4 ms a token
// coupled          16 bytes up,      8 down,  40.4 ms a token
// Two sites that emit one law (DRAGON), each accepted with 0.85
// decoding in 30 and 10 ms, round trip 40: l aggregates, 30.6 ms a token
// decoding in 30 and 30 ms, round trip 40: l aggregates, 36.0 ms a token
// decoding in 30 and 80 ms, round trip 40: r aggregates, 80.0 ms a token
