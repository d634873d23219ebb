// SPDX-License-Identifier: Apache-2.0
// How many tokens a round emits. Everything in plan/ is a closed form or a small update of plain
// numbers, in double. Nothing allocates, throws or asserts. Outside the stated ranges of its
// arguments a formula has no meaning; its result is then unspecified.
#pragma once
#include <cstddef>
#include <span>

#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN
namespace plan {

// a^n, and 1 + a + ... + a^(n-1) = (1 - a^n) / (1 - a). The sum is also right at a = 1, where the
// fraction is 0 / 0.
constexpr double integer_power(double a, std::size_t n) {
  double x = 1;
  for (; n > 0; n /= 2, a *= a)
    if (n % 2 == 1) x *= a;
  return x;
}
// 1 + a + ... + a^(n-1).
constexpr double geometric_sum(double a, std::size_t n) {
  double sum = 0;
  for (; n > 0; --n) sum = 1 + a * sum;
  return sum;
}

// A token drafted from q is accepted towards pi with probability sum min(q, pi) = 1 - TV(q, pi), TV
// in [0, 1]. Under the Gumbel-max coupling the probability is at least (1 - TV) / (1 + TV) (Daliri
// et al. 2024).
constexpr double acceptance(double tv) { return 1 - tv; }
constexpr double least_coupled_acceptance(double tv) { return (1 - tv) / (1 + tv); }

// For pi = lambda q + (1 - lambda) p: drafts of q are accepted with probability 1 - (1 - lambda)
// TV(p, q) >= lambda, drafts of p with 1 - lambda TV(p, q) >= 1 - lambda (Fu et al. 2025, Theorem
// 3.2). lambda in [0, 1].
struct both_acceptances {
  double q = 0, p = 0;
};
// tv: TV(p, q).
constexpr both_acceptances ensemble_acceptance(double lambda, double tv) {
  return {1 - (1 - lambda) * tv, 1 - lambda * tv};
}

// The distance TV(pi, p) of a lossy law that accepts with the given probability, on the frontier
// P_reject + TV(pi, p) = TV(q, p). `lossy` with beta exact or 1, static mixtures and deferral rules
// lie on it. Every other law is further from p.
constexpr double distance_to_target(double tv, double acceptance) { return tv - (1 - acceptance); }

// Expected tokens of a round of gamma drafted tokens, each accepted with probability a: 1 + a + ...
// + a^gamma with a bonus token (Leviathan et al. 2023), 1 + a + ... + a^(gamma-1) without (naive
// CoS).
constexpr double expected_tokens(double a, std::size_t gamma, bool bonus = true) {
  return geometric_sum(a, gamma + (bonus ? 1 : 0));
}
// Expected tokens of a round with a_k, the probability that drafted token k is accepted if the
// tokens before it were accepted: 1 + a_1 + a_1 a_2 + ...
constexpr double expected_tokens(std::span<const double> a, bool bonus = true) {
  double sum = bonus ? 1 : 0, reached = 1;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!bonus) sum += reached;
    reached *= a[k];
    if (bonus) sum += reached;
  }
  return sum;
}
// Expected tokens of a round, estimated from the rows of one draft.
using specagg::expected_tokens;

}  // namespace plan
SPECAGG_END
