// SPDX-License-Identifier: Apache-2.0
// Combinations of logits: pi = softmax(sum_k weight[k] l_k). The weights may have any sum, and may
// be negative. Proved to be unanimous with weights >= 0 and sum 1: proofs/combiners.v,
// `geometric_combines`.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// A policy may declare that it is a combination of logits, and is meant for the models' raw logits
// (policy/raw_logits.hpp): static constexpr bool combines_logits = true.
template <class P>
constexpr bool combines_logits = requires { requires P::combines_logits; };

// pi = e^score / sum e^score. The scores may have any size. NaN, and so undefined, if the largest
// score is infinite.
template <class Rows, class Score>
SPECAGG_FUNCTION auto softmax_of(const Rows& rows, Score score) {
  const double top = rows.max(score);
  const double total = rows.sum([=](auto at) { return exp(score(at) - top); });
  return [=, scale = 1 / total](auto at) { return exp(score(at) - top) * scale; };
}

// As a function of the rows: pi = norm(prod_k (p^k)^weight[k]). A token has no mass if its
// probability is 0 in a row of positive weight. It has infinite weight if its probability is 0 only
// in rows of negative weight: then pi is undefined. Here 0 * (-inf) = 0.
template <std::size_t N>
struct log_linear {
  std::array<double, N> weight;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, combines_logits = true;
  constexpr bool valid() const { return all_finite(weight); }
  constexpr bool unanimous_here() const { return is_convex(weight); }

  // sum_k weight[k] ln p^k(v): +-infinity where a row lacks the token, as said above.
  SPECAGG_FUNCTION auto score(auto at) const {
    return specagg::fold_models<N>(at, [&](std::size_t k, auto x, auto s) {
      const auto lacking =
          select(x > 0, fma(weight[k], log(x), s), weight[k] > 0 ? -infinity : infinity);
      return select(weight[k] == 0, s, select(s == -infinity, s, lacking));
    });
  }
  SPECAGG_FUNCTION auto unnormalised(auto at) const { return exp(score(at)); }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return softmax_of(rows, [f = *this](auto at) { return f.score(at); });
  }
};

// softmax(lambda l_q + (1 - lambda) l_p), any lambda.
struct geometric {
  double lambda = 0.5;
  static constexpr bool reads_confidence = false, combines_logits = true;
  constexpr bool valid() const { return is_finite(lambda); }
  constexpr bool unanimous_here() const { return lambda >= 0 && lambda <= 1; }

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return log_linear<2>{{lambda, 1 - lambda}}.unnormalised(at);
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return log_linear<2>{{lambda, 1 - lambda}}.bind(rows);
  }
};

// With lambda > 1: away from p, beyond q (DeRa, Liu et al. 2024, 2402.02992).
constexpr geometric realign(double lambda) { return {lambda}; }

SPECAGG_END
