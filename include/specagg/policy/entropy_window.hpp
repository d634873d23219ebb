// SPDX-License-Identifier: Apache-2.0
// An entropy gate, and tokens of law p after a token that it let through. The gate is that of FLy's
// code (arXiv:2511.22972). But the policy is not FLy: FLy takes such a token back if the draft's
// next tokens are rejected, so its law depends on the draft's length.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi(v) = q(v) where p(v) > 0, and the rest of q is drawn from p, if the gate is open; else pi = p.
// The gate is open if the sum of -p ln p over the three most likely tokens, in nats at temperature
// 1, is at least `threshold`. After a token of an open gate that is not p's most likely one, the
// next `window` tokens have the law p.
struct entropy_window {
  double threshold = 0.3, window = 6;
  struct state {
    double left = 0;  // tokens that have the law p
  };
  constexpr bool valid() const { return is_finite(threshold) && window >= 0 && is_finite(window); }
  constexpr state begin() const { return {}; }
  constexpr bool is_state(const state& s) const { return s.left >= 0 && s.left <= window; }

  // The entropy of the three most likely tokens, in nats.
  template <class Rows>
  SPECAGG_FUNCTION static double entropy(const Rows& rows) {
    double h = 0, least = infinity;  // least: of those that were counted
    for (double left = 3; left > 0;) {
      least = rows.max([=](auto v) { return select(v.confidence_p < least, v.confidence_p, 0); });
      if (!(least > 0)) break;
      const double equal =
          rows.sum([=](auto v) { return select(v.confidence_p == least, decltype(v.p)(1), 0); });
      h -= (equal < left ? equal : left) * least * log(least);
      left -= equal;
    }
    return h;
  }
  // The law of one token. The gate is shut, whatever p is, if the threshold is infinite.
  struct gate {
    double threshold;
    template <class Rows>
    SPECAGG_FUNCTION auto bind(const Rows& rows) const {
      const bool open = is_finite(threshold) && entropy(rows) >= threshold;
      const double eta = rows.sum([=](auto v) { return select(v.p > 0, 0, v.q); });
      return [=](auto v) { return select(open, fma(eta, v.p, select(v.p > 0, v.q, 0)), v.p); };
    }
  };
  SPECAGG_FUNCTION gate at(const state& s) const { return {s.left > 0 ? infinity : threshold}; }
  template <class Rows>
  SPECAGG_FUNCTION state advance(const state& s, const Rows& rows, token_id y) const {
    if (s.left > 0) return {s.left > 1 ? s.left - 1 : 0};  // a window may be no whole number
    const auto top = token_id(rows.argmax([](auto v) { return v.p; }));
    return {y != top && entropy(rows) >= threshold ? window : 0};
  }
};

SPECAGG_END
