// SPDX-License-Identifier: Apache-2.0
// Mentored decoding: accepts as many drafted tokens as a bound on KL(p || pi), in nats, allows.
// Tran-Thien 2023.
#pragma once
#include <specagg/policy/lossy.hpp>

SPECAGG_BEGIN

// pi is the law of `lossy` with exact beta, with the alpha for which KL(p || pi) = kl. Bisection
// finds alpha. Each step runs lossy's own iteration and one more sum: about 40 times the cost of a
// lossy row. pi = q if KL(p || q) <= kl, and p if kl = 0. By rounding, KL(p || pi) may be 2e-15
// more than kl with rows of doubles, and a smaller kl is not told from it. Floats round coarser.
struct mentored {
  double kl = 0;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return kl >= 0; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto divergence = [&](auto pi) {
      return kl_divergence(rows, [](auto at) { return at.p; }, pi);
    };
    double low = 0, high = 1;  // KL(low) <= kl < KL(high), if q = pi (alpha -> 1) is too far
    // rounding makes 0 of a small divergence, so kl = 0 is no comparison
    const bool free = kl > 0 && divergence([](auto at) { return at.q; }) <= kl;
    for (int step = 0; kl > 0 && !free && step < 48; ++step) {
      const double middle = 0.5 * (low + high);
      (divergence(lossy{middle}.bind(rows)) <= kl ? low : high) = middle;
    }
    const auto spent = lossy{low}.bind(rows);
    return [=](auto at) { return select(free, at.q, spent(at)); };
  }
};

SPECAGG_END
