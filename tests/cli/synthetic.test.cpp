// SPDX-License-Identifier: Apache-2.0
// --synthetic-acceptance-length and --synthetic-acceptance-rates of specagg generate.
#include <nlohmann/json.hpp>

#include "cli/command.hpp"

TEST_CASE("generate --synthetic-acceptance-length accepts as many tokens as it says") {
  const std::string pair =
      " --target " SPECAGG_MODELS "/target.gguf --draft lookup," SPECAGG_MODELS "/draft.gguf";
  for (const std::string& more :
       {std::string(), std::string(" --policy ensemble:lambda=0.3"),
        std::string(" --verify block --temperature 0"), std::string(" --verify coupled"), pair}) {
    const cli::ran r = cli::run(
        "generate --gamma 4 --synthetic-acceptance-length 3 --max-tokens 99 --json" + more);
    INFO(more << "\n" << r.out);
    REQUIRE(r.status == 0);
    const auto j = nlohmann::json::parse(r.out);
    CHECK(j["rounds"] == 33);  // two accepted tokens and the target's
    CHECK(j["accepted"] == 66);
  }
}
TEST_CASE("generate --synthetic-acceptance-rates accepts by position what it says") {
  for (const std::string& more : {std::string(), std::string(" --policy lossy:alpha=0.3")}) {
    const auto accepted = [&](const std::string& rates) {
      const cli::ran r = cli::run(
          "generate --gamma 3 --max-tokens 99 --json --synthetic-acceptance-rates " + rates + more);
      INFO(rates << more << "\n" << r.out);
      REQUIRE(r.status == 0);
      const auto j = nlohmann::json::parse(r.out);
      return std::pair{j["rounds"].get<int>(), j["accepted"].get<int>()};
    };
    CHECK(accepted("1,1") == std::pair{33, 66});
    CHECK(accepted("1,1,0") == std::pair{33, 66});
    CHECK(accepted("0") == std::pair{99, 0});
    // none or two of each draft; by a length of 2 it would be one
    const auto both = accepted("0.5,0.5");
    CHECK((both.second % 2 == 0 && both.first + both.second == 99));
    // a round accepts one token, or with probability 0.5 two, and the target adds one
    const auto [rounds, tokens] = accepted("1,0.5");
    CHECK((rounds > 33 && rounds < 50));
    CHECK(tokens + rounds == 99);
  }
}
TEST_CASE("generate refuses a synthetic acceptance length that it cannot have") {
  const auto refuses = [](const std::string& more, std::initializer_list<const char*> why) {
    cli::refuses("generate --max-tokens 8 " + more, why);
  };
  refuses("--gamma 2 --synthetic-acceptance-length 3.5", {"3.5", "at most 3 tokens"});
  refuses("--synthetic-acceptance-length 0.5", {"--synthetic-acceptance-length"});
  refuses("--gamma auto --synthetic-acceptance-length 2", {"--gamma auto"});
  refuses("--gamma auto --synthetic-acceptance-rates 0.5", {"0.5", "--gamma auto"});
  refuses("--gamma 2 --synthetic-acceptance-rates 1,0.5,0.25", {"1,0.5,0.25", "has 3 numbers"});
  refuses("--synthetic-acceptance-rates 0.5,0.6", {"0.5,0.6", "above the one before it"});
  refuses("--synthetic-acceptance-rates 1.5", {"--synthetic-acceptance-rates"});
  refuses("--synthetic-acceptance-rates 0.5 --synthetic-acceptance-length 2", {"excludes"});
  refuses("--gamma 0 --synthetic-acceptance-rates 0.5", {"nothing is drafted"});
  refuses("--policy geometric --synthetic-acceptance-rates 0.5",
          {"--synthetic-acceptance-rates", "raw logits"});
  refuses("--gamma 0 --synthetic-acceptance-length 1", {"nothing is drafted"});
  refuses("--decoder tree --synthetic-acceptance-length 2", {"only with speculative"});
  refuses("--policy entropy-window --synthetic-acceptance-length 2", {"has a state"});
  refuses("--policy geometric --synthetic-acceptance-length 2", {"raw logits"});
}
