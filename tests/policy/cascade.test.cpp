// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/cascade.hpp>

#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("opt defers exactly when max q < max p - alpha TV, and ties do not defer") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.125, 0.625};  // TV 0.375
  CHECK(target_law(opt{0.2}, q, p) == p);                               // 0.5 < 0.55
  CHECK(target_law(opt{0.5}, q, p) == q);                               // 0.5 > 0.4375
  CHECK(target_law(opt{1.0 / 3}, q, p) == q);                           // 0.5 = 0.5: a tie
  CHECK(target_law(opt{0}, q, q) == q);
}
