// SPDX-License-Identifier: Apache-2.0
// generate --draft HEAD.gguf: a draft head of the target.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.hpp"
#include "cli/generated.hpp"
#include "support/smollm2.hpp"

namespace {

using cli::generated, cli::ran, cli::refuses, cli::run;

const std::string models = SPECAGG_MODELS;
const std::string head = std::string(SPECAGG_SOURCE_DIR) + "/tests/backend/cpu/target_head.gguf";

// The head's file, changed, under another name until the test ends.
struct changed_head {
  std::string path, bytes;
  explicit changed_head(const std::string& name)
      : path("/tmp/specagg-" + std::to_string(getpid()) + "-" + name + ".gguf") {
    std::ifstream in(head, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
    REQUIRE(bytes.size() > 100000);
  }
  void write() const { std::ofstream(path, std::ios::binary) << bytes; }
  // Where a number begins that is the value of a metadata key. skip: the bytes between.
  std::size_t after(const std::string& key, std::size_t skip) const {
    const auto at = bytes.find(key);
    REQUIRE(at != std::string::npos);
    return at + key.size() + skip;
  }
  ~changed_head() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE(
    "at temperature 0 drafts of a head change no text and no log-probability, on 1 and 2 threads") {
  std::ifstream file(models + "/../research/prompts.txt");
  std::string prompt;
  std::size_t drafted = 0, accepted = 0, calls = 0, tokens = 0;
  for (int n = 0; n < 6 && std::getline(file, prompt); ++n) {
    const std::string common = "--temperature 0 --max-tokens 100 --prompt \"" + prompt + "\" ";
    const auto alone = generated(common + "--gamma 0");
    const auto same = [&](const std::string& how) {
      const auto j = generated(common + how);
      CHECK(j["tokens"] == alone["tokens"]);
      CHECK(j["logprob"] == alone["logprob"]);
      return j;
    };
    const auto j = same("--gamma 4 --draft " + head);
    drafted += std::size_t(j["drafted"]);
    accepted += std::size_t(j["accepted"]);
    calls += std::size_t(j["target_calls"]);
    tokens += j["tokens"].size();
    same("--gamma 4 --threads 2 --draft " + head);
    same("--gamma auto --draft " + head);
    same("--gamma 4 --verify block --draft " + head);
    same("--gamma 4 --draft lookup,counts," + head);
  }
  const std::string penalised =
      "--temperature 0 --max-tokens 60 --repeat-penalty 1.2 --prompt 'And it came' ";
  CHECK(generated(penalised + "--gamma 4 --draft " + head)["tokens"] ==
        generated(penalised + "--gamma 0")["tokens"]);
  std::printf("a head's drafts of 4: %zu of %zu accepted, %zu target calls for %zu tokens\n",
              accepted, drafted, calls, tokens);
  CHECK(3 * accepted > drafted);
  CHECK(2 * calls < tokens * 3 / 2);
}
TEST_CASE("drafts of a head are compared with the target alone") {
  for (const std::string how : {"--gamma 2", "--gamma auto", "--gamma 0", "--tree 2,1"}) {
    INFO(how);
    const auto j =
        generated("--compare --temperature 0 --max-tokens 24 --draft " + head + " " + how);
    CHECK(j["identical_to_target_alone"] == true);
  }
  const auto j =
      generated("--compare --temperature 0 --max-tokens 24 --gamma 2 --draft lookup," + head);
  CHECK(j["identical_to_target_alone"] == true);
}
TEST_CASE(
    "a head drafts trees: at temperature 0 the text is the target's own, in fewer calls than with "
    "its chains") {
  std::size_t chains = 0, trees = 0;
  for (const std::string prompt :
       {"And it came to pass, when the king", "ROMEO:\nWhat say you to my suit?"}) {
    const std::string common =
        "--temperature 0 --max-tokens 100 --prompt \"" + prompt + "\" --draft " + head + " ";
    const auto chain = generated(common + "--gamma 3");
    chains += std::size_t(chain["target_calls"]);
    for (const std::string how :
         {"--tree 3,2,1 --propose top", "--tree 2,2,1", "--tree auto", "--tree 2,1 --threads 2"}) {
      const auto j = generated(common + how);
      CHECK(j["tokens"] == chain["tokens"]);
      CHECK(j["logprob"] == chain["logprob"]);
      if (how == "--tree 3,2,1 --propose top") trees += std::size_t(j["target_calls"]);
    }
  }
  INFO("calls: " << trees << " with trees, " << chains << " with chains");
  CHECK(trees < chains);
  for (const std::string how :
       {"--policy token-v3:alpha=0.3", "--policy lossless --verify recursive"})
    CHECK(generated("--max-tokens 60 --tree 3,2 --draft " + head + " " + how)["tokens"].size() ==
          60);
}
TEST_CASE("SmolLM2: with its head an answer at temperature 0 is its own, and drafts are accepted",
          "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  std::size_t drafted = 0, accepted = 0;
  for (const std::string name : {"chat-02", "story-01"}) {
    const std::string common = "--chat --temperature 0 --max-tokens 64 --threads 2 --target " +
                               file + " --prompt-file " + models + "/../research/prompts/" + name +
                               ".txt ";
    const auto alone = generated(common + "--gamma 0");
    for (const std::string how : {"--gamma 2", "--tree 2,1 --propose top"}) {
      const auto j = generated(common + how + " --draft " + models + "/smollm2-head.gguf");
      CHECK(j["tokens"] == alone["tokens"]);
      CHECK(j["logprob"] == alone["logprob"]);
      drafted += std::size_t(j["drafted"]);
      accepted += std::size_t(j["accepted"]);
    }
  }
  std::printf("SmolLM2's head: %zu of %zu accepted\n", accepted, drafted);
  CHECK(10 * accepted > drafted);  // of a tree two of four nodes at most
}
TEST_CASE("a head drafts for policies that read its row, and takes turns with the target") {
  for (const std::string how :
       {"--policy token-v3:alpha=0.3 --gamma 3", "--policy ensemble:lambda=0.3 --gamma 2",
        "--decoder alternating --policy ensemble --gamma 3,2", "--decoder oracle",
        "--policy opt:alpha=0.1 --verify block"}) {
    INFO(how);
    const auto j = generated("--max-tokens 60 --draft " + head + " " + how);
    CHECK(j["tokens"].size() == 60);
    CHECK(std::size_t(j["draft_calls"]) > 0);
  }
  const auto coupled = generated("--max-tokens 60 --verify coupled --gamma 4 --draft " + head);
  CHECK(coupled["tokens"] == generated("--max-tokens 60 --verify coupled --gamma 0")["tokens"]);
}
TEST_CASE(
    "heads that do not fit get one line and status 2: another target, a damaged file, what no head "
    "does") {
  refuses("generate --target " + models + "/bard.gguf --draft " + head,
          {"is a draft head for another target than", "final norm"});
  refuses("generate --target " + models + "/draft.gguf --draft " + head,
          {"is a draft head for another target than"});
  refuses("generate --target " + head, {"general.architecture", "specagg-head"});
  refuses("score --model " + head + " --text x", {"specagg-head"});
  {
    changed_head cut("cut");
    cut.bytes.resize(cut.bytes.size() / 2);
    cut.write();
    refuses("generate --draft " + cut.path, {"tensor"});
  }
  {
    changed_head wide("wide");  // the first number of d2t, after: type, type of elements, count
    const auto at = wide.after("specagg-head.d2t", 4 + 4 + 8);
    wide.bytes[at + 2] = 1;  // + 65536
    wide.write();
    refuses("generate --draft " + wide.path,
            {"specagg-head.d2t: maps token 0 to 65", "the target has 4096 tokens"});
  }
  {
    changed_head twice("twice");  // tokens 1 and 2 become one
    const auto at = twice.after("specagg-head.d2t", 4 + 4 + 8);
    for (int byte = 0; byte < 4; ++byte) twice.bytes[at + 8 + std::size_t(byte)] = 0;
    for (int byte = 0; byte < 4; ++byte)
      twice.bytes[at + 4 + std::size_t(byte)] = byte == 0 ? 1 : 0;
    twice.write();
    refuses("generate --draft " + twice.path, {"specagg-head.d2t: maps two tokens to one"});
  }
  {
    changed_head shape("shape");
    const auto at = shape.after("specagg-head.embedding_length", 4);
    shape.bytes[at] = char(160);  // for 192
    shape.write();
    refuses("generate --draft " + shape.path, {"tensor output.weight", "the metadata call for"});
  }
}
