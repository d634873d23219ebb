// SPDX-License-Identifier: Apache-2.0
// Speculative cascades: pi = p where the rule defers to the target, else q. Ties do not defer.
// Narasimhan et al. 2025, Faster Cascades via Speculative Decoding (arXiv:2405.19261).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// Defer iff max q < max p - alpha TV(p, q)   (max of the untempered rows).
struct opt {
  double alpha = 0;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto [max_q, max_p] = rows.max([](auto at) { return both(at.confidence_q, at.confidence_p); });
    const double tv = rows.sum([](auto at) { return positive(at.p - at.q); });
    const bool defer = max_q < fma(-alpha, tv, max_p);
    return [=](auto at) { return select(defer, at.p, at.q); };
  }
};

SPECAGG_END
