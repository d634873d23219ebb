// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/any_stateful.hpp>

#include <limits>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// Laws, states and validity are those of the policy itself, bit by bit.
template <class Policy>
void is_the_policy(const Policy& policy, const std::vector<double>& states) {
  const std::vector<double> q{0.25, 0.25, 0.5}, p{0.5, 0.375, 0.125};
  const auto row = normalise(as_row(p), true);
  const target_rows<true, std::decay_t<decltype(row)>> rows(row);
  const any_stateful any{policy};
  CHECK(any.valid() == valid(policy));
  for (const double x : states) {
    CHECK(any.is_state({x}) == policy.is_state({x}));
    if (!policy.is_state({x})) continue;
    CHECK(target_law(any.at({x}), q, p) == target_law(policy.at({x}), q, p));
    for (token_id y = 0; y < 3; ++y) {
      const auto [next] = detail::advanced(policy, {x}, rows, y);
      CHECK(any.advance({x}, rows, y).x == next);
    }
  }
}

}  // namespace

TEST_CASE("any policy with state is the one that it holds") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> states{0, 0.3, 1, 2, -1, nan, infinity};
  const std::vector<token_id> open{1}, close{2};
  is_the_policy(regret_budget{1, 0.8}, states);
  is_the_policy(regret_budget{-1}, {});
  is_the_policy(entropy_window{0.7, 2}, states);
  is_the_policy(phase<any_catalogued, any_catalogued>{ensemble{0.3}, lossless{}, open, close},
                states);
  CHECK(any_stateful{}.begin().x == 0);
}
