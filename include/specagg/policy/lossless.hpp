// SPDX-License-Identifier: Apache-2.0
// pi = p. Speculative sampling: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023
// (arXiv:2302.01318).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// pi = p, for any draft.
struct lossless {
  static constexpr bool reads_draft = false, reads_confidence = false;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [](auto at) { return at.p; };
  }
};

SPECAGG_END
