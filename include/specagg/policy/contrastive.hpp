// SPDX-License-Identifier: Apache-2.0
// The logits of one model minus the logits of another. The difference favours tokens that only the
// first model knows. The second model is weaker, not tuned, or without the context.
#pragma once
#include <specagg/policy/log_linear.hpp>

SPECAGG_BEGIN

// softmax(l_p - mu l_q), or with `plus` softmax((1 + mu) l_p - mu l_q). Only tokens with p(v) > 0
// and p(v) >= plausibility * max p have mass. Li et al. 2023 (arXiv:2210.15097).
struct contrastive {
  double mu = 0.1, plausibility = 0;
  bool plus = false;
  static constexpr bool reads_confidence = false, combines_logits = true;
  constexpr bool valid() const { return is_finite(mu) && plausibility >= 0 && plausibility <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor =
        plausibility > 0 ? plausibility * rows.max([](auto at) { return model<1>(at); }) : 0;
    return softmax_of(rows, [f = log_linear<2>{{-mu, plus ? 1 + mu : 1}}, floor](auto at) {
      const auto p = model<1>(at);
      return select(p > 0, select(p < floor, -infinity, f.score(at)), -infinity);
    });
  }
};

// With three models l, l_plus, l_minus: softmax(l + a (l_plus - l_minus)). It applies to a large
// model the change that tuning made to a small one (DExperts, Liu et al. 2021, 2105.03023; proxy
// tuning, Liu et al. 2024, 2401.08565). With two models, q without the context and p with it:
// softmax((1 + a) l_p - a l_q) (context-aware decoding, Shi et al. 2023, 2305.14739). Tokens that
// have probability 0 under l (or p) have no mass.
template <std::size_t N = 3>
struct arithmetic {
  static_assert(N == 2 || N == 3,
                "specagg: arithmetic combines three models (l, l_plus, l_minus), or two");
  double a = 1;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, combines_logits = true;
  constexpr bool valid() const { return is_finite(a); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    if constexpr (N == 2) return contrastive{a, 0, true}.bind(rows);
    else return log_linear<3>{{1, a, -a}}.bind(rows);
  }
};

SPECAGG_END
