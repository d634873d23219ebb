// SPDX-License-Identifier: Apache-2.0
// specagg score against the models themselves.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/plan/acceptance.hpp>

#include "cli/command.hpp"
#include "support/catch.hpp"

using namespace specagg;
using nlohmann::json;

namespace {

const std::string models = SPECAGG_MODELS, target = models + "/target.gguf",
                  drafter = models + "/draft.gguf";
const std::string sentence =
    "In the beginning God created the heaven and the earth, and the earth was without form.";

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
    for (double& x : row) sum += x = std::exp(x);  // the logits of these models are small
    for (double& x : row) x /= sum;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE("score prints the log-probabilities of a text, their sum and its perplexity") {
  const cli::ran r = cli::run("score --model " + target + " --json --text '" + sentence + "'");
  REQUIRE(r.status == 0);
  const json out = json::parse(r.out);
  const cpu::tokenizer tokens(cpu::gguf_file::open(target));
  const std::vector<token_id> ids = tokens.encode(sentence);
  CHECK(out["ids"].get<std::vector<token_id>>() == ids);
  std::string text;
  for (const auto& piece : out["pieces"]) text += piece.get<std::string>();
  CHECK(text == " " + sentence);
  const auto rows = rows_of(target, ids);
  REQUIRE(out["logprobs"].size() == ids.size());
  CHECK(out["logprobs"][0].is_null());
  double nll = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    CHECK(double(out["logprobs"][i]) ==
          Approx(std::log(rows[i - 1][std::size_t(ids[i])])).margin(1e-5));
    nll -= double(out["logprobs"][i]);
  }
  CHECK(double(out["nll"]) == Approx(nll).epsilon(1e-12));
  CHECK(double(out["perplexity"]) == Approx(std::exp(nll / double(ids.size() - 1))).epsilon(1e-12));
  for (const char* key : {"overlap", "acceptance", "c"}) CHECK_FALSE(out.contains(key));
}

TEST_CASE("with a draft model score says how much of the text would be drafted") {
  const cli::ran r = cli::run("score --model " + target + " --draft " + drafter +
                              " --json --text '" + sentence + "'");
  REQUIRE(r.status == 0);
  const json out = json::parse(r.out);
  const std::vector<token_id> ids = out["ids"];
  const std::vector<double> overlap = out["overlap"], expected = out["expected_tokens"];
  const auto q = rows_of(drafter, ids), p = rows_of(target, ids);
  REQUIRE(overlap.size() == ids.size() - 1);
  for (std::size_t i = 0; i < overlap.size(); ++i) {
    double sum = 0;
    for (std::size_t v = 0; v < p[i].size(); ++v) sum += std::min(q[i][v], p[i][v]);
    CHECK(overlap[i] == Approx(sum).margin(1e-5));
  }
  const double mean = std::accumulate(overlap.begin(), overlap.end(), 0.) / double(overlap.size());
  CHECK(double(out["acceptance"]) == Approx(mean).epsilon(1e-12));
  REQUIRE(expected.size() == 8);
  CHECK(expected[0] == Approx(1 + mean).epsilon(1e-12));
  double two = 0;
  for (std::size_t i = 0; i + 1 < overlap.size(); ++i)
    two += 1 + overlap[i] + overlap[i] * overlap[i + 1];
  CHECK(expected[1] == Approx(two / double(overlap.size() - 1)).epsilon(1e-12));
  const double c = out["c"], d = out["d"];
  CHECK((c > 0 && c < 1.5 && d >= 0));
  double best = 1;
  for (std::size_t g = 1; g <= 8; ++g) {
    const double speedup = out["speedup_predicted"][g - 1];
    CHECK(speedup == Approx(expected[g - 1] / (c * double(g) + 1 + d * double(g))).epsilon(1e-9));
    best = std::max(best, speedup);
  }
  CHECK(best ==
        (out["gamma"] == 0 ? 1 : double(out["speedup_predicted"][std::size_t(out["gamma"]) - 1])));

  const json itself = json::parse(cli::run("score --model " + drafter + " --draft " + drafter +
                                           " --json --text '" + sentence + "'")
                                      .out);
  for (const double x : itself["overlap"]) CHECK(x == Approx(1).epsilon(1e-5));
}

TEST_CASE(
    "score prints a line for each token, and is not confused by texts of one token or of strange "
    "bytes") {
  const cli::ran r = cli::run("score --model " + target + " --draft " + drafter +
                              " --text 'the heaven and the earth'");
  CHECK(r.status == 0);
  for (const char* word : {"logprob", "overlap", "nll", "perplexity", "too short"})
    CHECK(r.out.find(word) != std::string::npos);
  CHECK(cli::run("score --model " + target + " --draft " + drafter + " --text '" + sentence + "'")
            .out.find("drafting ") != std::string::npos);
  const json one =
      json::parse(cli::shell("printf '\\377\\n' | " + std::string(SPECAGG_CLI) + " score --model " +
                             target + " --json --text-file /dev/stdin")
                      .out);
  CHECK(one["ids"].size() == one["logprobs"].size());
}

TEST_CASE("score refuses what it cannot use in one line, with status 2") {
  const std::string model = "score --model " + target;
  cli::refuses("score", {"--model"});
  cli::refuses(model, {"--text"});
  cli::refuses(model + " --text a --text-file /dev/null", {"--text"});
  cli::refuses(model + " --text-file /nowhere", {"/nowhere", "cannot be read"});
  cli::refuses("score --model /nowhere.gguf --text a", {"/nowhere.gguf"});
  cli::refuses(model + " --draft /nowhere.gguf --text a", {"/nowhere.gguf"});
  cli::refuses(model + " --backend tpu --text a", {"tpu"});
  std::string longer;
  for (int i = 0; i < 3000; ++i) longer += "heaven ";
  cli::refuses(model + " --text '" + longer + "'", {"text", "tokens, the context holds"});
}
