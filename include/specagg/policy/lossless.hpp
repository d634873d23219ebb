// SPDX-License-Identifier: Apache-2.0
// pi = p. Speculative sampling: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023
// (arXiv:2302.01318).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// The law that is the target's row itself. A token is drawn from the row, without this law
// (verify/detail/decision.hpp).
struct target_itself {
  SPECAGG_FUNCTION static constexpr bool is_target() { return true; }
  template <class At>
  SPECAGG_FUNCTION SPECAGG_INLINE auto operator()(At at) const {
    return at.p;
  }
};
namespace detail {
// Whether a law is the target's row itself.
template <class Law>
SPECAGG_FUNCTION constexpr bool is_target(const Law& law) {
  if constexpr (requires { law.is_target(); }) return law.is_target();
  else return false;
}
}  // namespace detail
// pi = p, for any draft.
struct lossless {
  static constexpr bool reads_draft = false, reads_confidence = false;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return target_itself();
  }
};

SPECAGG_END
