// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/tree_growth.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("a node is worth its cost at the rate of the last rounds; a level, that of the draft step, too") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  growth.begin();
  CHECK(growth.acceptance() == Approx(.8));
  CHECK(growth.rho() == Approx(2.5 / (1 + .3 + .4)));  // five rounds of eight nodes and three levels
  const double least = growth.rho() * .05, level = growth.rho() * .15 / .8;
  CHECK((growth.worth_node(least * 1.001) && !growth.worth_node(least * .999)));
  CHECK((growth.worth_level(level * 1.001) && !growth.worth_level(level * .999)));
  CHECK(!plan::tree_growth().worth_node(0));
}
TEST_CASE("what is accepted and what it costs is learned; rounds without a node begin again") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  for (int round = 0; round < 500; ++round) growth.begin(), growth.observe(2, 1, 2, 3, 8);
  CHECK(growth.acceptance() == Approx(.5).epsilon(1e-3));
  CHECK(growth.rho() == Approx(2 / (1 + .3 + .4)).epsilon(1e-3));
  for (int round = 0; round < 500; ++round) growth.begin(), growth.observe(2, 0, 1, 3, 8);
  CHECK(growth.acceptance() < 1e-3);
  for (int round = 0; round < 32; ++round) growth.begin(), growth.observe(0, 0, 1, 0, 0);
  CHECK(growth.acceptance() < 1e-3);
  growth.begin();  // 32 rounds drafted nothing before
  CHECK(growth.acceptance() == Approx(.8));
}
