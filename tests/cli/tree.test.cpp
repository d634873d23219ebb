// SPDX-License-Identifier: Apache-2.0
// generate --tree: no text loses its law, and what does not fit is refused by name.
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.hpp"
#include "cli/generated.hpp"

namespace {

using cli::generated, cli::refuses;

}  // namespace

TEST_CASE("at temperature 0 trees of drafts change no text and no log-probability") {
  for (const char* prompt : {"ROMEO:\n", "In the beginning", "The king said to"}) {
    const std::string common =
        std::string("--temperature 0 --max-tokens 80 --prompt \"") + prompt + "\" ";
    const auto alone = generated(common + "--gamma 0");
    for (const char* how :
         {"--tree 3,2,1,1", "--tree 1,1,1 --threads 2", "--tree 4,4 --propose top --threads 4",
          "--tree 2,2,2 --propose sampled", "--tree 3,2 --verify recursive"}) {
      const auto j = generated(common + how);
      INFO(prompt << " " << how);
      CHECK(j["tokens"] == alone["tokens"]);
      CHECK(j["logprob_target"] == alone["logprob_target"]);
      CHECK(j["decoder"] == "tree");
      CHECK(std::size_t(j["target_calls"]) < 80);
    }
  }
  const auto penalised =
      generated("--temperature 0 --max-tokens 60 --repeat-penalty 1.3 --gamma 0");
  CHECK(generated("--temperature 0 --max-tokens 60 --repeat-penalty 1.3 --tree 3,2,1")["tokens"] ==
        penalised["tokens"]);
}
TEST_CASE("at temperature 0 trees of a lookup change no text, and draft more than a chain does") {
  const std::string document =
      std::string(SPECAGG_SOURCE_DIR) + "/research/text/shakespeare/valid.txt";
  const std::string common = "--temperature 0 --max-tokens 80 --prompt \"ROMEO:\n\" ";
  const std::string lookup = common + "--draft lookup --lookup " + document + " ";
  const auto alone = generated(common + "--gamma 0"), chain = generated(lookup + "--tree 1,1,1");
  for (const char* how :
       {"--tree 3,2,1,1", "--tree 3,2,1,1 --verify recursive", "--decoder tree --tree 4"}) {
    const auto j = generated(lookup + how);
    INFO(how);
    CHECK(j["tokens"] == alone["tokens"]);
    CHECK(j["decoder"] == "tree");
    CHECK(!j.contains("propose"));
    CHECK(std::size_t(j["draft_calls"]) == 0);
    CHECK(std::size_t(j["drafters"]["lookup"]["drafted"]) == std::size_t(j["drafted"]));
    CHECK(std::size_t(j["drafters"]["lookup"]["accepted"]) == std::size_t(j["accepted"]));
    CHECK(std::size_t(j["drafted"]) > 40);
  }
  CHECK(chain["tokens"] == alone["tokens"]);
  CHECK(double(generated(lookup + "--tree 3,2,1")["tokens_per_target_call"]) >
        double(chain["tokens_per_target_call"]));
}
TEST_CASE(
    "trees that grow (--tree auto) change no text at temperature 0, and report what was measured") {
  const std::string common = "--temperature 0 --max-tokens 80 --prompt \"ROMEO:\n\" ";
  const auto alone = generated(common + "--gamma 0"), j = generated(common + "--tree auto");
  CHECK(j["tokens"] == alone["tokens"]);
  CHECK(j["tree"] == "auto");
  CHECK(double(j["d"]) > 0);
  CHECK(std::size_t(j["drafters"]["model"]["drafted"]) == std::size_t(j["drafted"]));
  CHECK(generated("--tree auto --policy token-v3:alpha=0.3 --max-tokens 40")["tokens"].size() ==
        40);
}
TEST_CASE(
    "a tree that is a chain gives the tokens of block verification, recursive those of token "
    "verification") {
  for (const char* policy : {"lossless", "token-v3:alpha=0.3", "ensemble:lambda=0.4"}) {
    const std::string common = std::string("--max-tokens 100 --seed 7 --policy ") + policy + " ";
    CHECK(generated(common + "--tree 1,1,1,1")["tokens"] ==
          generated(common + "--verify block --gamma 4")["tokens"]);
    CHECK(generated(common + "--tree 1,1,1,1 --verify recursive")["tokens"] ==
          generated(common + "--verify token --gamma 4")["tokens"]);
  }
}
TEST_CASE("the report of a tree, and more tokens per call than a chain of its depth") {
  const auto j = generated("--tree 3,2,1,1 --max-tokens 150"),
             chain = generated("--tree 1,1,1,1 --max-tokens 150");
  CHECK(j["tree"] == "3,2,1,1");
  CHECK(j["propose"] == "greedy");
  CHECK(j["verify"] == "traversal");
  CHECK(double(j["tokens_per_target_call"]) > double(chain["tokens_per_target_call"]));
}
TEST_CASE(
    "law --tree: both verifiers emit the law. Greedy proposals attain the optimum of one level") {
  const std::string rows = "law --json --q .5,.3,.2 --p .2,.4,.4 ";
  for (const char* options :
       {"--tree 2,2", "--tree 2,1,1 --propose sampled", "--tree 2 --policy token-v3:alpha=0.3",
        "--tree 3,2 --propose top --policy ensemble:lambda=0.4", "--tree 2"}) {
    const auto r = cli::run(rows + options);
    INFO(options << "\n" << r.out);
    REQUIRE(r.status == 0);
    const auto j = nlohmann::json::parse(r.out);
    CHECK(double(j["traversal"]["worst_error"]) < 1e-12);
    CHECK(double(j["recursive"]["worst_error"]) < 1e-12);
    CHECK(double(j["traversal"]["accepted"]) > double(j["recursive"]["accepted"]) - 1e-12);
    CHECK(j.contains("optimum") == (std::string(options).find(',') == std::string::npos));
    if (j.contains("optimum"))
      CHECK(double(j["optimum"]) == Approx(double(j["traversal"]["accepted"])).epsilon(1e-12));
  }
  // By hand: the first child is drawn from (0, .6, .4) and accepted with probability .4 + .4. Then
  // token 0 alone is left, and it is the second child.
  const auto by_hand = nlohmann::json::parse(cli::run(rows + "--tree 2").out);
  CHECK(double(by_hand["traversal"]["accepted"]) == Approx(1).epsilon(1e-12));
  CHECK(cli::run("law --q .5,.3,.2 --p .2,.4,.4 --tree 2").out.find("optimum") !=
        std::string::npos);
  refuses("law --q .5,.5 --p .5,.5 --tree 2 --verify block", {"--verify excludes --tree"});
  refuses("law --q .5,.3,.2 --p .2,.4,.4 --tree 3,3,3 --propose sampled",
          {"--tree 3,3,3", "trees can be drafted"});
  refuses("law --q .1,.1,.1,.1,.1,.1,.1,.1,.2 --p .1,.1,.1,.1,.1,.1,.1,.1,.2 --tree 2",
          {"--tree 2", "9 tokens"});
  refuses("law --q .5,.5 --p .5,.5 --propose top", {"--propose requires --tree"});
}
TEST_CASE("trees that cannot be drafted are refused, by name") {
  const auto refused = [](const std::string& options, const char* why) {
    refuses("generate " + options, {why});
  };
  refused("--tree 9,9", "--tree 9,9: has too many nodes; 1 to 62 can be drafted");
  refused("--tree 99999999999999999999",
          "--tree 99999999999999999999: is no number from 0 to 62 or list of them");
  refused("--tree 62,62,62,62,62,62,62,62,62,62,62,62",
          "--tree 62,62,62,62,62,62,62,62,62,62,62,62: has too many nodes; 1 to 62 can be drafted");
  refused("--tree 0", "--tree 0: has no nodes; 1 to 62 can be drafted");
  refused("--propose top",
          "--propose top: has no effect with --decoder speculative, only with tree");
  refused("--tree 2 --propose best", "--propose best: is unknown (greedy, sampled, top are known)");
  refused("--tree 2 --decoder alternating",
          "--tree 2: has no effect with --decoder alternating: it drafts no trees");
  refused("--tree 2 --verify token",
          "--verify token: is unknown to --decoder tree (it has traversal, recursive)");
  refused("--tree 2 --policy contrastive",
          "--policy contrastive: combines raw logits; --decoder tree has --space law alone");
  refused("--tree auto --propose top", "--propose top: --tree auto proposes greedily");
  refused("--tree auto --draft lookup",
          "--tree auto: grows by the rows of a draft model, and a lookup has none");
  refused("--tree 2 --draft lookup,counts",
          "--draft lookup,counts: --decoder tree takes a draft model (speculative takes lookup and "
          "counts");
  refused("--tree 2 --draft lookup --propose top",
          "--propose top: has no effect with --draft lookup: it proposes what followed most often");
  refused("--tree 2 --draft lookup --policy token-v3",
          "--policy token-v3: reads the row of a draft model, and a lookup has none (it takes "
          "lossless)");
  refused("--tree 2 --target x.gguf", "--tree 2: has no effect without --draft");
}
