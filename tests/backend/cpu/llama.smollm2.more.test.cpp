// SPDX-License-Identifier: Apache-2.0
// A model that other people trained and quantised: Q4_1 matrices, a Q8_0 embedding, a byte-level
// BPE tokenizer.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
using namespace specagg::cpu;

#if defined(SPECAGG_PCRE2)

TEST_CASE(
    "SmolLM2: texts have llama.cpp's tokens, and their likelihoods to 1.5 %, of all texts together "
    "to 0.3 %",
    "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const auto weights = std::make_shared<const llama_weights>(gguf_file::open(file));
  const tokenizer tokens(weights->file);
  llama model(weights, std::make_shared<thread_pool>(2));
  const auto known_answers =
      nlohmann::json::parse(std::ifstream(SPECAGG_SOURCE_DIR "/tests/backend/cpu/smollm2.json"));
  REQUIRE(known_answers["texts"].size() == 7);
  double all = 0, all_expected = 0;
  for (const auto& known : known_answers["texts"]) {
    const auto ids = tokens.encode(known["text"].get<std::string>());
    INFO(known["text"]);
    REQUIRE(ids == known["ids"].get<std::vector<token_id>>());
    CHECK(tokens.decode(ids) == known["text"].get<std::string>());
    (void)model.rollback(0);
    const double nll = test::negative_log_likelihood(model, ids);
    const double expected = known["nll"];
    CHECK(nll == Approx(expected).epsilon(0.015));
    all += nll;
    all_expected += expected;
  }
  INFO("all texts: " << all << " nats, " << 100 * (all / all_expected - 1)
                     << " % more than expected");
  CHECK(all == Approx(all_expected).epsilon(0.003));
}

TEST_CASE(
    "SmolLM2: logits have the same bits at once and one by one, on 1, 2 and 4 threads, after "
    "rollbacks",
    "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const auto weights = std::make_shared<const llama_weights>(gguf_file::open(file));
  const tokenizer text(weights->file);
  const auto tokens = text.encode(
      "The committee met on Tuesday to discuss the new bridge. \"We have waited long "
      "enough,\" said the mayor, and nobody in the room disagreed with her.");
  REQUIRE(tokens.size() == 31);
  llama at_once(weights);
  const auto expected = test::rows_of(at_once, tokens);
  const auto row = [&](std::size_t i, std::size_t n) {
    return std::span(expected).subspan(i * weights->vocab, n * weights->vocab);
  };
  for (const unsigned threads : {1u, 2u, 4u}) {
    llama model(weights, std::make_shared<thread_pool>(threads));
    for (std::size_t i = 0; i < 10; ++i)
      REQUIRE(test::same_bits(test::rows_of(model, std::span(tokens).subspan(i, 1)), row(i, 1)));
    CHECK(test::same_bits(test::rows_of(model, std::span(tokens).subspan(10)),
                          row(10, tokens.size() - 10)));
    test::check_rollbacks(model, tokens, expected, threads, 4, 8);
    (void)model.rollback(0);
    CHECK(test::same_bits(test::rows_of(model, tokens), expected));
  }
}

#endif
