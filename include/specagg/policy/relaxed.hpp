// SPDX-License-Identifier: Apache-2.0
// A drafted token stands if the target finds it likely enough: among its k most likely tokens, and
// not far below the most likely token. The mass that q has on other tokens is drawn from p. Engines
// let the target's most likely token follow a rejection instead, which is the same at temperature
// 0. The decision reads rows at temperature 1. pi is a token-specific cascade
// (policy/token_cascade.hpp) with another r.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

namespace detail {

// pi = q (1 - r) + eta p, eta = sum r q. r(v) = 0 iff p(v) >= floor and fewer than k tokens have a
// larger p. top: max p. At most 2 k passes over p.
template <class Rows>
SPECAGG_FUNCTION auto likeliest_stand(const Rows& rows, double k, double top, double floor) {
  double least = top;  // the k-th largest
  for (double i = 1; i < k && least > floor && least > 0; ++i) {
    const double as_likely = rows.sum(
        [=](auto at) { return zero_where(at.confidence_p < least, decltype(at.confidence_p)(1)); });
    if (as_likely >= k) break;
    least = rows.max([=](auto at) { return select(at.confidence_p < least, at.confidence_p, 0); });
  }
  const double bound = least > floor ? least : floor;
  const double eta = rows.sum([=](auto at) { return select(at.confidence_p < bound, at.q, 0); });
  return [=](auto at) { return fma(eta, at.p, select(at.confidence_p < bound, 0, at.q)); };
}

}  // namespace detail

// Relaxed acceptance, as TensorRT-LLM names it (relaxed_topk and relaxed_delta): of the target's k
// most likely tokens those stand that have p(v) >= max p - delta; k in [1, 64].
struct relaxed {
  double k = 10, delta = 0.6;
  static constexpr double most = 64;
  constexpr bool valid() const { return k >= 1 && k <= most && is_finite(delta); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double top = rows.max([](auto at) { return at.confidence_p; });
    return detail::likeliest_stand(rows, k, top, top - delta);
  }
};

// Relaxed acceptance by a share of max p: p(v) >= (1 - alpha) max p.
struct relative {
  double k = 10, alpha = 0.5;
  constexpr bool valid() const { return relaxed{k, alpha}.valid(); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double top = rows.max([](auto at) { return at.confidence_p; });
    return detail::likeliest_stand(rows, k, top, (1 - alpha) * top);
  }
};

// The two most likely tokens stand, the second if it is at most this fraction less likely. MARS
// (arXiv:2601.15498) compares the target's two largest logits so.
constexpr relative margin(double alpha) { return {2, alpha}; }

SPECAGG_END
