// SPDX-License-Identifier: Apache-2.0
// The state of a policy after token y was emitted from the target's row p.
#pragma once
#include <vector>

#include <specagg/policy/policy.hpp>
#include <specagg/rows/distribution.hpp>

template <class Policy>
auto advanced(const Policy& policy, const typename Policy::state& s, const std::vector<double>& p,
              specagg::token_id y) {
  using namespace specagg;
  const auto row = normalise(as_row(p), true);
  return policy.advance(s, target_rows<true, std::decay_t<decltype(row)>>(row), y);
}
