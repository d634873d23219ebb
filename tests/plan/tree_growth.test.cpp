// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/tree_growth.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

TEST_CASE(
    "a node has the children that bring the most beyond their cost. A level pays its draft step, "
    "too") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  growth.begin();
  CHECK((growth.likely.rate() == Approx(.8) && growth.drawn.rate() == Approx(.5) &&
         growth.level.rate() == Approx(.8)));
  CHECK(growth.rho() == 1);
  CHECK((growth.worth_level(.188) && !growth.worth_level(.187)));  // .8 x .1875 = .15
  CHECK((growth.worth_node(.063) && !growth.worth_node(.062)));    // .8 x .0625 = .05
  CHECK(growth.of_likely(.5, .4) == Approx(.5 * .8 * .4));
  CHECK(growth.of_drawn(.5, .4) == Approx(.5 * .5 * .4));
  growth.likely = {.2};
  growth.drawn = {.9};
  CHECK((growth.worth_node(.056) && !growth.worth_node(.055)));  // .9 x .0556 = .05
  // a node that cannot be reached has no children, even if they cost nothing
  plan::tree_growth free;
  free.begin();
  const auto none = free.of_node(0, std::vector{.5, .2}, 2, true),
             some = free.of_node(1, std::vector{.5, .2}, 2, true);
  CHECK((none.most_likely == 0 && !none.draws && !free.worth_node(0)));
  CHECK(some.most_likely + some.draws > 0);
  // a good draft brings 1.9 tokens for 1.55
  plan::tree_growth dear({.target = 1, .draft = .3, .verify = .25});
  dear.begin();
  CHECK(dear.worth_level(1));
}
TEST_CASE("the children of a node are the best of all choices, each of which is tried") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  growth.begin();
  numbers n(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> shares(n.below(5));
    double rest = 1;
    for (double& share : shares) {
      share = rest * n.uniform();
      rest -= share;
    }
    std::sort(shares.rbegin(), shares.rend());
    growth.likely = {n.uniform()};
    growth.drawn = {n.uniform()};
    growth.cost.verify = .2 * n.uniform();
    const double reached = n.uniform();
    const std::size_t room = n.below(5);
    const bool may_draw = n.uniform() < .7;
    double most = 0, left = 1, sum = 0;
    for (std::size_t m = 0; m <= std::min(room, shares.size()); ++m) {
      if (m > 0) {
        sum += shares[m - 1];
        left = 1 - sum;
      }
      const double likely = reached * growth.likely.rate() * sum - double(m) * growth.cost.verify;
      most = std::max(most, likely);
      if (may_draw && m < room)
        most = std::max(most, likely + reached * growth.drawn.rate() * left - growth.cost.verify);
    }
    const auto chosen = growth.of_node(reached, shares, room, may_draw);
    REQUIRE(chosen.most_likely + chosen.draws <= room);
    REQUIRE(chosen.most_likely <= shares.size());
    REQUIRE((may_draw || !chosen.draws));
    double taken = 0;
    for (std::size_t k = 0; k < chosen.most_likely; ++k) taken += shares[k];
    const double worth = reached * (growth.likely.rate() * taken +
                                    (chosen.draws ? growth.drawn.rate() * (1 - taken) : 0)) -
                         double(chosen.most_likely + chosen.draws) * growth.cost.verify;
    CHECK(worth == Approx(most).margin(1e-12));
  }
}
TEST_CASE("what is accepted and what it costs is learned. Rounds without a node begin again") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  using path = plan::tree_growth::path_record;
  for (int round = 0; round < 500; ++round) {
    growth.begin();
    growth.observe(
        path{.likely = 2, .drawn = .5, .accepted_likely = 1, .accepted_drawn = 0, .levels = 3}, 2,
        3, 8);
  }
  CHECK(growth.likely.rate() == Approx(.5).epsilon(1e-3));
  CHECK(growth.drawn.rate() < 1e-3);
  CHECK(growth.level.rate() == Approx(1. / 3).epsilon(1e-3));
  CHECK(growth.rho() == Approx(2 / (1 + .3 + .4)).epsilon(1e-3));
  for (int round = 0; round < 500; ++round) {
    growth.begin();
    growth.observe(path{.likely = 2, .levels = 1}, 1, 3, 8);
  }
  CHECK(growth.likely.rate() < 1e-3);
  CHECK(growth.rho() == 1);  // that of rounds without drafts
  for (int round = 0; round < 500; ++round) {
    growth.begin();
    growth.observe(path{.likely = 1, .accepted_likely = 1, .levels = 1}, 2, 1, 1);
  }
  CHECK((growth.likely.rate() > .99 && growth.level.rate() > .99));
  CHECK(growth.drawn.rate() == Approx(.5));  // nothing drawn was offered
  for (int round = 0; round < 500; ++round) {
    growth.begin();
    growth.observe(path{.likely = 2, .levels = 1}, 1, 3, 8);
  }
  for (int round = 0; round < 32; ++round) {
    growth.begin();
    growth.observe(path{}, 1, 0, 0);
  }
  CHECK(growth.likely.rate() < .1);
  growth.begin();  // 32 rounds drafted nothing before
  CHECK(growth.likely.rate() == Approx(.8));
}
TEST_CASE("a kind of children that failed at first is tried again") {
  plan::tree_growth growth({.target = 1, .draft = .1, .verify = .05});
  using path = plan::tree_growth::path_record;
  const auto most_likely = [&] { return growth.of_node(1, std::vector{.9}, 4, true).most_likely; };
  growth.begin();
  CHECK(most_likely() == 1);
  for (int round = 0; round < 6; ++round) {
    growth.begin();
    growth.observe(path{.likely = .9, .levels = 1}, 1, 1, 1);
  }
  CHECK(most_likely() == 0);  // below the rate of drawn ones: drawn alone
  int rounds = 0;
  for (; most_likely() == 0 && rounds < 100; ++rounds) {
    growth.begin();
    growth.observe(path{.drawn = 1, .accepted_drawn = std::size_t(rounds % 2), .levels = 1}, 1, 1,
                   1);
  }
  INFO("rounds " << rounds);
  CHECK((rounds > 1 && rounds < 60));
}
