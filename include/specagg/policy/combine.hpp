// SPDX-License-Identifier: Apache-2.0
// Collaborative decoding: pi combines the rows of all models. Fu et al. 2025, CoS
// (arXiv:2502.01662). Proved: proofs/policies.v, `mixture_law`, `ensemble_law`,
// `ensemble_frontier`.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// pi = sum_k weight[k] p^k, weights >= 0 with sum 1.
template <std::size_t N>
struct mixture {
  std::array<double, N> weight;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return is_convex(weight); }

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return specagg::fold_models<N>(
        at, [&](std::size_t k, auto x, auto sum) { return fma(weight[k], x, sum); });
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [f = *this](auto at) { return f.unnormalised(at); };
  }
};

// pi = lambda q + (1 - lambda) p, lambda in [0, 1].
struct ensemble {
  double lambda = 0.5;
  static constexpr bool reads_confidence = false, unanimous = true;
  constexpr bool valid() const { return lambda >= 0 && lambda <= 1; }

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return mixture<2>{{lambda, 1 - lambda}}.unnormalised(at);
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [f = *this](auto at) { return f.unnormalised(at); };
  }
};

SPECAGG_END
