// SPDX-License-Identifier: Apache-2.0
// Speculative cascades: pi = p where the policy defers to the target, else pi = q. The decision
// reads rows at temperature 1; ties do not defer. Narasimhan et al. 2025, Faster Cascades via
// Speculative Decoding (arXiv:2405.19261). Proved: proofs/policies.v, `target_if_law`,
// `target_if_frontier`.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// Defer iff max q < 1 - alpha.
struct chow {
  double alpha = 0;
  static constexpr bool decides_by_draft = true;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return target_if(rows.max([](auto at) { return at.confidence_q; }) < 1 - alpha);
  }
};

// Defer iff max q < max p - alpha.
struct diff {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto top = rows.max([](auto at) { return both(at.confidence_q, at.confidence_p); });
    return target_if(top.first < top.second - alpha);
  }
};

// Defer iff max q < max p - alpha TV(p, q).
struct opt {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto top = rows.max([](auto at) { return both(at.confidence_q, at.confidence_p); });
    const double tv = total_variation(rows);
    return target_if(top.first < fma(-alpha, tv, top.second));
  }
};

SPECAGG_END
