// SPDX-License-Identifier: Apache-2.0
// Logits of one model against those of another: what a model knows and a weaker, untuned or uninformed one does not.
#pragma once
#include <specagg/policy/log_linear.hpp>

SPECAGG_BEGIN

// softmax(l_p - mu l_q), or softmax((1 + mu) l_p - mu l_q) in the form `plus`, among the tokens that p has and with
// p(v) >= plausibility * max p. Li et al. 2023 (arXiv:2210.15097).
struct contrastive {
  double mu = 0.1, plausibility = 0;
  bool plus = false;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return is_finite(mu) && plausibility >= 0 && plausibility <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor = plausibility > 0 ? plausibility * rows.max([](auto at) { return model<1>(at); }) : 0;
    return softmax_of(rows, [f = log_linear<2>{{-mu, plus ? 1 + mu : 1}}, floor](auto at) {
      const auto p = model<1>(at);
      return select(p > 0, select(p < floor, -infinity, f.score(at)), -infinity);
    });
  }
};

// Three models l, l_plus, l_minus: softmax(l + a (l_plus - l_minus)), what tuning did to a small model applied to a
// large one (DExperts, Liu et al. 2021, 2105.03023; proxy tuning, Liu et al. 2024, 2401.08565). Two, q without the
// context and p with it: softmax((1 + a) l_p - a l_q) (context-aware decoding, Shi et al. 2023, 2305.14739). Tokens
// that l, or p, lacks have no mass.
template <std::size_t N = 3>
struct arithmetic {
  static_assert(N == 2 || N == 3, "specagg: arithmetic combines three models (l, l_plus, l_minus), or two");
  double a = 1;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return is_finite(a); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    if constexpr (N == 2) return contrastive{a, 0, true}.bind(rows);
    else return log_linear<3>{{1, a, -a}}.bind(rows);
  }
};

SPECAGG_END
