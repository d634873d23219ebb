// SPDX-License-Identifier: Apache-2.0
// Lossy speculative decoding: Tran-Thien 2023, "An optimal lossy variant of speculative decoding".
// Proved: proofs/policies.v, `lossy_law`, `exact_beta_exists`, `lossy_frontier`.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// The published procedure accepts y ~ q with probability min(1, p / ((1 - alpha) q)), and else
// draws from norm((p / beta - q)+). With the rejected mass R = sum (q - p / (1 - alpha))+ and S =
// sum (p / beta - q)+, it emits the law
//   pi = min(q, p / (1 - alpha)) + (R / S) (p / beta - q)+ ,   and + R p if S = 0 < R.
// An S that is subnormal counts as 0.
// verify_token with this pi has exactly that acceptance and that residual. alpha in [0, 1), beta >=
// 1 - alpha.
struct lossy {
  // the beta with S = R: it has the smallest KL(p || pi) at this acceptance. The search for it ends
  // where S <= R (1 + enough). The acceptance and the law are exact there, too; the KL is at most
  // 4e-6 above the smallest, as a fraction of it (the largest that the test has seen: 1.9e-6)
  static constexpr double exact = 0, enough = 0x1p-10;
  double alpha = 0;
  double beta = exact;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const {
    return alpha >= 0 && alpha < 1 && (beta == exact || beta >= 1 - alpha);
  }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return bind_to(rows, 1 / (1 - alpha));
  }
  // bind() given a = 1 / (1 - alpha), also where alpha is too near 1 for a double.
  template <class Rows>
  SPECAGG_FUNCTION auto bind_to(const Rows& rows, double a) const {
    // R, S(c), and the sum of p over the tokens where S(c) has a term
    const auto sums = [&](double c) {
      return rows.sum([=](auto at) {
        const auto over = fma(c, at.p, -at.q);
        return both(positive(fma(-a, at.p, at.q)), both(positive(over), select(over > 0, at.p, 0)));
      });
    };
    double c = beta == exact ? 1 : 1 / beta;
    auto found = sums(c);
    const double r = found.first;
    // S(c) = sum (c p - q)+ is convex and S(1) >= R, so Newton's steps from 1 decrease to the root.
    for (int step = 0; beta == exact && r > 0 && step < 64; ++step) {
      const auto [s, p] = found.second;
      if (s <= r * (1 + enough)) break;
      const double next = c - (s - r) / p;
      if (!(next < c)) break;  // rounding
      c = next;
      found = sums(c);
    }
    const double s = found.second.first;
    // where S is subnormal the quotient may be beyond the numbers
    const bool none = s < double(std::numeric_limits<typename Rows::value_type>::min());
    const double share = none ? 0 : r / s, rest = none ? r : 0;
    return [=](auto at) {
      const auto kept = fma(rest, at.p, min(at.q, a * at.p));
      return fma(share, positive(fma(c, at.p, -at.q)), kept);
    };
  }
};

// The residual is (p - q)+, as in lossless decoding.
constexpr lossy lenient(double alpha) { return {alpha, 1}; }

SPECAGG_END
