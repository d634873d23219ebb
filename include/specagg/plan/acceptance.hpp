// SPDX-License-Identifier: Apache-2.0
// How many tokens a round yields. Everything in plan/ is a closed form or a small update of plain numbers, in double:
// nothing allocates, throws or asserts. Outside the ranges given a formula has no meaning and returns what it returns.
#pragma once
#include <cstddef>
#include <span>

#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN
namespace plan {

// a^n and 1 + a + ... + a^(n-1) = (1 - a^n) / (1 - a), right at a = 1 too, where the fraction is 0 / 0.
constexpr double integer_power(double a, std::size_t n) {
  double x = 1;
  for (; n > 0; n /= 2, a *= a)
    if (n % 2 == 1) x *= a;
  return x;
}
constexpr double geometric_sum(double a, std::size_t n) {
  double sum = 0;
  for (; n > 0; --n) sum = 1 + a * sum;
  return sum;
}

// A draft from q is accepted towards pi with probability sum min(q, pi) = 1 - TV(q, pi), TV in [0, 1]; under shared
// noise with at least (1 - TV) / (1 + TV) (Daliri et al. 2024).
constexpr double acceptance(double tv) { return 1 - tv; }
constexpr double least_coupled_acceptance(double tv) { return (1 - tv) / (1 + tv); }

// pi = lambda q + (1 - lambda) p: drafts of q are accepted with 1 - (1 - lambda) TV(p, q) >= lambda, drafts of p with
// 1 - lambda TV(p, q) >= 1 - lambda (Fu et al. 2025, Theorem 3.2). lambda in [0, 1].
struct both_acceptances {
  double q = 0, p = 0;
};
constexpr both_acceptances ensemble_acceptance(double lambda, double tv) {
  return {1 - (1 - lambda) * tv, 1 - lambda * tv};
}

// The frontier P_reject + TV(pi, p) = TV(q, p): how far from p the law of a lossy rule is that accepts with this
// probability. For `lossy` with beta exact or 1, static mixtures and deferral rules; every other law is further away.
constexpr double distance_to_target(double tv, double acceptance) { return tv - (1 - acceptance); }

// Tokens of a round of gamma drafts, each accepted with probability a: 1 + a + ... + a^gamma with a bonus token
// (Leviathan et al. 2023), up to a^(gamma-1) without (naive CoS).
constexpr double expected_tokens(double a, std::size_t gamma, bool bonus = true) {
  return geometric_sum(a, gamma + (bonus ? 1 : 0));
}
// The same with a_k, the probability that draft k is accepted if those before it were: 1 + a_1 + a_1 a_2 + ...
constexpr double expected_tokens(std::span<const double> a, bool bonus = true) {
  double sum = bonus ? 1 : 0, reached = 1;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!bonus) sum += reached;
    reached *= a[k];
    if (bonus) sum += reached;
  }
  return sum;
}
// And estimated from the rows of one draft.
using specagg::expected_tokens;

}  // namespace plan
SPECAGG_END
