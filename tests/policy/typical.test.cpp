// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/typical.hpp>

#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;
row law(const typical& policy, const row& p) { return target_law(policy, p, p); }

}  // namespace

TEST_CASE("typical keeps tokens of at least eps, and at least delta e^-H, whichever is less") {
  const row p{0.5, 0.25, 0.125, 0.125};  // H = 1.75 ln 2, e^-H = 0.297
  CHECK(law({0.125, 1}, p) == p);        // 0.125 is not below 0.125
  CHECK(law({0.2, 1}, p) == row{2. / 3, 1. / 3, 0, 0});
  CHECK(law({1, 0.5}, p) == row{2. / 3, 1. / 3, 0, 0});  // 0.149
  CHECK(law({1, 0.9}, p) == row{1, 0, 0, 0});            // 0.268
  CHECK(law({0.2, 0.4}, p) == p);                        // 0.119 is less than 0.2
  CHECK(law({0, 1}, p) == p);
  CHECK(law({1, 0}, p) == p);
}
TEST_CASE("typical never leaves nothing, also where all tokens are equally likely") {
  for (const std::size_t size : {1u, 3u, 7u, 1000u, 30011u}) {
    const row p(size, 1. / double(size));
    const row pi = law({1, 1}, p);
    REQUIRE(pi.size() == size);
    for (const double x : pi) CHECK(x == Approx(1. / double(size)).epsilon(1e-12));
  }
}
TEST_CASE("typical is the formula in plain doubles, on random rows") {
  numbers n(7);
  for (std::size_t trial = 0; trial < 200; ++trial) {
    row p(1 + n.below(50));
    double sum = 0, h = 0, kept = 0;
    for (double& x : p) sum += x = std::exp(n.between(-4, 4));
    for (double& x : p) {
      x /= sum;
      h -= x * std::log(x);
    }
    const typical policy{n.uniform(), n.uniform()};
    const double floor = std::min(policy.eps, policy.delta * std::exp(-h));
    for (const double x : p) kept += x >= floor ? x : 0;
    const row pi = law(policy, p);
    REQUIRE(pi.size() == p.size());
    for (std::size_t v = 0; v < p.size(); ++v)
      CHECK(pi[v] == Approx(p[v] >= floor ? p[v] / kept : 0).margin(1e-12));
  }
}
TEST_CASE("typical reads the target's row alone, and has parameters in [0, 1]") {
  STATIC_REQUIRE(!reads_draft<typical>);
  STATIC_REQUIRE(!reads_confidence<typical>);
  CHECK((valid(typical{}) && valid(typical{0, 0}) && valid(typical{1, 1})));
  for (const double bad : {-0.1, 1.1, double(NAN)})
    CHECK_FALSE((valid(typical{bad, 0.3}) || valid(typical{0.09, bad})));
}
