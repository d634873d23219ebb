// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/speedup.hpp>

#include <array>
#include <cmath>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

template <class Steps>
concept GivesSpeedUp = requires(Steps steps) { plan::speculative_speedup(0.8, steps, 0.1); };
static_assert(GivesSpeedUp<std::size_t> && GivesSpeedUp<int> && !GivesSpeedUp<double>);

// The protocol itself, one coin for each drafted token: rounds, tokens and calls counted.
struct played {
  std::array<double, 3> rounds = {};  // in D, P, Q
  double tokens = 0, cost = 0, calls_q = 0, calls_p = 0, all = 0;
};
played play(const plan::alternating& x, std::size_t rounds, numbers& coin) {
  played r;
  bool waiting = false, q_proposes = true;
  for (std::size_t i = 0; i < rounds; ++i) {
    if (!waiting) q_proposes = true;
    else q_proposes = !q_proposes;
    const std::size_t gamma = q_proposes ? x.gamma_q : x.gamma_p,
                      drafts = gamma - (waiting ? 1 : 0);
    r.rounds[!waiting ? 0 : q_proposes ? 2 : 1] += 1;
    if (q_proposes) {
      r.calls_q += double(drafts);
      r.calls_p += 1;
      r.cost += x.c * double(drafts) + x.v_p;
    } else {
      r.calls_p += double(drafts);
      r.calls_q += 1;
      r.cost += double(drafts) + x.c * x.v_q;
    }
    std::size_t kept = 0;
    while (kept < gamma && coin.uniform() < (q_proposes ? x.a_q : x.a_p)) ++kept;
    waiting = kept == gamma;
    r.tokens += double(kept + (waiting ? 0 : 1));
  }
  r.all = double(rounds);
  return r;
}
// Fu et al.'s Theorem 3.6, not the overall speed-up.
double printed_theorem(double a, double gq, double gp, double c) {
  return (1 - std::pow(a, gq)) * (1 + c) / ((1 - a) * (1 + c * gq - std::pow(a, gp) * c));
}

}  // namespace

TEST_CASE("alternating proposers: the three check values") {
  const auto speedup = [](std::size_t gq, double c) {
    return plan::rates({0.8, 0.8, gq, 1, c}).speedup;
  };
  CHECK(std::fabs(speedup(1, 0.1) - 1.774) < 5e-4);
  CHECK(std::fabs(speedup(1, 1) - 1.667) < 5e-4);
  CHECK(std::fabs(speedup(5, 0.1) - 2.694) < 5e-4);
}
TEST_CASE("the visit rates are the stationary law of the three states") {
  numbers n(5);
  for (int i = 0; i < 300; ++i) {
    const plan::alternating x{n.uniform(), n.uniform(), 1 + n.below(6), 1 + n.below(6),
                              n.uniform()};
    const auto r = plan::rates(x);
    const double A = std::pow(x.a_q, double(x.gamma_q)), B = std::pow(x.a_p, double(x.gamma_p));
    CHECK(r.pi_d + r.pi_p + r.pi_q == Approx(1).epsilon(1e-13));
    CHECK(r.pi_p == Approx((r.pi_d + r.pi_q) * A).margin(1e-13));
    CHECK(r.pi_q == Approx(r.pi_p * B).margin(1e-13));
    // v = 1: a scoring is a call
    CHECK(r.cost == Approx(r.calls_p + x.c * r.calls_q).epsilon(1e-13));
  }
}
TEST_CASE(
    "rates, calls, tokens and speed-up are those of the protocol played token by token. Theorem "
    "3.6's is not") {
  numbers coin(6);
  for (const plan::alternating& x : {plan::alternating{0.8, 0.8, 1, 1, 0.1},
                                     {0.8, 0.8, 5, 1, 0.1},
                                     {0.7, 0.9, 3, 2, 0.4, 1.3, 1.6},
                                     {0.3, 0.6, 1, 3, 1},
                                     {1, 1, 2, 2, 0.2}}) {
    const std::size_t rounds = 400000;
    const auto m = play(x, rounds, coin);
    const auto r = plan::rates(x);
    const double noise = 6 / std::sqrt(double(rounds));
    CHECK(std::fabs(m.rounds[0] / m.all - r.pi_d) < noise);
    CHECK(std::fabs(m.rounds[1] / m.all - r.pi_p) < noise);
    CHECK(std::fabs(m.rounds[2] / m.all - r.pi_q) < noise);
    CHECK(std::fabs(m.calls_q / m.all - r.calls_q) < 6 * noise);
    CHECK(std::fabs(m.calls_p / m.all - r.calls_p) < 6 * noise);
    CHECK(m.cost / m.all == Approx(r.cost).epsilon(0.01));
    CHECK((1 + x.c) * m.tokens / m.cost == Approx(r.speedup).epsilon(0.01));
  }
  CHECK(std::fabs(printed_theorem(0.8, 5, 1, 0.1) - 2.694) > 0.05);
}
TEST_CASE(
    "where nothing is accepted, alternating is naive CoS at gamma 1: one token for one call of "
    "each") {
  CHECK(plan::rates({0, 0, 1, 1, 0.3}).speedup == Approx(1).epsilon(1e-15));
  CHECK(plan::naive_cos_speedup(0, 1, 0.3) == Approx(1).epsilon(1e-15));
}
TEST_CASE("naive CoS and speculative decoding have the papers' values") {
  static_assert(plan::naive_cos_speedup(1, 4, 1) == 1.6);
  CHECK(plan::naive_cos_speedup(0.8, 5, 0.1) ==
        Approx((1 - std::pow(0.8, 5)) * 1.1 / (0.2 * 1.5)).epsilon(1e-14));
  CHECK(plan::speculative_speedup(0.8, 5, 0.1) ==
        Approx((1 - std::pow(0.8, 6)) / (0.2 * 1.5)).epsilon(1e-14));
  CHECK(plan::speculative_speedup(0.8, 0, 0.1) == 1);
  CHECK(plan::speculative_speedup(0.8, 5, 0.1, 1.7) ==
        Approx((1 - std::pow(0.8, 6)) / (0.2 * 2.2)).epsilon(1e-14));
  CHECK(plan::round_speedup(plan::expected_tokens(0.8, 5), 5, 0.1, 1.7) ==
        Approx((1 - std::pow(0.8, 6)) / (0.2 * 2.2)).epsilon(1e-14));
  // One more draft step in every round that accepts all.
  CHECK(plan::speculative_speedup(0.8, 5, 0.1, 1, true) ==
        Approx((1 - std::pow(0.8, 6)) / (0.2 * (1.5 + 0.1 * std::pow(0.8, 5)))).epsilon(1e-14));
}
TEST_CASE("for any lambda some side as the proposer makes naive CoS no slower than running both") {
  numbers n(7);
  for (int i = 0; i < 300; ++i) {
    const double lambda = n.uniform(), c = 2 * n.uniform() + 1e-3, tv = n.uniform();
    const auto a = plan::ensemble_acceptance(lambda, tv);
    double best = 0;
    for (std::size_t g = 1; g <= 2; ++g)
      best = std::max(
          {best, plan::naive_cos_speedup(a.q, g, c), plan::naive_cos_speedup(a.p, g, 1 / c)});
    CHECK(best >= 1 - 1e-12);
  }
}
