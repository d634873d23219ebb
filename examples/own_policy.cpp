// SPDX-License-Identifier: Apache-2.0
// A policy of one's own: its exact law and its trade-off; what the audit says of a slip.
#include <specagg/decoders.hpp>

#include <algorithm>
#include <cstdio>

#include <specagg/audit/audit_policy.hpp>

using namespace specagg;

// pi = p if the two models differ by more than alpha in total variation, else q.
struct distant {
  double alpha = 0;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {  // SPECAGG_FUNCTION: also on the GPU
    const double tv = rows.sum([](auto at) { return positive(at.p - at.q); });
    return specagg::target_if(tv > alpha);
  }
};

// Half of q and, by a slip, 0.4 of p: its sum is 0.9.
struct slip {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return fma(0.4, at.p, 0.5 * at.q); };
  }
};

int main() {
  // Every branch of every verifier, on all pairs of rows of three tokens in steps of 1/8.
  for (const auto& [policy, found] :
       {std::pair{"distant", audit_policy(distant{0.3})}, std::pair{"slip", audit_policy(slip{})}})
    std::printf("%-8s %s, no law for %zu of %zu pairs of rows\n", policy,
                found.passed() ? "exact" : "WRONG", found.no_law, found.pairs);

  std::printf("alpha  rejected  TV(pi, p)    means over these pairs\n");
  for (const double alpha : {0.0, 0.3, 0.5, 0.7, 1.0}) {
    double kept = 0, distance = 0;
    const auto n = double(grid_round<double>::rounds());
    for (const auto& q : grid_round<double>::rows())
      for (const auto& p : grid_round<double>::rows()) {
        const trade_off t = trade_off_of(target_law(distant{alpha}, q, p), q, p);
        kept += t.token / n;
        distance += t.distance / n;
      }
    std::printf("%.1f    %.3f     %.3f\n", alpha, std::max(0.0, 1 - kept), distance);
  }
}

// Output:
// distant  exact, no law for 0 of 2025 pairs of rows
// slip     WRONG, no law for 2025 of 2025 pairs of rows
// alpha  rejected  TV(pi, p)    means over these pairs
// 0.0    0.464     0.000
// 0.3    0.410     0.055
// 0.5    0.251     0.214
// 0.7    0.158     0.306
// 1.0    0.000     0.464
