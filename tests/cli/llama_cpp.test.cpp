// SPDX-License-Identifier: Apache-2.0
// generate and score with --backend llama.cpp.
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/generated.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using cli::generated, cli::ran, cli::refuses, cli::run;

TEST_CASE("the option --exact-batches is for llama.cpp") {
  refuses("generate --exact-batches 1", {"--exact-batches", "--backend llama.cpp"});
  refuses("score --model " SPECAGG_MODELS "/draft.gguf --text x --exact-batches 1",
          {"--exact-batches", "--backend llama.cpp"});
  refuses("generate --backend llama.cpp --exact-batches 0", {"--exact-batches", "0"});
}

#ifdef SPECAGG_CLI_LLAMA_CPP

TEST_CASE("llama.cpp: greedy texts are those of the CPU backend, with every decoder") {
  const std::string greedy = "--temperature 0 --max-tokens 60 --prompt 'And it came to pass' ";
  for (const std::string options : {"--gamma 0", "--gamma 4", "--decoder tree --tree 3,2", "--draft lookup"}) {
    INFO(options);
    const auto there = generated(greedy + options + " --backend llama.cpp");
    CHECK(there["tokens"] == generated(greedy + options)["tokens"]);
    CHECK(there["backend"] == "llama.cpp");
  }
  CHECK(generated(greedy + "--backend llama.cpp")["accepted"] > 5);
}

TEST_CASE("llama.cpp: with --exact-batches a text with drafts is the target's own, log-probabilities too") {
  for (const std::string exact : {"1", "4"}) {
    const auto j = generated("--compare --max-tokens 80 --temperature 0 --backend llama.cpp --exact-batches " + exact);
    CHECK(j["identical_to_target_alone"] == true);
    CHECK(j["tokens"] == j["target_alone"]["tokens"]);
    CHECK(j["logprob_target"] == j["target_alone"]["logprob_target"]);
    CHECK(j["accepted"] > 10);
  }
  refuses("generate --decoder tree --backend llama.cpp --exact-batches 1", {"scores no trees", "--exact-batches"});
}

TEST_CASE("llama.cpp: score gives the CPU backend's likelihoods within 0.02 a token") {
  const std::string what = "score --json --model " SPECAGG_MODELS "/target.gguf --text 'It was a fair day in Verona.' ";
  const auto of = [&](const std::string& options) { return nlohmann::json::parse(run(what + options).out); };
  const auto here = of(""), there = of("--backend llama.cpp");
  REQUIRE(here["ids"] == there["ids"]);
  for (std::size_t i = 1; i < here["ids"].size(); ++i)
    CHECK(there["logprobs"][i].get<double>() == Approx(here["logprobs"][i].get<double>()).margin(0.02));
}

TEST_CASE("llama.cpp: what it cannot load is refused in one line") {
  refuses("generate --backend llama.cpp --target /nonexistent.gguf", {"/nonexistent.gguf", "libllama cannot load it"});
  refuses("generate --backend llama.cpp --chat", {"target.gguf", "tokenizer.chat_template", "is missing"});
}

TEST_CASE("SmolLM2: llama.cpp answers in a conversation, and drafts of another vocabulary are mapped") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const ran r = run("generate --json --chat --backend llama.cpp --temperature 0 --max-tokens 12 --target " + file +
                    " --prompt 'What is the capital of France?'");
  INFO(r.out);
  REQUIRE(r.status == 0);
  const auto j = nlohmann::json::parse(r.out);
  CHECK(j["text"].get<std::string>().find("Paris") != std::string::npos);
  const auto mapped =
      generated("--max-tokens 8 --backend llama.cpp --target " + file + " --draft " SPECAGG_MODELS "/draft.gguf");
  CHECK(mapped["mapped"][0]["tokens"] == 3336);
}

#else

TEST_CASE("a build without libllama says how to get it") {
  refuses("generate --backend llama.cpp", {"--backend llama.cpp", "no libllama", "scripts/get-llama-cpp"});
}

#endif
