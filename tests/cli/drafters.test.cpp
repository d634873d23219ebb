// SPDX-License-Identifier: Apache-2.0
// generate --draft lookup, counts and their like: what is drafted costs no text its law, and the
// report says who did.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/generated.hpp"

namespace {

using cli::generated, cli::ran, cli::refuses, cli::run;

const std::string models = SPECAGG_MODELS;
const std::string draft = models + "/draft.gguf";

std::vector<std::string> prompts() {
  std::ifstream file(models + "/../research/prompts.txt");
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) all.push_back(line);
  REQUIRE(all.size() == 20);
  return all;
}

// A file that goes when the test does.
struct temporary {
  std::string path;
  temporary(const std::string& name, const std::string& text)
      : path("/tmp/specagg-" + std::to_string(getpid()) + "-" + name) {
    std::ofstream(path) << text;
  }
  ~temporary() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE(
    "at temperature 0 drafts of lookup and counts change none of 20 texts of 128 tokens, on 1, 2 "
    "and 4 threads",
    "[more]") {
  std::size_t drafted = 0, accepted = 0, different = 0, calls = 0;
  for (const std::string& prompt : prompts()) {
    const std::string common = "--temperature 0 --max-tokens 128 --prompt \"" + prompt + "\" ";
    const auto alone = generated(common + "--gamma 0");
    for (const char* threads : {"1", "2", "4"}) {
      const auto j = generated(common + "--draft lookup --gamma 4 --threads " + threads);
      different += j["tokens"] != alone["tokens"];
      CHECK(j["tokens"].size() == 128);
      CHECK(j["logprob"] == alone["logprob"]);
      CHECK(j["draft_calls"] == 0);
      drafted += std::size_t(j["drafted"]);
      accepted += std::size_t(j["accepted"]);
      calls += std::size_t(j["target_calls"]);
    }
    for (const std::string& who :
         {"lookup," + draft, std::string("counts"), "counts,lookup," + draft})
      CHECK(generated(common + "--draft " + who)["tokens"] == alone["tokens"]);
    CHECK(generated(common + "--draft lookup --gamma auto")["tokens"] == alone["tokens"]);
    CHECK(generated(common + "--draft lookup,counts," + draft + " --gamma auto --lookup " + models +
                    "/../research/prompts.txt")["tokens"] == alone["tokens"]);
  }
  std::printf(
      "lookup drafts of 4: %zu of 60 texts differ; %zu of %zu drafted tokens accepted, %zu target "
      "calls for %d "
      "tokens\n",
      different, accepted, drafted, calls, 60 * 128);
  CHECK(different == 0);
  CHECK(accepted > 500);
}
TEST_CASE(
    "a coupled text is the same with a lookup, with counts, with a model, with several, and "
    "without drafts") {
  const auto alone = generated("--max-tokens 100 --verify coupled --gamma 0");
  for (const std::string& who : {std::string("lookup"), std::string("counts"), "lookup," + draft,
                                 "counts," + draft, "lookup,counts," + draft})
    for (const char* gamma : {"1", "4", "auto"})
      CHECK(generated("--max-tokens 100 --verify coupled --draft " + who + " --gamma " +
                      gamma)["tokens"] == alone["tokens"]);
}
TEST_CASE("the report says which drafter each token came from, and what each gave") {
  for (const char* verify : {"token", "block", "match", "coupled"}) {
    const auto j = generated("--temperature 0.3 --max-tokens 150 --draft lookup," + draft +
                             " --gamma 5 --verify " + verify);
    REQUIRE(j["drafter"].size() == j["tokens"].size());
    std::size_t of_lookup = 0, of_model = 0;
    for (std::size_t i = 0; i < j["drafter"].size(); ++i) {
      CHECK(j["drafter"][i].is_null() == (j["origin"][i] != "accepted"));
      of_lookup += j["drafter"][i] == "lookup";
      of_model += j["drafter"][i] == "model";
    }
    const auto& by = j["drafters"];
    CHECK(by["lookup"]["accepted"] == of_lookup);
    CHECK(by["model"]["accepted"] == of_model);
    CHECK(std::size_t(j["accepted"]) == of_lookup + of_model);
    CHECK(std::size_t(by["lookup"]["drafted"]) + std::size_t(by["model"]["drafted"]) ==
          j["drafted"]);
    CHECK(of_lookup > 0);
    CHECK(of_model > 0);
    CHECK(std::size_t(j["draft_calls"]) < std::size_t(j["drafted"]));
  }
  const auto j = generated("--max-tokens 20 --gamma 4");
  CHECK(j["drafters"].size() == 1);
  CHECK(j["drafters"]["model"]["accepted"] == j["accepted"]);
  const auto stopped = generated("--temperature 0 --max-tokens 60 --draft lookup --stop e");
  CHECK(stopped["drafter"].size() == stopped["tokens"].size());
}
TEST_CASE("lookup, counts and a model are asked in the order in which --draft names them") {
  const std::string common = "--temperature 0.5 --max-tokens 150 --gamma 5 ";
  const auto j = generated(common + "--draft lookup,counts," + draft);
  REQUIRE(j["drafters"].size() == 3);
  std::size_t accepted = 0;
  for (const char* who : {"lookup", "counts", "model"}) {
    CHECK(j["drafters"][who]["drafted"] > 0);
    accepted += std::size_t(j["drafters"][who]["accepted"]);
  }
  CHECK(j["accepted"] == accepted);
  CHECK(j["draft_calls"] == j["drafters"]["model"]["drafted"]);
  // Counts have a row wherever a lookup has: asked first they leave it nothing.
  const auto counts_first = generated(common + "--draft counts,lookup");
  CHECK(counts_first["drafters"]["lookup"]["drafted"] == 0);
  CHECK(counts_first["drafters"]["counts"]["drafted"] > 0);
  // It is a function of the options.
  CHECK(counts_first["tokens"] == generated(common + "--draft counts")["tokens"]);
  const auto automatic =
      generated("--temperature 0.5 --max-tokens 150 --gamma auto --draft lookup,counts," + draft);
  CHECK(automatic["tokens"].size() == 150);
  CHECK(automatic["drafters"].size() == 3);
}
TEST_CASE(
    "a lookup in a file that holds the answer drafts the answer. Several files are looked up in") {
  const std::string common = "--temperature 0 --max-tokens 120 --prompt 'And it came to pass' ";
  const auto alone = generated(common + "--gamma 0");
  const temporary answer("answer.txt", "And it came to pass" + std::string(alone["text"])),
      other("other.txt", "Amen.");
  const auto without = generated(common + "--draft lookup --gamma 8"),
             j = generated(common + "--draft lookup --gamma 8 --lookup " + other.path +
                           " --lookup " + answer.path);
  CHECK(j["tokens"] == alone["tokens"]);
  CHECK(double(j["acceptance"]) > 0.8);
  CHECK(j["target_calls"] < 40);
  CHECK(j["target_calls"] < without["target_calls"]);
}
TEST_CASE("counts of a file that holds the answer draft the answer. Several files are counted") {
  const std::string common = "--temperature 0 --max-tokens 120 --prompt 'And it came to pass' ";
  const auto alone = generated(common + "--gamma 0");
  const temporary answer("counted.txt", "And it came to pass" + std::string(alone["text"])),
      other("more.txt", "Amen.");
  const auto without = generated(common + "--draft counts --gamma 8"),
             j = generated(common + "--draft counts --gamma 8 --lookup " + answer.path +
                           " --lookup " + other.path);
  CHECK(j["tokens"] == alone["tokens"]);
  CHECK(double(j["acceptance"]) > double(without["acceptance"]) + 0.1);
  CHECK(j["target_calls"] < without["target_calls"]);
  CHECK(j["draft_calls"] == 0);
}
TEST_CASE(
    "where models take turns a lookup goes first: fewer calls, and at temperature 0 the same "
    "text") {
  const std::string common = "--temperature 0 --max-tokens 128 --prompt 'And it came to pass' ";
  for (const std::string& decoder :
       {std::string("--decoder alternating --policy geometric --gamma 4,1 "),
        "--decoder n-model --policy geometric --gamma 4,1,1 --model " + models + "/bible.gguf "}) {
    const auto without = generated(common + decoder + "--draft " + draft),
               with = generated(common + decoder + "--draft lookup," + draft);
    CHECK(with["tokens"] == without["tokens"]);
    CHECK(with["tokens"].size() == 128);
    CHECK(with["draft_calls"] < without["draft_calls"]);
    CHECK(with["target_calls"] < without["target_calls"]);
    CHECK(with["drafted"] > 0);
    // bundled draft model
    CHECK(generated(common + decoder + "--draft lookup")["tokens"] == without["tokens"]);
  }
}
TEST_CASE("what does not fit lookup and counts is refused in one line that says what does") {
  refuses("generate --draft lookup --space raw", {"--space raw", "combines no logits"});
  refuses("generate --draft lookup --policy ensemble",
          {"--policy ensemble", "reads the row of a draft model", "lossless"});
  refuses("generate --draft lookup," + draft + " --policy opt:alpha=0.1",
          {"--policy opt", "--draft lookup"});
  refuses("generate --draft lookup --decoder oracle",
          {"--draft lookup", "oracle", "speculative", "alternating"});
  refuses("generate --draft lookup --decoder alternating --target " + models + "/target.gguf",
          {"--draft lookup", "alternating", "--draft lookup,FILE"});
  refuses("generate --draft lookup,", {"--draft lookup,", "names no model"});
  refuses("generate --draft lookup,counts,", {"--draft lookup,counts,", "names no model"});
  refuses("generate --draft counts,lookup,counts",
          {"--draft counts,lookup,counts", "names counts twice"});
  refuses("generate --draft counts --policy ensemble",
          {"--policy ensemble", "--draft counts", "lossless"});
  refuses("generate --draft counts --decoder alternating",
          {"--draft counts", "alternating", "speculative"});
  refuses("generate --draft counts,/nowhere.gguf", {"/nowhere.gguf"});
  refuses("generate --draft lookup,/nowhere.gguf", {"/nowhere.gguf"});
  refuses("generate --draft lookup --lookup /nowhere.txt", {"/nowhere.txt", "cannot be read"});
  refuses("generate --lookup " + models + "/../research/prompts.txt",
          {"--lookup", "--draft lookup", "--draft counts"});
}
