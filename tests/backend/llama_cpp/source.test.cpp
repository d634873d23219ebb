// SPDX-License-Identifier: Apache-2.0
// Models that libllama runs, as sources of logits and of trees.
#include <specagg/decoders.hpp>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
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

void check_against_cpu(const std::string& file, std::span<const token_id> tokens,
                       double tolerance) {
  loaded there(file);
  cpu::llama here(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file)));
  REQUIRE(there.source.vocab_size() == here.vocab_size());
  const auto expected = test::rows_of(here, tokens);
  for (const std::size_t n : {std::size_t(1), std::size_t(5), tokens.size()}) {
    INFO(file << ", calls of " << n);
    CHECK(test::difference(rows_in_calls(there.source, tokens, {n}), expected) < tolerance);
  }
}

}  // namespace

TEST_CASE("bundled models: libllama's logits are those of the CPU backend within 0.03") {
  for (const std::string name : {"draft", "target", "bard", "bible"})
    check_against_cpu(test::bundled_file(name), some_tokens(60, 4096, 3), 0.03);
}

TEST_CASE("SmolLM2: libllama's logits are those of the CPU backend within 3") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  check_against_cpu(
      file, std::vector<token_id>{504, 3575, 282, 4649, 314, 7042, 30, 378, 6403, 982, 281, 260},
      3);
}

TEST_CASE("rows are read in place, and are those that extend() copies") {
  loaded model(test::bundled_file("target"));
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto tokens = some_tokens(300, V);  // more than a call of 128
  std::vector<float> copied(4 * V);
  REQUIRE(s.extend(tokens, copied) == status::ok);
  CHECK(s.position() == 300);
  REQUIRE(s.rollback(0) == status::ok);
  REQUIRE(s.decode(tokens, 4) == status::ok);
  for (std::size_t j = 0; j < 4; ++j) {
    CHECK(s.row(j).data() == llama_get_logits(model.context.get()) + j * V);
    CHECK(same_bits(s.row(j), row(copied, j, V)));
  }
  CHECK(s.hidden(299).empty());  // the context gives none
  REQUIRE(s.rollback(0) == status::ok);
  CHECK(s.decode(tokens, 129) == status::invalid_parameter);  // more rows than one call has
  CHECK(s.position() == 0);
  std::vector<float> many(200 * V);  // but copied they may be
  REQUIRE(s.extend(tokens, many) == status::ok);
  CHECK(test::difference(row(many, 199, V), row(copied, 3, V)) < 0.02);
}

TEST_CASE("the hidden state times the output matrix is the row") {
  const std::string file = test::bundled_file("target");
  auto how = small_context();
  how.embeddings = true;
  loaded model(file, how);
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  REQUIRE(s.decode(some_tokens(9, V), 3) == status::ok);
  const cpu::llama_weights weights(cpu::gguf_file::open(file), false);
  std::vector<float> embedding(weights.dim);
  CHECK(s.hidden(5).empty());  // there was no row
  CHECK(s.hidden(9).empty());
  for (std::size_t j = 0; j < 3; ++j) {
    REQUIRE(s.hidden(6 + j).size() == weights.dim);
    for (const std::size_t v : {0u, 17u, 4095u}) {
      cpu::read_row(weights.embedding, v, embedding.data());  // the output matrix is tied to it
      double sum = 0;
      for (std::size_t c = 0; c < weights.dim; ++c)
        sum += double{embedding[c]} * double{s.hidden(6 + j)[c]};
      CHECK(s.row(j)[v] == Approx(sum).margin(0.02));
    }
  }
  REQUIRE(s.rollback(7) == status::ok);
  CHECK(s.hidden(6).size() == weights.dim);
  CHECK(s.hidden(7).empty());
  REQUIRE(s.rollback(3) == status::ok);
  REQUIRE(s.extend(some_tokens(4, V), {}) == status::ok);  // no rows
  CHECK(s.hidden(6).empty());
}

TEST_CASE("after a rollback a row is what it was, and what is refused appends nothing") {
  loaded model(test::bundled_file("target"));
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto tokens = some_tokens(40, V);
  const auto expected = rows_in_calls(s, tokens, {1});
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    const std::size_t at = random() % 40, wrong = 1 + random() % 3;
    REQUIRE(s.rollback(at) == status::ok);
    for (const token_id t : some_tokens(wrong, V, 99)) test::rows_of(s, std::span(&t, 1));
    REQUIRE(s.rollback(at) == status::ok);
    REQUIRE(s.position() == at);
    for (std::size_t k = at; k < 40; ++k)
      REQUIRE(same_bits(test::rows_of(s, std::span(tokens).subspan(k, 1)), row(expected, k, V)));
  }
  REQUIRE(s.rollback(50) == status::ok);  // beyond what there is: nothing is removed
  CHECK(s.position() == 40);
  std::vector<float> logits(3 * V);
  const std::vector<token_id> outside = {1, 2, token_id(V)}, negative = {1, no_token};
  CHECK(s.extend(outside, {}) == status::token_out_of_range);
  CHECK(s.extend(negative, {}) == status::token_out_of_range);
  // three rows of two tokens
  CHECK(s.extend(std::span(tokens).first(2), logits) == status::invalid_parameter);
  CHECK(s.extend(std::span(tokens).first(3), std::span(logits).first(V + 1)) ==
        status::invalid_parameter);
  CHECK(s.capacity() == 512);
  CHECK(s.extend(some_tokens(473, V), {}) == status::context_full);
  CHECK(s.position() == 40);
  REQUIRE(s.extend(some_tokens(472, V), {}) == status::ok);
  CHECK(s.position() == s.capacity());
  REQUIRE(s.rollback(39) == status::ok);
  CHECK(same_bits(test::rows_of(s, std::span(tokens).subspan(39)), row(expected, 39, V)));
}

TEST_CASE("libllama's own refusals are statuses: no cell is left, the caller stops it") {
  auto how = small_context(256, 2);  // two sequences share 256 cells
  loaded model(test::bundled_file("target"), how);
  llama_cpp::source other(model.context.get(), {.sequence = 1});
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  REQUIRE(other.extend(some_tokens(200, V, 7), {}) == status::ok);
  REQUIRE(s.extend(some_tokens(40, V), {}) == status::ok);
  {
    const llama_cpp::quiet_log log;
    CHECK(s.extend(some_tokens(100, V), {}) == status::context_full);
  }
  CHECK(s.position() == 40);
  std::atomic<bool> stop = true;
  s.stop_when(&stop);
  CHECK(s.extend(some_tokens(5, V), {}) == status::stopped);
  CHECK(s.position() == 40);
  stop = false;
  REQUIRE(s.extend(some_tokens(5, V), {}) == status::ok);
  s.stop_when(nullptr);
  // The sequences do not see each other.
  loaded alone(test::bundled_file("target"));
  REQUIRE(alone.source.extend(some_tokens(40, V), {}) == status::ok);
  REQUIRE(alone.source.extend(some_tokens(5, V), {}) == status::ok);
  const token_id next = 77;
  CHECK(test::difference(test::rows_of(s, std::span(&next, 1)),
                         test::rows_of(alone.source, std::span(&next, 1))) < 1e-3);
}

TEST_CASE("a call that is stopped in the middle leaves the text as it was") {
  auto how = small_context(512);
  how.n_ubatch = 16;
  loaded model(test::bundled_file("target"), how);
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto tokens = some_tokens(200, V);
  const auto expected = rows_in_calls(s, std::span(tokens).first(30), {1});
  std::atomic<bool> stop = false;
  s.stop_when(&stop);
  std::size_t stopped = 0;
  for (int i = 0; i < 40 && stopped < 3; ++i) {
    REQUIRE(s.rollback(20) == status::ok);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
      stop = true;
    });
    const status why = s.extend(std::span(tokens).subspan(20), {});
    later.join();
    stop = false;
    if (why == status::ok) continue;
    ++stopped;
    REQUIRE(why == status::stopped);
    REQUIRE(s.position() == 20);
    for (std::size_t k = 20; k < 30; ++k)
      REQUIRE(same_bits(test::rows_of(s, std::span(tokens).subspan(k, 1)), row(expected, k, V)));
  }
  CHECK(stopped > 0);
}

TEST_CASE("a recurrent state refuses to go back, but for the beginning, and scores no trees") {
  const test::temporary_file file(test::recurrent_model());
  loaded model(file.path(), small_context(256, 3), {.branches = 2});
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto tokens = some_tokens(12, V);
  const auto expected = rows_in_calls(s, tokens, {1});
  CHECK(s.rollback(11) == status::rollback_refused);
  CHECK(s.rollback(1) == status::rollback_refused);
  CHECK(s.position() == 12);  // nothing was forgotten:
  const auto after = test::rows_of(s, std::span(tokens).first(1));
  REQUIRE(s.rollback(0) == status::ok);
  CHECK(same_bits(rows_in_calls(s, tokens, {1}), expected));
  CHECK(same_bits(test::rows_of(s, std::span(tokens).first(1)), after));
  CHECK(!s.scores_trees());
  const std::uint32_t parent = 0;
  CHECK(s.extend_tree(std::span(tokens).first(1), std::span(&parent, 1), {}) ==
        status::invalid_parameter);
}

TEST_CASE(
    "speculative decoding with a recurrent target feeds the text again, and emits the target's own "
    "text") {
  const test::temporary_file file(test::recurrent_model());
  loaded target(file.path(), small_context(), {.exact_batches = 1});
  auto& s = target.source;
  const std::size_t V = s.vocab_size();
  std::vector<token_id> alone = {1, 100, 101};
  std::vector<float> logits(V);
  REQUIRE(s.extend(std::span(alone).first(2), {}) == status::ok);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(s.extend(std::span(alone).last(1), logits) == status::ok);
    alone.push_back(token_id(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  REQUIRE(s.rollback(0) == status::ok);
  std::vector<token_id> buffer(alone);
  buffer.resize(64);
  text t{buffer, 3};
  lookup_drafter<float> drafts(V, 64, nullptr, 1);
  drafting_workspace<float, lookup_drafter<float>::row_type> work(
      V, {.gamma = 3, .sample = {.temperature = 0}});
  random_streams random(1);
  std::size_t emitted = 0, accepted = 0, drafted = 0;
  const status why = speculative_decode(drafts, s, lossless{}, random,
                                        {.text = t,
                                         .most = 20,
                                         .work = work,
                                         .accept = [&](const emission&) { return ++emitted < 20; },
                                         .after_round =
                                             [&](const speculative_result& r, const auto&) {
                                               accepted += r.accepted;
                                               drafted += r.drafted;
                                             }});
  CHECK(why == status::ok);
  CHECK(drafted > accepted);  // so the target had to go back
  CHECK(std::vector<token_id>(buffer.begin(), buffer.begin() + 23) == alone);
}

TEST_CASE(
    "a window of attention whose older tokens are gone refuses to go back. One that keeps all does "
    "not") {
  const test::temporary_file file(test::window_model(16));
  for (const bool full : {false, true}) {
    auto how = small_context(512);
    how.swa_full = full;
    how.n_batch = how.n_ubatch = 32;
    loaded model(file.path(), how);
    auto& s = model.source;
    const std::size_t V = s.vocab_size();
    const auto tokens = some_tokens(400, V);
    const auto expected = rows_in_calls(s, tokens, {1});
    REQUIRE(s.rollback(397) == status::ok);
    CHECK(same_bits(test::rows_of(s, std::span(tokens).subspan(397, 1)), row(expected, 397, V)));
    INFO("swa_full " << full);
    const status far = s.rollback(20);
    CHECK(far == (full ? status::ok : status::rollback_refused));
    CHECK(s.position() == (full ? 20 : 398));
    const std::size_t at = s.position();
    CHECK(same_bits(test::rows_of(s, std::span(tokens).subspan(at, 1)), row(expected, at, V)));
    REQUIRE(s.rollback(0) == status::ok);
    CHECK(same_bits(test::rows_of(s, std::span(tokens).first(1)), row(expected, 0, V)));
  }
}

TEST_CASE("a text that was saved goes on elsewhere with the rows that it has here") {
  const test::temporary_file window(test::window_model(16)), recurrent(test::recurrent_model());
  for (const std::string& file : {test::bundled_file("draft"), window.path(), recurrent.path()}) {
    INFO(file);
    loaded here(file, small_context(256)), there(file, small_context(128, 2));
    llama_cpp::source& a = here.source;
    llama_cpp::source b(there.context.get(), {.sequence = 1});
    const std::size_t V = a.vocab_size();
    const auto tokens = some_tokens(40, V), other = some_tokens(50, V, 8);
    REQUIRE(a.extend(std::span(tokens).first(30), {}) == status::ok);
    const auto bytes = a.save();
    REQUIRE(!bytes.empty());
    REQUIRE(there.source.extend(other, {}) == status::ok);  // another sequence of that context
    REQUIRE(b.extend(std::span(other).first(3), {}) == status::ok);
    const auto saved = std::span(tokens).first(30);
    REQUIRE(b.restore(bytes, saved) == status::ok);
    CHECK(std::ranges::equal(b.tokens(), saved));
    for (std::size_t i = 30; i < 40; ++i) {
      const auto next = std::span(tokens).subspan(i, 1);
      REQUIRE(test::difference(test::rows_of(b, next), test::rows_of(a, next)) < 0.02);
    }
    CHECK(there.source.position() == 50);
    CHECK(b.restore(bytes, some_tokens(b.capacity() + 1, V)) == status::context_full);
    CHECK(b.position() == 0);
    CHECK(b.restore(bytes, saved.first(29)) == status::model_failed);
    CHECK(b.position() == 0);
    {
      const llama_cpp::quiet_log log;
      CHECK(b.restore(std::span(bytes).first(bytes.size() / 2), saved) == status::model_failed);
    }
    REQUIRE(b.restore(bytes, saved) == status::ok);  // and it can be used as before
    REQUIRE(a.rollback(0) == status::ok);
    REQUIRE(a.restore(bytes, saved) == status::ok);
    const auto next = std::span(tokens).subspan(30, 1);
    CHECK(test::difference(test::rows_of(b, next), test::rows_of(a, next)) < 0.02);
  }
}

TEST_CASE(
    "a source that holds another text goes on from what the two have in common, or from the "
    "beginning") {
  const test::temporary_file recurrent(test::recurrent_model());
  for (const std::string& file : {test::bundled_file("draft"), recurrent.path()}) {
    INFO(file);
    loaded used(file), fresh(file);
    const std::size_t V = used.source.vocab_size();
    no_processor none;
    std::vector<float> logits(V), due(V);
    const auto before = some_tokens(40, V);
    REQUIRE(score(std::span(before), used.source, none, std::span(logits)) == status::ok);
    for (const std::size_t common : {25u, 0u}) {
      std::vector<token_id> text = some_tokens(40, V, 8);  // as long as the text before
      std::copy_n(before.begin(), common, text.begin());
      REQUIRE(text != before);
      REQUIRE(score(std::span<const token_id>(text), used.source, none, std::span(logits)) ==
              status::ok);
      REQUIRE(fresh.source.rollback(0) == status::ok);
      REQUIRE(fresh.source.extend(text, due) == status::ok);
      CHECK(test::difference(logits, due) < 0.02);
      CHECK(std::ranges::equal(used.source.tokens(), text));
    }
  }
}
TEST_CASE("a source knows its tokens after every call, whether it failed or not") {
  for (const std::size_t exact : {0u, 3u}) {
    loaded model(test::bundled_file("draft"), small_context(256, 2), {.exact_batches = exact});
    llama_cpp::source &a = model.source,
                      b(model.context.get(), {.sequence = 1, .exact_batches = exact});
    const std::size_t V = a.vocab_size();
    const auto tokens = some_tokens(60, V), other = some_tokens(20, V, 8);
    std::vector<token_id> held(tokens.begin(), tokens.begin() + 10);
    const auto holds = [](const llama_cpp::source& s, const std::vector<token_id>& due) {
      return s.position() == due.size() && std::ranges::equal(s.tokens(), due);
    };
    CHECK(holds(a, {}));
    REQUIRE(a.extend(held, {}) == status::ok);
    CHECK(holds(a, held));
    CHECK(a.extend(std::vector<token_id>{1, token_id(V)}, {}) == status::token_out_of_range);
    CHECK(a.extend(some_tokens(a.capacity(), V), {}) == status::context_full);
    CHECK(holds(a, held));
    std::atomic<bool> stop{true};
    a.stop_when(&stop);
    CHECK(a.extend(other, {}) == status::stopped);
    CHECK(holds(a, held));
    a.stop_when(nullptr);
    std::vector<llama_cpp::source::addition> both{{&a, std::span(tokens).subspan(10, 5), {}},
                                                  {&b, other, {}}};
    REQUIRE(llama_cpp::source::extend(both) == status::ok);
    CHECK(holds(a, {tokens.begin(), tokens.begin() + 15}));
    CHECK(holds(b, other));
    REQUIRE(a.rollback(7) == status::ok);
    CHECK(holds(a, {tokens.begin(), tokens.begin() + 7}));
    CHECK(holds(b, other));
    REQUIRE(a.rollback(0) == status::ok);
    CHECK(holds(a, {}));
  }
}
