// SPDX-License-Identifier: Apache-2.0
// Calls of one size: libllama computes them alike, so rows and texts do not depend on how tokens
// were grouped.
#include <specagg/decoders.hpp>

#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "backend/cpu/models.hpp"
#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
using test::loaded;
using test::row;
using test::rows_in_calls;
using test::same_bits;
using test::small_context;
using test::some_tokens;

namespace {

// Rows of the tokens after the first `begin`.
void check_equal_rows(const std::string& file, std::size_t exact, std::size_t count, bool flash,
                      int threads = 1, std::size_t begin = 0) {
  INFO(file << ", calls of " << exact << ", flash attention " << flash << ", threads " << threads);
  auto how = small_context(1024);
  how.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  how.n_threads = how.n_threads_batch = threads;
  loaded model(file, how, {.exact_batches = exact});
  auto& s = model.source;
  CHECK(s.capacity() == 1024 - (exact - 1));
  const std::size_t V = s.vocab_size();
  const auto all = some_tokens(begin + count, V, 11);
  const auto tokens = std::span(all).subspan(begin);
  const auto in_calls = [&](const std::vector<std::size_t>& sizes) {
    REQUIRE(s.rollback(begin) == status::ok);
    std::vector<float> rows;
    for (std::size_t i = 0, k = 0; i < count; ++k) {
      const auto some =
          test::rows_of(s, tokens.subspan(i, std::min(sizes[k % sizes.size()], count - i)));
      rows.insert(rows.end(), some.begin(), some.end());
      i += some.size() / V;
    }
    return rows;
  };
  REQUIRE(s.extend(std::span(all).first(begin), {}) == status::ok);
  const auto expected = in_calls({1});
  for (const auto& sizes : {std::vector<std::size_t>{2, 5, 1, 9, 3}, {count}, {count / 2}})
    REQUIRE(same_bits(in_calls(sizes), expected));
  std::mt19937 random(7);
  for (int i = 0; i < 6; ++i) {
    const std::size_t at = random() % count,
                      n = 1 + random() % std::min<std::size_t>(8, count - at);
    REQUIRE(s.rollback(begin + at) == status::ok);
    REQUIRE(s.extend(some_tokens(1 + random() % 6, V, 99), {}) == status::ok);
    REQUIRE(s.rollback(begin + at) == status::ok);
    REQUIRE(same_bits(test::rows_of(s, tokens.subspan(at, n)),
                      std::span(expected).subspan(at * V, n * V)));
    if (at + n < count)
      REQUIRE(same_bits(test::rows_of(s, tokens.subspan(at + n)),
                        std::span(expected).subspan((at + n) * V)));
  }
}

}  // namespace

TEST_CASE(
    "exact batches: rows have the same bits in any calls, after rollbacks, on 1 and 2 threads") {
  for (const std::size_t exact : {1u, 2u, 8u})
    for (const bool flash : {false, true})
      check_equal_rows(test::bundled_file("target"), exact, 90, flash);
  for (const std::size_t exact : {1u, 4u})  // beyond 512 positions attention is cut in parts
    check_equal_rows(test::bundled_file("draft"), exact, 25, true, 2, 505);
}

TEST_CASE("without exact batches rows depend on the size of the call, within 0.02") {
  loaded model(test::bundled_file("target"));
  const auto tokens = some_tokens(90, 4096, 11);
  const auto one = rows_in_calls(model.source, tokens, {1}),
             five = rows_in_calls(model.source, tokens, {5});
  // if this fails, docs/llama_cpp.md has to say that libllama has changed
  CHECK(!same_bits(one, five));
  CHECK(test::difference(one, five) < 0.02);
}

TEST_CASE("exact batches of one hold for a recurrent model, too") {
  const test::temporary_file file(test::recurrent_model());
  loaded model(file.path(), small_context(), {.exact_batches = 1});
  const auto tokens = some_tokens(40, model.source.vocab_size());
  const auto expected = rows_in_calls(model.source, tokens, {1});
  CHECK(same_bits(rows_in_calls(model.source, tokens, {3, 7}), expected));
}

TEST_CASE("SmolLM2: exact batches: rows have the same bits in any calls") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  for (const std::size_t exact : {1u, 4u}) check_equal_rows(file, exact, 12, true);
}

TEST_CASE(
    "exact batches: a text with drafts is the target's own, and every decision is the argmax of "
    "its row") {
  for (const std::size_t exact : {1u, 4u}) {
    loaded target(test::bundled_file("target"), small_context(), {.exact_batches = exact});
    loaded draft(test::bundled_file("draft"));
    auto& s = target.source;
    const std::size_t V = s.vocab_size(), most = 128, gamma = 4;
    for (unsigned seed = 0; seed < 4; ++seed) {
      const auto prompt = some_tokens(20 + seed, V, seed);
      std::vector<token_id> alone(prompt);
      std::vector<float> logits(V);
      REQUIRE(s.rollback(0) == status::ok);
      REQUIRE(s.extend(std::span(alone).first(prompt.size() - 1), {}) == status::ok);
      while (alone.size() < prompt.size() + most) {
        REQUIRE(s.extend(std::span(alone).last(1), logits) == status::ok);
        alone.push_back(token_id(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      }
      REQUIRE(s.rollback(0) == status::ok);
      REQUIRE(draft.source.rollback(0) == status::ok);
      std::vector<token_id> buffer(prompt);
      buffer.resize(prompt.size() + most + gamma);
      text t{buffer, prompt.size()};
      speculative_workspace<float> work(V, {.gamma = gamma, .sample = {.temperature = 0}});
      random_streams random(seed);
      std::size_t accepted = 0, wrong = 0;
      const status why = speculative_decode(
          draft.source, s, lossless{}, random,
          {.text = t,
           .most = most,
           .work = work,
           .after_round = [&](const speculative_result& r, const auto& w) {
             accepted += r.accepted;
             for (std::size_t i = 0; i < r.emitted; ++i) {
               const auto given = row(std::span<const float>(w.target_logits), i, V);
               wrong += token_id(std::max_element(given.begin(), given.end()) - given.begin()) !=
                        w.emissions[i].token;
             }
           }});
      REQUIRE(why == status::ok);
      CHECK(std::equal(alone.begin(), alone.end(), buffer.begin()));
      CHECK(wrong == 0);
      CHECK(accepted > 10);
    }
  }
}

TEST_CASE("exact batches: no rows in place beyond a call, and no trees") {
  loaded model(test::bundled_file("draft"), small_context(256, 4),
               {.branches = 3, .exact_batches = 2});
  CHECK(!model.source.scores_trees());
  const auto tokens = some_tokens(5, 4096);
  CHECK(model.source.decode(tokens, 3) == status::invalid_parameter);
  REQUIRE(model.source.decode(tokens, 1) == status::ok);
  const std::vector<float> in_place(model.source.row(0).begin(), model.source.row(0).end());
  REQUIRE(model.source.rollback(0) == status::ok);
  const auto rows = test::rows_of(model.source, tokens);
  CHECK(same_bits(in_place, row(rows, 4, 4096)));
}
