// SPDX-License-Identifier: Apache-2.0
// Each token is accepted as if the target gave it the largest probability that a bound on the KL
// divergence allows. The constraint is that of Cactus (policy/cactus.hpp), solved exactly, and a
// rejected token is replaced as in lossless decoding.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = min(q, h) + (R / S) (p - q)+, R = sum (q - h)+, S = sum (p - q)+. h(v) >= p(v) is the
// largest with h ln(h / p) + (1 - h) ln((1 - h) / (1 - p)) <= kl: of all laws within this
// divergence of p, in nats, none gives v more. kl = 0: pi = p.
struct kl_bound {
  double kl = 0;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return kl >= 0 && is_finite(kl); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto [r, s] = rows.sum(
        [c = *this](auto at) { return both(positive(at.q - c.kept(at)), positive(at.p - at.q)); });
    const double share = s > 0 ? r / s : 0;
    return [c = *this, share](auto at) { return fma(share, positive(at.p - at.q), c.kept(at)); };
  }

 private:
  // KL of two coins with probabilities h = p + d and p, and its derivative by d; d > 0. The first
  // orders of its two logarithms nearly cancel, so their sum is taken by hand.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static both<V, V> divergence(V d, V p) {
    const V h = p + d, x = d / p, y = d / (1 - p);
    const auto near = x < V(0.25);
    const V heads = select(near, log_1_plus_less(x), log_ratio(h, p)), tails = log_1_plus_less(-y);
    const V linear = select(near, x * y, (h - 1) * y);
    return {fma(h, heads, fma(1 - h, tails, linear)), heads + select(near, x, V(0)) - (tails - y)};
  }
  // min(q, h). The divergence is convex in h and rises, so Newton's steps from above fall to the
  // root, which is within sqrt(kl / 2) of p (Pinsker).
  template <class At>
  SPECAGG_FUNCTION SPECAGG_INLINE auto kept(const At& at) const {
    using V = std::remove_cvref_t<decltype(at.q)>;
    constexpr auto below_1 = 1 - std::numeric_limits<typename V::value_type>::epsilon();
    if (kl == 0) return min(at.q, at.p);
    const V most = min(at.q, V(below_1)) - at.p;
    V d = min(most, 0.75 * sqrt(V(kl)));
    auto falls = d > 0;  // where d is beyond the bound
    for (int step = 0; step < 40 && any(falls); ++step) {
      const auto [beyond, slope] = divergence(d, at.p);
      const V next = max(V(0), d - (beyond - kl) / slope);
      falls = falls & (next < d);
      d = select(falls, next, d);
    }
    return select(at.p > 0, select(d < most, at.p + d, at.q), 0);
  }
};

SPECAGG_END
