// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/regret_budget.hpp>

#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/advanced.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;

}  // namespace

TEST_CASE("a budget of regret: tokens within limit and budget keep q, and spend their regret") {
  const row q{0.1, 0.8, 0.1}, p{0.5, 0.25, 0.25};  // regrets 0, ln 2, ln 2
  const double one = std::log(2.);
  CHECK(target_law(regret_budget{1}.at({}), q, p) == q);
  const row none = target_law(regret_budget{0.5}.at({}), q, p);
  CHECK((none[0] == Approx(0.1 + 0.9 * 0.5) && none[1] == Approx(0.9 * 0.25)));
  CHECK(target_law(regret_budget{10, 0.5}.at({}), q, p) == none);  // the limit
  CHECK(target_law(regret_budget{1}.at({0.5}), q, p) == none);     // what is left
  CHECK(target_law(regret_budget{1}.at({2}), q, p) == none);       // overspent

  const regret_budget policy{1};
  CHECK(advanced(policy, {}, p, 0).spent == 0);
  CHECK(advanced(policy, {0.25}, p, 1).spent == Approx(0.25 + one));
  CHECK(advanced(policy, {0.5}, p, 1).spent == 0.5);  // no token that the budget lets stand
  CHECK(advanced(regret_budget{1, 0.5}, {}, p, 2).spent == 0);
}
TEST_CASE("no budget of regret, however large, lets a token stand that p cannot emit") {
  const row q{.5, .25, .25}, p{.75, .25, 0};
  for (const double budget : {1.0, 30.0, 36.5, 40.0, 1e3, 1e300}) {
    const regret_budget policy{budget};
    CHECK(target_law(policy.at({}), q, p)[2] == 0);
    CHECK(target_law(policy.at({budget}), q, p)[0] == 0.875);  // all is spent: the likeliest alone
  }
}
TEST_CASE("which parameters and states a budget of regret has") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK((valid(regret_budget{}) && valid(regret_budget{0, 0})));
  CHECK(
      (!valid(regret_budget{-1}) && !valid(regret_budget{infinity}) && !valid(regret_budget{nan})));
  CHECK((!valid(regret_budget{1, -1}) && !valid(regret_budget{1, nan})));
  const regret_budget policy{1};
  CHECK((policy.is_state(policy.begin()) && policy.is_state({5})));
  CHECK((!policy.is_state({-1}) && !policy.is_state({nan}) && !policy.is_state({infinity})));
}
