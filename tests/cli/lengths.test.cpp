// SPDX-License-Identifier: Apache-2.0
#include "../tools/cli/lengths.hpp"

#include <array>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE(
    "a round is tried if a row that costs something was asked for to draft from it, or if a token "
    "was drafted") {
  const plan::draft_costs cost{.target = 1, .draft = 0, .verify = .1, .others = {.2}};
  cli::any_length length{.learns = true, .controller = plan::draft_length_controller(cost, 2)};
  const cli::draft_watch& watch = length.rounds.watch;
  // One round: asks the drafters in turn, keeps `kept` tokens of the second, and asks for `more`
  // rows of it afterwards.
  const auto round = [&](std::size_t kept, std::size_t more) {
    length.begin();
    std::array<std::size_t, 2> asked{};
    std::vector<draft_acceptance> acceptances;
    for (bool on = true; on;) {
      asked[0] += length.another(0);  // a lookup that finds nothing
      on = length.another(1);
      asked[1] += on;
      on = on && acceptances.size() < kept && length.keep(1, .9);
      if (on) acceptances.push_back({.9, .9});
    }
    asked[1] += more;
    length.observe(acceptances, acceptances.size() + 1, asked);
  };
  // A policy that reads the draft asks for a row in rounds without drafts: they are plain, and what
  // they cost is 1.
  for (int i = 0; i < 2; ++i) round(0, 1);
  CHECK((watch.plain_rounds == 2 && watch.rounds == 0 && length.rounds.plain_cost == Approx(1.2)));
  round(1, 0);  // two rows, one token
  CHECK((watch.plain_rounds == 2 && watch.rounds == 1 &&
         watch.prices == Approx((1 + .4 + .1) / 1.2)));
  round(0, 0);  // a row, and no token
  CHECK(
      (watch.plain_rounds == 2 && watch.rounds == 2 && watch.prices == Approx((1.5 + 1.2) / 1.2)));

  // A lookup alone, which costs nothing: rounds in which it finds nothing are plain ones.
  cli::any_length lookup{.learns = true,
                         .controller = plan::draft_length_controller({.verify = .1})};
  for (int i = 0; i < 10; ++i) {
    lookup.begin();
    const std::size_t asked = lookup.another(0);
    lookup.observe({}, 1, std::span(&asked, 1));
  }
  CHECK((lookup.rounds.watch.plain_rounds == 10 && lookup.rounds.watch.rounds == 0));
  const std::size_t asked = 1;
  const std::array<draft_acceptance, 1> one{{{.5, .5}}};
  lookup.begin();
  (void)lookup.another(0);
  (void)lookup.keep(0, .5);
  lookup.observe(one, 2, std::span(&asked, 1));
  CHECK(lookup.rounds.watch.rounds == 1);
  lookup.begin();
  lookup.observe({}, 1, std::span(&asked, 1));
  CHECK((lookup.rounds.watch.plain_rounds == 11 && lookup.rounds.watch.rounds == 0));
}
TEST_CASE("a tree is tried if a level was drafted, also one without nodes") {
  cli::watched_growth growth({.target = 1, .draft = .1, .verify = .1});
  const cli::draft_watch& watch = growth.rounds.watch;
  for (int i = 0; i < 2; ++i) {
    growth.begin();
    CHECK(!growth.worth_level(1));
    growth.observe({}, 1, 1, 0);  // the policy asked for the row after the text
  }
  CHECK((watch.plain_rounds == 2 && growth.rounds.plain_cost == Approx(1.1)));
  growth.begin();
  CHECK(growth.worth_level(1));
  growth.observe({.levels = 1}, 1, 1, 0);
  CHECK((watch.rounds == 1 && watch.prices == Approx(1)));
}
