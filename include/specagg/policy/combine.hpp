// SPDX-License-Identifier: Apache-2.0
// Collaborative decoding: the law combines the models' rows. Fu et al. 2025, CoS (arXiv:2502.01662).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = lambda q + (1 - lambda) p, lambda in [0, 1].
struct ensemble {
  double lambda = 0.5;
  static constexpr bool reads_confidence = false;
  constexpr bool valid() const { return lambda >= 0 && lambda <= 1; }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [l = lambda](auto at) { return fma(l, at.q, (1 - l) * at.p); };
  }
};

SPECAGG_END
