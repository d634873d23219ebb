// SPDX-License-Identifier: Apache-2.0
// Constrained acceptance (Cactus, arXiv:2604.04987): a token n may have the probability h(n) > p(n)
// for which the law H_n, with h(n) at n and the rest of p scaled to 1 - h(n), is about `delta` nats
// from p. A rejected n is replaced by a token of norm((H_n - q)+).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = min(q, h) + sum over n of (q(n) - h(n))+ norm((s_n p - q)+), with
// h = min(1, p + sqrt(2 delta p (1 - p))) and s_n = (1 - h(n)) / (1 - p(n)). delta = 0: pi = p.
// Each s needs a sum over the vocabulary for its norm. Tokens of one p have one s, and s is near 1
// where p is small. So the largest scales - 1 values of p that may be rejected have their own s,
// and all smaller values share the mean of their s. With at most `scales` such values this is the
// paper's law. With more values the law was within 2e-7 of the paper's in total variation, on rows
// like a model's. At most 3 scales passes over q and p.
struct cactus {
  double delta = 0;
  static constexpr int scales = 16;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return delta >= 0 && is_finite(delta); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    constexpr double least = std::numeric_limits<typename Rows::value_type>::min();
    residuals all{};
    double p_n = infinity;  // of the last scale
    for (int i = 0; i < scales; ++i) {
      const double before = p_n;
      p_n = rows.max([=, c = *this](auto at) {
        return select(at.q > c.allowed(at.p), select(at.p < before, at.p, -1), -1);
      });
      if (p_n < 0) break;
      // the mass rejected there, and this mass times s
      const double low = delta > 0 && i + 1 < scales ? p_n : 0;
      const auto [rejected, scaled] = rows.sum([=, c = *this](auto at) {
        const auto h = c.allowed(at.p);
        const auto w = select(at.p < low, 0, select(at.p < before, positive(at.q - h), 0));
        return both(w, select(w > 0, w * (1 - h) / (1 - at.p), 0));
      });
      const double s = scaled / rejected;
      const double left = rows.sum([=](auto at) { return positive(fma(s, at.p, -at.q)); });
      all.s[i] = s;
      all.share[i] = left < least ? 0 : rejected / left;
      all.count = i + 1;
      if (low == 0) break;
    }
    return [=, c = *this](auto at) {
      auto pi = min(at.q, c.allowed(at.p));
      for (int i = 0; i < all.count; ++i)
        pi = fma(all.share[i], positive(fma(all.s[i], at.p, -at.q)), pi);
      return pi;
    };
  }

 private:
  struct residuals {
    double s[scales], share[scales];
    int count;
  };
  // h
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V allowed(V p) const {
    const double twice = delta < 1e30 ? 2 * delta : 2e30;  // h is 1 long before; floats hold this
    return min(V(1), p + sqrt(twice * p * positive(1 - p)));
  }
};

SPECAGG_END
