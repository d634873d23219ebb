// SPDX-License-Identifier: Apache-2.0
// generate and score with models whose vocabularies differ.
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include "cli/command.hpp"
#include "cli/generated.hpp"
#include "support/renamed.hpp"
#include "support/smollm2.hpp"

namespace {

using namespace specagg;
using cli::generated, cli::ran, cli::run;
using nlohmann::json;
using test::renamed;

const std::string models = SPECAGG_MODELS, target = models + "/target.gguf",
                  drafter = models + "/draft.gguf";

std::vector<std::vector<double>> rows_of(const std::string& file,
                                         const std::vector<token_id>& ids) {
  cpu::llama model(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file)));
  const std::size_t V = model.vocab_size();
  std::vector<float> logits(ids.size() * V);
  REQUIRE(model.extend(ids, logits) == status::ok);
  std::vector<std::vector<double>> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::vector<double> row(logits.begin() + std::ptrdiff_t(i * V),
                            logits.begin() + std::ptrdiff_t((i + 1) * V));
    double sum = 0;
    for (double& x : row) sum += x = std::exp(x);
    for (double& x : row) x /= sum;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE(
    "score with a draft of another vocabulary: overlaps of q over Z with p, and how much is "
    "mapped") {
  const renamed draft;
  // without the two pieces
  const std::string text = "In my beginning is my end, my good friend; and so it is.";
  const cpu::tokenizer own(cpu::gguf_file::open(draft.path)), theirs(cpu::gguf_file::open(target));
  const vocabulary_map map = map_of_equal_tokens(own.texts(), theirs.texts());
  const std::string arguments =
      "score --model " + target + " --draft " + draft.path + " --text '" + text + "'";
  const ran r = run(arguments + " --json");
  REQUIRE(r.status == 0);
  const json j = json::parse(r.out);
  const auto ids = j["ids"].get<std::vector<token_id>>();
  CHECK(j["mapped"]["tokens"] == map.size());
  CHECK(j["mapped"]["of"] == own.size());
  CHECK(map.to(theirs.encode_inside(" the")[0]) == no_token);
  const auto q = rows_of(drafter, ids), p = rows_of(target, ids);
  double mass = 0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    double z = 0, overlap = 0;
    for (const token_id d : map.drafts()) z += q[i][std::size_t(d)];
    for (const token_id d : map.drafts())
      overlap += std::min(q[i][std::size_t(d)] / z, p[i][std::size_t(map.to(d))]);
    CHECK(double(j["overlap"][i]) == Approx(overlap).epsilon(1e-4));
    mass += z / double(ids.size() - 1);
  }
  CHECK(double(j["mapped"]["mass"]) == Approx(mass).epsilon(1e-5));
  const ran table = run(arguments);
  CHECK(table.status == 0);
  const std::string line = draft.path + ": " + std::to_string(map.size()) +
                           " of 4096 tokens are mapped to the text's 4096\n";
  CHECK(table.out.find(line) != std::string::npos);
  CHECK(table.out.find("of the draft's probability") != std::string::npos);
  CHECK(run("score --model " + target + " --draft " + drafter + " --text a").out.find("mapped") ==
        std::string::npos);
}
TEST_CASE("drafts of another vocabulary leave the target's greedy and coupled texts as they are") {
  const renamed draft;
  for (const char* how : {"--temperature 0", "--verify coupled"}) {
    const std::string common =
        "--max-tokens 100 --prompt 'And it came to pass' " + std::string(how);
    const auto alone = generated(common + " --gamma 0");
    for (const char* gamma : {"1", "4", "auto"}) {
      const auto j = generated(common + " --target " + target + " --draft " + draft.path +
                               " --gamma " + gamma);
      CHECK(j["tokens"] == alone["tokens"]);
      CHECK(j["logprob"] == alone["logprob"]);
      CHECK(j["mapped"][0]["model"] == draft.path);
      CHECK(double(j["mapped"][0]["mass"]) > 0.5);
      CHECK(double(j["mapped"][0]["mass"]) < 1);
      if (std::string(gamma) == "4") CHECK(double(j["acceptance"]) > 0.05);
    }
    CHECK(generated(common + " --target " + target + " --draft lookup," + draft.path)["tokens"] ==
          alone["tokens"]);
  }
  CHECK_FALSE(generated("--max-tokens 5").contains("mapped"));
}
TEST_CASE("every decoder and policy takes models of another vocabulary") {
  const renamed draft;
  const std::string common = "--max-tokens 40 --target " + target + " --draft " + draft.path;
  for (const char* how :
       {"--policy ensemble", "--policy token-v3:alpha=0.3 --verify block", "--policy geometric",
        "--decoder alternating --gamma 2,1", "--decoder sequential",
        "--decoder oracle --policy opt", "--decoder sequence", "--decoder bild"}) {
    const auto j = generated(common + " " + how);
    INFO(how);
    CHECK(j["tokens"].size() == 40);
    CHECK(j["mapped"].size() == 1);
  }
  const auto three = generated(common + " --decoder n-model --gamma 1 --model " + drafter);
  CHECK(three["mapped"].size() == 1);
  CHECK(three["tokens"].size() == 40);
}
TEST_CASE(
    "SmolLM2: models of two families draft for each other, by policies and decoders, and greedy "
    "texts "
    "stay",
    "[more]") {
  const std::string smol = test::smollm2();
  if (smol.empty()) return;
  const std::string prompt = " --prompt 'And it came to pass in those days,' --threads 2 ";
  for (const auto& [t, d] : {std::pair(smol, drafter), std::pair(target, smol)}) {
    const std::string common = "--target " + t + " --max-tokens 40" + prompt;
    const auto alone = generated(common + "--temperature 0");
    const auto greedy = generated(common + "--temperature 0 --gamma 3 --draft " + d);
    CHECK(greedy["tokens"] == alone["tokens"]);
    CHECK(greedy["logprob"] == alone["logprob"]);
    CHECK(greedy["mapped"][0]["tokens"] == 3336);
    CHECK(greedy["accepted"] > 0);
    for (const char* how :
         {"--policy ensemble", "--policy token-v3:alpha=0.3", "--decoder alternating --gamma 2,1"})
      CHECK(generated(common + how + std::string(" --draft ") + d)["accepted"] > 0);
  }
  const ran chat = run("generate --chat --prompt 'Say hello.' --max-tokens 20 --json --target " +
                       smol + " --draft " + drafter);
  REQUIRE(chat.status == 0);
  CHECK(json::parse(chat.out)["mapped"][0]["of"] == 4096);
}
TEST_CASE("a draft with a broken vocabulary is refused in one line, with status 2") {
  const renamed draft;
  std::ifstream in(draft.path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto byte_piece = bytes.find("<0x41>");
  REQUIRE(byte_piece != std::string::npos);
  bytes[byte_piece + 1] = '1';
  std::ofstream(draft.path, std::ios::binary) << bytes;
  cli::refuses("generate --target " + target + " --draft " + draft.path,
               {draft.path.c_str(), "piece"});
  cli::refuses("score --text a --model " + target + " --draft " + draft.path,
               {draft.path.c_str(), "piece"});
}
