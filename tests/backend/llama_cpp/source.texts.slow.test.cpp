// SPDX-License-Identifier: Apache-2.0
// Whole answers of SmolLM2 in libllama, 20 prompts, 128 tokens each, with drafts by lookup.
#include <specagg/decoders.hpp>

#include <specagg/backend/llama_cpp/chat_template.hpp>
#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;

namespace {
// The prompt, and what the target writes alone.
std::vector<token_id> greedy(llama_cpp::source& s, const std::vector<token_id>& prompt,
                             std::size_t most, const end_tokens& end_of_text) {
  std::vector<token_id> text(prompt);
  std::vector<float> logits(s.vocab_size());
  REQUIRE(s.rollback(0) == status::ok);
  REQUIRE(s.extend(std::span(text).first(prompt.size() - 1), {}) == status::ok);
  while (text.size() < prompt.size() + most) {
    REQUIRE(s.extend(std::span(text).last(1), logits) == status::ok);
    text.push_back(token_id(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (end_of_text.contains(text.back())) break;
  }
  return text;
}
}  // namespace

TEST_CASE(
    "SmolLM2: with exact batches 20 texts with drafts are the target's own, each token the argmax "
    "of its row") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  std::set<std::string> prompts;  // in the order of their names
  for (const auto& entry :
       std::filesystem::directory_iterator(SPECAGG_SOURCE_DIR "/research/prompts"))
    if (entry.path().extension() == ".txt") prompts.insert(entry.path().string());
  REQUIRE(prompts.size() >= 20);
  test::loaded model(file, test::small_context(2048), {.exact_batches = 1});
  const llama_cpp::tokenizer tokens(model.model);
  const llama_cpp::chat_template turns(tokens, file);
  const auto ends = tokens.end_of_generation();
  auto& s = model.source;
  const std::size_t V = s.vocab_size(), most = 128, gamma = 4;
  const end_tokens end_of_text(ends);
  std::size_t texts = 0, emitted = 0, drafted = 0, accepted = 0, wrong = 0, differ = 0;
  for (const std::string& path : prompts) {
    if (texts++ == 20) break;
    std::ifstream in(path);
    const auto prompt = turns.first(std::nullopt, {std::istreambuf_iterator<char>(in), {}});
    const std::vector<token_id> alone = greedy(s, prompt, most, end_of_text);
    REQUIRE(s.rollback(prompt.size() - 1) == status::ok);
    std::vector<token_id> buffer(prompt);
    buffer.resize(prompt.size() + most + gamma);
    text t{buffer, prompt.size()};
    lookup_drafter<float> drafts(V, buffer.size());
    drafting_workspace<float, lookup_drafter<float>::row_type> work(
        V, {.gamma = gamma, .sample = {.temperature = 0}, .end_of_text = end_of_text});
    random_streams random(1);
    const status why = speculative_decode(
        drafts, s, lossless{}, random,
        {.text = t,
         .most = most,
         .work = work,
         .after_round = [&](const speculative_result& r, const auto& w) {
           drafted += r.drafted;
           accepted += r.accepted;
           emitted += r.emitted;
           for (std::size_t i = 0; i < r.emitted; ++i) {
             const auto row = test::row(w.target_logits, i, V);
             wrong += token_id(std::max_element(row.begin(), row.end()) - row.begin()) !=
                      w.emissions[i].token;
           }
         }});
    REQUIRE(why == status::ok);
    const bool same =
        t.size == alone.size() && std::equal(alone.begin(), alone.end(), buffer.begin());
    differ += !same;
    INFO(path);
    CHECK(same);
  }
  std::printf(
      "%zu tokens, %zu drafted, %zu accepted; %zu texts differ, %zu tokens are not the argmax\n",
      emitted, drafted, accepted, differ, wrong);
  CHECK(wrong == 0);
  CHECK(drafted > accepted);
  CHECK(accepted > 100);
}
