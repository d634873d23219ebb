// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/link.hpp>
#include <specagg/plan/speedup.hpp>

#include <cmath>
#include <cstdio>
#include <string>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

TEST_CASE(
    "Table 1 of the DSSD paper: V = 50000, 16 bits, 100 Mbit/s, 20 ms. All 24 cells as printed") {
  const double a[] = {0.5, 0.6, 0.7, 0.8, 0.9, 0.99};
  const char* printed[4][6] = {
      {"0.75 26.00", "0.64 25.12", "0.51 24.08", "0.36 22.88", "0.19 21.52", "0.02 20.16"},
      {"0.94 27.50", "0.87 26.96", "0.76 26.08", "0.59 24.72", "0.34 22.75", "0.04 20.32"},
      {"0.98 27.88", "0.95 27.63", "0.88 27.06", "0.74 25.90", "0.47 23.75", "0.06 20.47"},
      {"1.00 27.97", "0.98 27.87", "0.94 27.54", "0.83 26.66", "0.57 24.56", "0.08 20.62"}};
  for (std::size_t g = 0; g < 4; ++g)
    for (std::size_t i = 0; i < 6; ++i) {
      const std::size_t gamma = 2 * g + 2;
      // in ms, bits / ms
      const double ms = plan::dssd_communication(a[i], gamma, 50000, 16, 1e5, 20);
      CHECK(ms == Approx(20 + 8 * (1 - std::pow(a[i], double(gamma)))).epsilon(1e-14));
      char cell[32];
      std::snprintf(cell, sizeof cell, "%.2f %.2f", 1 - plan::integer_power(a[i], gamma), ms);
      CHECK(std::string(cell) == printed[g][i]);
    }
}
TEST_CASE("Table 2 of the DSSD paper is not of its equation 13") {
  // Its first column of DSSD: acceptance 0.61, gamma 8, c = 0.1, speed-up 2.28. Without any link,
  // Eq 13 gives at most
  CHECK(plan::split_speedup(plan::expected_tokens(0.61, 8), 8, 0.1, 1, 0) ==
        Approx(1.408).epsilon(1e-3));
  CHECK(plan::split_speedup(plan::expected_tokens(0.61 + 0.05, 8), 8, 0.1, 1, 0) < 1.6);
  // and for 13B, 0.53 and c = 0.05, where the table has 1.67:
  CHECK(plan::split_speedup(plan::expected_tokens(0.53, 8), 8, 0.05, 1, 0) ==
        Approx(1.515).epsilon(1e-3));
  // T_com is 0.62 s at 20 ms a round and 1.55 s at 50 ms: 31 rounds for 128 tokens, and no row.
  const double rounds = 0.62 / 0.020, tokens = 128 / rounds;
  CHECK(rounds == Approx(1.55 / 0.050));
  CHECK(tokens == Approx(4.13).epsilon(1e-3));
  CHECK(plan::split_speedup(tokens, 8, 0.1, 1, 0) == Approx(2.29).epsilon(3e-3));
  // So many tokens a round need another acceptance rate.
  CHECK(plan::expected_tokens(0.785, 8) == Approx(tokens).epsilon(2e-3));
  // DSD's T_com and speed-ups then say how long a step of the target model takes.
  const double dsd[][2] = {{3.91, 1.51}, {4.60, 1.41}, {41.44, 0.43}, {8.59, 1.24}, {9.52, 1.08}};
  for (const auto& [t_com, speedup] : dsd) {
    const double t_llm = 1e3 * t_com / rounds / (tokens / speedup - (0.1 * 8 + 1));
    CHECK((t_llm > 131 && t_llm < 182));  // ms
  }
}
TEST_CASE("DSD sends every draft row up, DSSD at most one row down, the Gumbel-max coupling none") {
  const plan::split s{.gamma = 8, .vocabulary = 50272, .bits = 16, .id_bits = 16};
  CHECK(plan::dsd_traffic(s).up == 8 * (16 + 50272 * 16));
  CHECK(plan::dssd_traffic(s, 0.6).up == 8 * (16 + 32));
  CHECK(plan::dssd_traffic({.gamma = 8, .q_bits = 16}, 0.6).up == 8 * 48);  // as the paper counts
  CHECK(plan::dssd_traffic(s, 1).down == 32);
  CHECK(plan::dssd_traffic(s, 0).down == 16 + 50272 * 16);
  CHECK(plan::coupled_traffic(s).up == 128);
  // The paper's closed forms are these without what it calls free.
  const plan::split free{.gamma = 8, .vocabulary = 50272, .bits = 16, .id_bits = 0};
  const plan::link l{1e8, 2e8, 0.02};
  CHECK(plan::communication(plan::dsd_traffic(free), l) ==
        Approx(plan::dsd_communication(8, 50272, 16, 1e8, 0.02)).epsilon(1e-14));
  const plan::traffic down{0, plan::dssd_traffic(free, 0.7).down};
  CHECK(plan::communication(down, l) ==
        Approx(plan::dssd_communication(0.7, 8, 50272, 16, 2e8, 0.02)).epsilon(1e-14));
}
TEST_CASE(
    "T_comm of DSSD lies between T_ntt and T_ntt + one row, and grows with gamma and falls with "
    "acceptance") {
  for (std::size_t g = 1; g < 20; ++g)
    for (double a = 0; a <= 1; a += 0.1) {
      const double t = plan::dssd_communication(a, g, 50000, 16, 1e8, 0.02);
      CHECK((t >= 0.02 && t <= 0.028 + 1e-15));
      CHECK(t >= plan::dssd_communication(a, g - 1, 50000, 16, 1e8, 0.02));
      CHECK(t >= plan::dssd_communication(std::min(1.0, a + 0.1), g, 50000, 16, 1e8, 0.02));
    }
}
TEST_CASE("expected downlink of DSSD is that of rounds played token by token") {
  numbers coin(1);
  const plan::split s{.gamma = 3, .vocabulary = 1000, .bits = 16, .id_bits = 10};
  double bits = 0;
  const int rounds = 200000;
  for (int i = 0; i < rounds; ++i) {
    std::size_t kept = 0;
    while (kept < 3 && coin.uniform() < 0.7) ++kept;
    bits += kept == 3 ? 20 : 10 + 16000;
  }
  CHECK(bits / rounds == Approx(plan::dssd_traffic(s, 0.7).down).epsilon(0.01));
}
TEST_CASE("a quantised row of V = 32000, K = 8, l = 64 takes 17 bytes") {
  const double bits = plan::quantised_row_bits(32000, 8, 64);
  CHECK(plan::bytes(bits) == 17);
  const double exact = (std::lgamma(32001.0) - std::lgamma(9.0) - std::lgamma(31993.0) +
                        std::lgamma(72.0) - std::lgamma(8.0) - std::lgamma(65.0)) /
                       std::log(2.0);
  CHECK(bits == Approx(exact).epsilon(1e-9));
  // one token has all counts
  CHECK(plan::quantised_row_bits(5, 1, 7) == Approx(std::log2(5.0)).epsilon(1e-14));
  CHECK(plan::quantised_row_bits(4, 4, 2) == Approx(std::log2(10.0)).epsilon(1e-14));
}
TEST_CASE(
    "latency and speed-up: T = gamma T_slm + T_llm + T_comm, S = E / (c gamma + T_comm / T_llm + "
    "v)") {
  const double t_slm = 0.01, t_llm = 0.1, t_comm = 0.024, v = 1.2,
               tokens = plan::expected_tokens(0.8, 4);
  CHECK(plan::split_latency(4, t_slm, t_llm, t_comm) == Approx(0.164).epsilon(1e-14));
  CHECK(plan::split_speedup(tokens, 4, t_slm, t_llm, t_comm, v) ==
        Approx(tokens / (0.1 * 4 + 0.24 + v)).epsilon(1e-14));
  CHECK(plan::split_speedup(tokens, 4, t_slm, t_llm, 0) ==
        Approx(plan::speculative_speedup(0.8, 4, 0.1)).epsilon(1e-14));
}
TEST_CASE(
    "accepting with q / p, as the paper prints, keeps every token with q >= p: no row then needs "
    "the target") {
  // The mutant's acceptance sum q min(1, q / p) against 1 - TV: it accepts more, and emits another
  // law.
  const double q[] = {0.6, 0.3, 0.1}, p[] = {0.3, 0.5, 0.2};
  double printed = 0, right = 0, law0 = 0;
  for (int v = 0; v < 3; ++v) {
    printed += q[v] * std::min(1.0, q[v] / p[v]);
    right += std::min(q[v], p[v]);
  }
  law0 = q[0];  // token 0 is always kept, and never resampled: its probability stays q's
  CHECK(printed > right);
  CHECK(std::fabs(law0 - p[0]) > 0.2);
}
TEST_CASE("a split beats a server with both models only by a faster device, or by capacity") {
  const double t_llm = 0.04, v = 1.25, t_comm = 0.006;
  for (const std::size_t gamma : {1u, 4u, 8u})
    for (const double device : {0.001, 0.002, 0.008})
      for (const double server : {0.001, 0.004}) {
        const double hosted = plan::split_latency(gamma, server, t_llm, 0, v),
                     split = plan::split_latency(gamma, device, t_llm, t_comm, v),
                     saved = plan::split_saving(gamma, device, server, t_comm);
        CHECK(saved == Approx(hosted - split).epsilon(1e-12));
        if (device >= server) CHECK(saved < 0);
        // The server's own work in a round, with the drafting and without.
        CHECK(plan::split_capacity(gamma, server / t_llm, v) ==
              Approx(hosted / (t_llm * v)).epsilon(1e-14));
      }
  CHECK(plan::split_saving(8, 0.001, 0.002, 0.006) > 0);  // 8 ms of drafting saved, 6 ms sent
}
