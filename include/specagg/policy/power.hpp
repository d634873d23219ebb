// SPDX-License-Identifier: Apache-2.0
// Power means of the models' rows: rho = 1 is the mixture, rho -> 0 the geometric mean, large |rho| max or min.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// pi = norm((sum_k weight[k] (p^k)^rho)^(1/rho)), weights >= 0 with sum 1; rho = 0: norm(prod_k (p^k)^weight[k]).
// For rho <= 0 a token needs mass in every row whose weight is not 0.
template <std::size_t N>
struct power_mean {
  std::array<double, N> weight;
  double rho = 1;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return is_convex(weight) && is_finite(rho); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return normalised(rows, [w = weight, r = rho](auto at) {
      // Of the ratios to the largest row, so that no power over- or underflows early.
      const auto top = fold_models<N>(at, [](std::size_t, auto x, auto most) { return max(x, most); });
      const auto mean = fold_models<N>(at, [&](std::size_t k, auto x, auto sum) {
        const auto term = r == 0 ? log(x / top) : pow(x / top, r);
        return select(w[k] == 0, sum, fma(w[k], term, sum));
      });
      return select(top > 0, top * (r == 0 ? exp(mean) : pow(mean, 1 / r)), 0);
    });
  }
};

// Two models: weight lambda on q, 1 - lambda on p, lambda in [0, 1].
struct power {
  double lambda = 0.5, rho = 1;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return lambda >= 0 && lambda <= 1 && is_finite(rho); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return power_mean<2>{{lambda, 1 - lambda}, rho}.bind(rows);
  }
};

SPECAGG_END
