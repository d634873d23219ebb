// SPDX-License-Identifier: Apache-2.0
// Combinations of logits: pi = softmax(sum_k weight[k] l_k). The weights sum to anything; they may be negative.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// On rows: pi = norm(prod_k (p^k)^weight[k]). A token that a row of positive weight lacks has no mass, nor has one with
// p(v) < plausibility * max p, p being the last row (Li et al. 2023, arXiv:2210.15097); a token that only a row of
// negative weight lacks has infinite weight: pi is undefined. 0 * (-inf) = 0.
template <std::size_t N>
struct log_linear {
  std::array<double, N> weight;
  double plausibility = 0;
  constexpr bool valid() const { return all_finite(weight) && plausibility >= 0 && plausibility <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const double floor = plausibility > 0 ? plausibility * rows.max([](auto at) { return model<N - 1>(at); }) : 0;
    const auto score = [w = weight, floor](auto at) {
      const auto sum = fold_models<N>(at, [&](std::size_t k, auto x, auto s) {
        const auto lacking = select(x > 0, fma(w[k], log(x), s), w[k] > 0 ? -infinity : infinity);
        return select(w[k] == 0, s, select(s == -infinity, s, lacking));
      });
      return select(model<N - 1>(at) < floor, -infinity, sum);
    };
    const double top = rows.max(score);
    const double total = rows.sum([=](auto at) { return exp(score(at) - top); });
    return [=, scale = 1 / total](auto at) { return exp(score(at) - top) * scale; };
  }
};

// softmax(lambda l_q + (1 - lambda) l_p), any lambda; lambda > 1 is realignment (DeRa, Liu et al. 2024, 2402.02992).
struct geometric {
  double lambda = 0.5;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return is_finite(lambda); }
  constexpr bool unanimous_here() const { return lambda >= 0 && lambda <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return log_linear<2>{{lambda, 1 - lambda}}.bind(rows);
  }
};

// softmax(l_p - mu l_q), or softmax((1 + mu) l_p - mu l_q) in the form `plus`, among the plausible tokens.
struct contrastive {
  double mu = 0.1, plausibility = 0;
  bool plus = false;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return is_finite(mu) && plausibility >= 0 && plausibility <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return log_linear<2>{{-mu, plus ? 1 + mu : 1}, plausibility}.bind(rows);
  }
};

SPECAGG_END
