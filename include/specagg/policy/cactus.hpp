// SPDX-License-Identifier: Apache-2.0
// Constrained acceptance (Cactus, arXiv:2604.04987): each token is accepted as if the target gave
// it the largest probability that a bound on the KL divergence allows. The bound is solved exactly.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = min(q, h) + (R / S) (p - q)+, R = sum (q - h)+, S = sum (p - q)+. h(v) >= p(v) is the
// largest with h ln(h / p) + (1 - h) ln((1 - h) / (1 - p)) <= kl: of all laws within this
// divergence of p, in nats, none gives v more. kl = 0: pi = p.
struct cactus {
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
  // KL of two coins with probabilities h and p, and its derivative by h; 0 < h < 1.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static both<V, V> divergence(V h, V p) {
    const V heads = log(h) - log(p), tails = log(1 - h) - log(1 - p);
    return {fma(h, heads, (1 - h) * tails), heads - tails};
  }
  // min(q, h). The divergence is convex in h and rises, so Newton's steps from q fall to the root.
  template <class At>
  SPECAGG_FUNCTION SPECAGG_INLINE auto kept(const At& at) const {
    using V = std::remove_cvref_t<decltype(at.q)>;
    constexpr auto below_1 = 1 - std::numeric_limits<typename V::value_type>::epsilon();
    if (kl == 0) return min(at.q, at.p);
    V h = min(at.q, V(below_1));
    auto falls = h > at.p;  // where h is beyond the bound
    for (int step = 0; step < 40 && any(falls); ++step) {
      const auto [beyond, slope] = divergence(h, at.p);
      const V next = max(at.p, h - (beyond - kl) / slope);
      falls = falls & (next < h);
      h = select(falls, next, h);
    }
    return select(at.p > 0, select(h < V(below_1), h, at.q), 0);
  }
};

SPECAGG_END
