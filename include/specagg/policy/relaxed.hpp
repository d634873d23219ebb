// SPDX-License-Identifier: Apache-2.0
// Relaxed acceptance: the draft's tokens stand where the target finds them likely enough, as in
// TensorRT-LLM's relaxed acceptance and, with k = 2, MARS (arXiv:2601.15498), which compares the
// target's two largest logits. Both let the target's most likely token follow a rejection; here it
// is drawn from p, which is the same at temperature 0. The decision reads rows at temperature 1.
// pi is a token-specific cascade (policy/token_cascade.hpp) with another r.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = q (1 - r) + eta p, eta = sum r q. r(v) = 0 iff p(v) >= (1 - alpha) max p and fewer than k
// tokens have a larger p; k in [1, 64]. At most 2 k passes over p.
struct relaxed {
  double k = 10, alpha = 0.5;
  static constexpr double most = 64;
  constexpr bool valid() const { return k >= 1 && k <= most && is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    double least = rows.max([](auto at) { return at.confidence_p; });  // the k-th largest
    const double floor = (1 - alpha) * least;
    for (int i = 1; i < most && least > floor && least > 0; ++i) {
      const double as_likely = rows.sum([=](auto at) {
        return zero_where(at.confidence_p < least, decltype(at.confidence_p)(1));
      });
      if (as_likely >= k) break;
      least =
          rows.max([=](auto at) { return select(at.confidence_p < least, at.confidence_p, 0); });
    }
    const double bound = least > floor ? least : floor;
    const double eta = rows.sum([=](auto at) { return select(at.confidence_p < bound, at.q, 0); });
    return [=](auto at) { return fma(eta, at.p, select(at.confidence_p < bound, 0, at.q)); };
  }
};

// The two most likely tokens stand, the second if it is at most this fraction less likely.
constexpr relaxed margin(double alpha) { return {2, alpha}; }

SPECAGG_END
