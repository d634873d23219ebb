// SPDX-License-Identifier: Apache-2.0
// Power means of the models' rows. rho = 1 is the mixture, rho -> 0 the geometric mean; rho ->
// infinity is the maximum, rho -> -infinity the minimum.
// Proved to be unanimous: proofs/combiners.v, `power_mean_combines`,
// `negative_power_mean_combines`.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// pi = norm((sum_k weight[k] (p^k)^rho)^(1/rho)), weights >= 0 with sum 1. rho = 0: norm(prod_k
// (p^k)^weight[k]). For rho <= 0 a token has mass only if it has mass in every row whose weight is
// not 0. A small rho > 0 has this effect too: a token that is absent from a row of weight w keeps
// (1 - w)^(1/rho) of its mass, which is below the smallest number of the rows' type. If no token
// has mass in every such row, the result is undefined_target.
template <std::size_t N>
struct power_mean {
  std::array<double, N> weight;
  double rho = 1;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return is_convex(weight) && is_finite(rho); }

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    std::size_t last = N - 1;
    while (last > 0 && weight[last] == 0) --last;
    // Powers are taken of the ratios to the row with the largest power. So no power overflows, and
    // the mean lies in [some weight, 1].
    const auto main = specagg::fold_models<N>(at, [&](std::size_t k, auto x, auto y) {
      return k == last ? x : weight[k] == 0 ? y : rho > 0 ? max(x, y) : min(x, y);
    });
    const double size = rho < 0 ? -rho : rho;
    // nearly: sums mean - 1, as the mean is near 1
    const bool zero = size < 1e-30, nearly = size < 0.125;
    const auto mean = specagg::fold_models<N>(at, [&](std::size_t k, auto x, auto sum) {
      const auto r = x / main;
      const auto term = zero     ? log_ratio(x, main)
                        : nearly ? exp_minus_1(rho * log(r))
                                 : pow(r, rho);
      return weight[k] == 0 ? sum : fma(weight[k], term, sum);
    });
    const auto root = zero ? exp(mean) : nearly ? exp(log_1_plus(mean) / rho) : pow(mean, 1 / rho);
    return select(main > 0, main * root, 0);
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return normalised(rows, [f = *this](auto at) { return f.unnormalised(at); });
  }
};

// Two models: weight lambda on q, 1 - lambda on p, lambda in [0, 1].
struct power {
  double lambda = 0.5, rho = 1;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return lambda >= 0 && lambda <= 1 && is_finite(rho); }

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return power_mean<2>{{lambda, 1 - lambda}, rho}.unnormalised(at);
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return power_mean<2>{{lambda, 1 - lambda}, rho}.bind(rows);
  }
};

SPECAGG_END
