// SPDX-License-Identifier: Apache-2.0
// Tokens that were not drawn from the row beside them: what a drafter's mistake may cost is a
// shorter draft, never the law.
#include <cstdio>
#include <limits>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/grid.hpp>
#include <specagg/decoders.hpp>

#include "support/all_policies.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

// The worst error over pairs of rows of the 1/8 grid, gamma 1 to 3, and a token outside the support
// at each place of the draft: outside the vocabulary, or without mass in the draft row where that
// has such a token.
template <class Policy, class Verify>
double worst_outside_support(const Policy& policy, Verify verify, std::size_t step = 151) {
  double worst = 0;
  for (std::size_t i = 0; i < grid_round<double>::rounds(); i += step) {
    const auto q = [=](const std::vector<token_id>& prefix) {
      return grid_round<double>{i}.q(prefix);
    };
    const auto p = [=](const std::vector<token_id>& prefix) {
      return grid_round<double>{i}.p(prefix);
    };
    const auto law = [&](const std::vector<token_id>& prefix) {
      return target_law(policy, q(prefix), p(prefix));
    };
    for (std::size_t gamma = 1; gamma <= 3; ++gamma)
      for (std::size_t place = 0; place < gamma; ++place)
        for (const bool massless : {false, true}) {
          const auto propose = [&](std::size_t j, const auto& row, token_id y) {
            if (j != place) return y;
            for (std::size_t v = 0; massless && v < row.size(); ++v)
              if (row[v] == 0) return token_id(v);
            return i % 2 ? token_id(7) : token_id(-5);
          };
          const auto e = worst_error_of_round(policy, gamma, q, p, verify, law, propose);
          worst = std::max(worst, e.error);
          CHECK(e.reused == 0);
        }
  }
  return worst;
}

const auto by_token = [](auto&&... a) { return verify_token(a...); };
const auto by_block = [](auto&&... a) { return verify_block(a...); };
const auto by_match = [](auto&&... a) { return verify_match(a...); };

// Block verification with a fixed claim on tokens outside the support, as engines have it (and this
// library once had).
template <class Policy>
verdict claiming(double claim_outside_support, const draft& d, const auto& q, const auto& p,
                 const Policy&, auto& chooser, std::span<emission> out, std::span<double> scratch) {
  const std::size_t g = d.size(), V = p[0].size();
  const auto mass = [V](const auto& row, token_id y) {
    return y >= 0 && std::size_t(y) < V ? row[std::size_t(y)] : 0;
  };
  std::vector<double> w{1};
  for (std::size_t i = 0; i < g; ++i) {
    const double share = w[i] * mass(p[i], d.tokens[i]), t = mass(q[i], d.tokens[i]);
    w.push_back(t > 0 ? std::min(1.0, share / t) : share > 0 ? claim_outside_support : 0);
  }
  std::size_t tau = g;
  for (; tau > 0; --tau) {
    double h = w[tau];
    if (tau < g) {
      double s = 0;
      for (std::size_t v = 0; v < V; ++v) s += std::max(0.0, w[tau] * p[tau][v] - q[tau][v]);
      h = s + 1 - w[tau] > 0 ? s / (s + 1 - w[tau]) : 1;
    }
    if (chooser.coin({stream::coin, std::uint32_t(tau - 1), 0}, h, 1)) break;
  }
  for (std::size_t i = 0; i < tau; ++i) out[i].token = d.tokens[i];
  std::vector<double> left(V);
  double total = 0;
  const bool outside_support = tau < g && !(mass(q[tau], d.tokens[tau]) > 0);
  for (std::size_t v = 0; v < V; ++v)
    total += left[v] =
        tau == g || outside_support ? p[tau][v] : std::max(0.0, w[tau] * p[tau][v] - q[tau][v]);
  if (!(total > 0)) {
    left.assign(p[tau].begin(), p[tau].end());
    total = 1;
  }
  for (double& x : left) x /= total;
  const auto row = normalise(as_row(left));
  out[tau].token = draw(row, {stream::residual, std::uint32_t(tau), 0}, chooser, scratch);
  return {tau, tau + 1, status::ok};
}

}  // namespace

TEST_CASE(
    "with a token outside the support at any place of the draft every policy emits exactly its "
    "law, under every "
    "verifier") {
  for (const auto& [name, policy] : all_policies()) {
    const double token = worst_outside_support(policy, by_token),
                 block = worst_outside_support(policy, by_block),
                 match = worst_outside_support(policy, by_match);
    std::printf("%-24s worst error token %.1e, block %.1e, match %.1e\n", name, token, block,
                match);
    CHECK(token < 1e-12);
    CHECK(block < 1e-12);
    CHECK(match < 1e-12);
  }
}
TEST_CASE("a block whose second token is outside the support: the first is 0 as often as p says") {
  const std::vector<double> p{.5, .5};
  for (const auto& second :
       {std::pair(std::vector{.8, .2}, 7), std::pair(std::vector{1., 0.}, 1)}) {
    const auto& q1 = second.first;  // clang++ 14 captures no structured bindings
    const int y1 = second.second;
    const auto q = [&, row = q1](const std::vector<token_id>& prefix) {
      return prefix.empty() ? std::vector{.8, .2} : row;
    };
    const auto law = exact_law([&](auto& chooser) {
      std::vector<double> scratch(verify_scratch(2, 2));
      std::vector<emission> out(3);
      const auto q0 = q({});
      const std::vector<token_id> y{draw_draft(as_row(q0), 0, 0, chooser, scratch), token_id(y1)};
      const verdict v =
          verify_block({.tokens = y}, std::vector<std::vector<double>>{q0, q1, q1},
                       std::vector(3, p), any_policy(lossless{}), chooser, out, scratch);
      CHECK(v.why == status::ok);
      return out[0].token;
    });
    CHECK(law.at(0) == Approx(.5).epsilon(1e-15));
  }
}
TEST_CASE("a mistake that depends on the token drawn has made another q, and is found") {
  const auto q = [](const std::vector<token_id>&) { return std::vector{.5, .5}; };
  const auto spoils_1 = [](std::size_t, const auto&, token_id y) {
    return y == 1 ? token_id(7) : y;
  };
  CHECK(worst_error_of_round(any_policy(), 1, q, q, by_token, q, spoils_1).error == Approx(.25));
}
TEST_CASE("mutants: a claim of 0 or of 1 on a token outside the support is found") {
  for (const double claim : {0., 1.}) {
    const auto mutant = [=](const draft& d, const auto& q, const auto& p, const auto& policy,
                            auto& chooser, auto out, auto scratch) {
      return claiming(claim, d, q, p, policy, chooser, out, scratch);
    };
    const double worst = worst_outside_support(any_policy(lossless{}), mutant);
    std::printf("claim %g on a token outside the support: worst error %.3f\n", claim, worst);
    CHECK(worst > 0.1);
  }
}
TEST_CASE("a coupled text does not depend on tokens outside the support, which are reported") {
  const std::vector<double> q{0.5, 0.25, 0.25}, one{1, 0, 0}, p{0.25, 0.25, 0.5};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const coupled_noise noise(seed);
    const auto row = normalise(as_row(q));
    REQUIRE(row.why() == status::ok);
    const auto check = [&](const any_of<lossless, ensemble>& chosen, token_id y1,
                           const std::vector<double>& q1, status why) {
      const compiled_once policy(chosen);
      const std::vector<token_id> y{race(row, noise, 0), y1};
      std::vector<emission> out(3), plain(1);
      const verdict v =
          verify_coupled(coupled_draft{{.tokens = y}}, std::vector<std::vector<double>>{q, q1, q},
                         std::vector(3, p), policy, noise, out);
      REQUIRE(v.why == status::ok);
      REQUIRE(verify_coupled(coupled_draft{}, std::vector(1, q), std::vector(1, p), policy, noise,
                             plain)
                  .emitted == 1);
      CHECK(out[0].token == plain[0].token);
      CHECK(v.emitted == (out[0].token == y[0] ? 2 : 1));
      if (v.emitted == 2) {
        CHECK(out[1].why == why);
        CHECK(out[1].from == origin::bonus);
      }
    };
    check(lossless{}, 9, q, status::token_out_of_range);
    check(ensemble{0.3}, -4, q, status::token_out_of_range);
    check(ensemble{0.3}, 2, one, status::draft_not_in_support);
  }
}
