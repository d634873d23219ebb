// SPDX-License-Identifier: Apache-2.0
// --synthetic-acceptance-length of specagg generate.
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
TEST_CASE("generate refuses a synthetic acceptance length that it cannot have") {
  const auto refuses = [](const std::string& more, std::initializer_list<const char*> why) {
    cli::refuses("generate --max-tokens 8 " + more, why);
  };
  refuses("--gamma 2 --synthetic-acceptance-length 3.5", {"3.5", "at most 3 tokens"});
  refuses("--synthetic-acceptance-length 0.5", {"--synthetic-acceptance-length"});
  refuses("--gamma auto --synthetic-acceptance-length 2", {"--gamma auto"});
  refuses("--gamma 0 --synthetic-acceptance-length 1", {"nothing is drafted"});
  refuses("--decoder tree --synthetic-acceptance-length 2", {"only with speculative"});
  refuses("--policy entropy-window --synthetic-acceptance-length 2", {"has a state"});
  refuses("--policy geometric --synthetic-acceptance-length 2", {"raw logits"});
}
