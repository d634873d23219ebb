// SPDX-License-Identifier: Apache-2.0
// The normalised minimum and the normalised maximum of the models' probabilities.
// Proved to be unanimous: proofs/combiners.v, `minimum_combines`, `maximum_combines`.
#pragma once
#include <specagg/policy/models.hpp>

SPECAGG_BEGIN

// pi = norm(min_k p^k); undefined if no token has mass in every row.
template <std::size_t N = 2>
struct minimum {
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, unanimous = true;

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return specagg::fold_models<N>(
        at, [](std::size_t k, auto x, auto least) { return k + 1 == N ? x : min(x, least); });
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return normalised(rows, [f = *this](auto at) { return f.unnormalised(at); });
  }
};

// pi = norm(max_k p^k).
template <std::size_t N = 2>
struct maximum {
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false, unanimous = true;

  SPECAGG_FUNCTION auto unnormalised(auto at) const {
    return specagg::fold_models<N>(
        at, [](std::size_t k, auto x, auto most) { return k + 1 == N ? x : max(x, most); });
  }
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return normalised(rows, [f = *this](auto at) { return f.unnormalised(at); });
  }
};

SPECAGG_END
