// SPDX-License-Identifier: Apache-2.0
// Mentored decoding: accepts as many drafted tokens as a bound on KL(p || pi), in nats, allows.
// Tran-Thien 2023.
#pragma once
#include <specagg/policy/lossy.hpp>

SPECAGG_BEGIN

// pi is the law of `lossy` with exact beta, with the alpha for which KL(p || pi) = kl. Bisection
// finds -log(1 - alpha), since 1 - alpha may have to be as small as p is: at least 6e-309, 3e-39
// with floats. Each step runs lossy's own iteration and one more sum: about 40 times the cost of a
// lossy row. pi = q if KL(p || q) <= kl, and p if kl = 0.
struct mentored {
  double kl = 0;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return kl >= 0; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    // KL(p || pi) as sum p ln(p / pi) - p + pi: no term is negative, so a small sum has its digits
    const auto divergence = [&](auto pi) {
      return rows.sum([&](auto at) {
        const auto p = at.p, y = pi(at), x = (y - p) / p;
        constexpr auto least = std::numeric_limits<typename Rows::value_type>::min();
        const auto term = select(abs(x) < 0.25, -log_1_plus_less(x), log_ratio(p, y) + x);
        return select(p < least, y, p * term);
      });
    };
    const auto law = [&](double t) { return lossy().bind_to(rows, exp(t)); };
    // e^-t = 1 - alpha
    constexpr double most = sizeof(typename Rows::value_type) == 4 ? 88.7 : 709.7;
    const bool free = kl > 0 && divergence([](auto at) { return at.q; }) <= kl;
    double low = 0, high = 1;  // KL(low) <= kl < KL(high), if q = pi (alpha -> 1) is too far
    while (kl > 0 && !free && high < most && divergence(law(high)) <= kl) {
      low = high;
      high = high < most / 2 ? 2 * high : most;
    }
    for (int step = 0; kl > 0 && !free && step < 48; ++step) {
      const double middle = 0.5 * (low + high);
      (divergence(law(middle)) <= kl ? low : high) = middle;
    }
    const auto spent = law(low);
    return [=](auto at) { return select(free, at.q, spent(at)); };
  }
};

SPECAGG_END
