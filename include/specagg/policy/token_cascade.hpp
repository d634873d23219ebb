// SPDX-License-Identifier: Apache-2.0
// Token-specific cascades: pi = q (1 - r) + eta p. r(v) = 1 removes the draft's mass from token v,
// and eta = sum r q is the removed mass, which p distributes. The decision reads rows at
// temperature 1. Narasimhan et al. 2025, section 4.4 (arXiv:2405.19261); the last cascade is the
// logit comparison of Modular MAX. Proved: proofs/policies.v, `token_cascade_law`,
// `token_cascade_rejection`.
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

// r(v) = 1 iff p(v) < q(v): a drafted token stands if p finds it at least as likely as q does. MAX
// compares the logits of the two models, which a constant added to the logits of one model would
// change; here probabilities are compared.
struct logit_comparison {
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double eta =
        rows.sum([](auto at) { return select(at.confidence_p < at.confidence_q, at.q, 0); });
    return
        [=](auto at) { return fma(eta, at.p, select(at.confidence_p < at.confidence_q, 0, at.q)); };
  }
};

SPECAGG_END
