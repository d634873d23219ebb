// SPDX-License-Identifier: Apache-2.0
// Token-specific cascades: r(v) = 1 takes the draft's mass off token v, and eta = sum r q hands it to p:
// pi = q (1 - r) + eta p. Untempered rows decide. Narasimhan et al. 2025, section 5 (arXiv:2405.19261).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// r(v) = 1 iff q(v) < max p - alpha.
struct token_v1 {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor = rows.max([](auto at) { return at.confidence_p; }) - alpha;
    const double eta = rows.sum([=](auto at) { return select(at.confidence_q < floor, at.q, 0); });
    return [=](auto at) { return fma(eta, at.p, select(at.confidence_q < floor, 0, at.q)); };
  }
};

// r(v) = 1 iff p(v) < max p - alpha.
struct token_v2 {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor = rows.max([](auto at) { return at.confidence_p; }) - alpha;
    const double eta = rows.sum([=](auto at) { return select(at.confidence_p < floor, at.q, 0); });
    return [=](auto at) { return fma(eta, at.p, select(at.confidence_p < floor, 0, at.q)); };
  }
};

// r(v) = 1 iff p(v) < (1 - alpha) max p.
struct token_v3 {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor = (1 - alpha) * rows.max([](auto at) { return at.confidence_p; });
    const double eta = rows.sum([=](auto at) { return select(at.confidence_p < floor, at.q, 0); });
    return [=](auto at) { return fma(eta, at.p, select(at.confidence_p < floor, 0, at.q)); };
  }
};

SPECAGG_END
