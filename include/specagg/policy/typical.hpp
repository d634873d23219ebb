// SPDX-License-Identifier: Apache-2.0
// Typical acceptance: the target's row without its unlikely tokens, renormalised. The more
// uncertain the target is, the fewer it loses. Cai et al. 2024, Medusa (arXiv:2401.10774).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = norm(p where p >= min(eps, delta e^-H(p))), eps and delta in [0, 1]. The largest p is at
// least e^-H, so at least one token remains; if rounding leaves none, the most probable tokens
// remain.
struct typical {
  double eps = 0.09, delta = 0.3;
  static constexpr bool reads_draft = false, reads_confidence = false;
  constexpr bool valid() const { return eps >= 0 && eps <= 1 && delta >= 0 && delta <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double h = rows.sum([](auto at) { return entropy_term(at.p); });
    const double top = rows.max([](auto at) { return at.p; });
    const double share = delta * exp(-h), least = share < eps ? share : eps;
    const double floor = least < top ? least : top;
    return normalised(rows, [=](auto at) { return select(at.p < floor, 0, at.p); });
  }
};

SPECAGG_END
