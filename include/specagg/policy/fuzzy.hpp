// SPDX-License-Identifier: Apache-2.0
// Fuzzy speculative decoding: the draft's row where it is near the target's, else the target's.
// Holsman et al. 2025 (arXiv:2502.20704).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = p if JS(q, p) > alpha, else q. JS = (KL(q || m) + KL(p || m)) / 2 with m = (q + p) / 2, in
// nats: from 0 to ln 2 = 0.693. Rows at temperature 1, as in policy/cascade.hpp.
struct fuzzy {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double twice = rows.sum([](auto at) {
      const auto q = at.confidence_q, p = at.confidence_p, m = 0.5 * (q + p);
      return weighted_log(q, q / m) + weighted_log(p, p / m);
    });
    return target_if(0.5 * twice > alpha);
  }
};

SPECAGG_END
