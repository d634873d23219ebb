// SPDX-License-Identifier: Apache-2.0
// The law nearest to p that accepts at least at a given rate. The synthetic acceptance of engines'
// benchmarks is verify/synthetic.hpp: it has no law.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = w q + (1 - w) p with the least w in [0, 1] for which the acceptance rate sum min(q, pi) is
// at least `rate`. The rate is then max(rate, 1 - TV(q, p)), and TV(pi, p) = max(0, rate - 1 +
// TV(q, p)): no law with this rate is nearer to p. So pi = p wherever p alone allows the rate.
struct rate_bound {
  double rate = 0;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return rate >= 0 && rate <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double tv = total_variation(rows), beyond = tv - (1 - rate);
    const double w = beyond > 0 ? (beyond < tv ? beyond / tv : 1) : 0;
    return [=](auto at) { return fma(w, at.q, (1 - w) * at.p); };
  }
};

SPECAGG_END
