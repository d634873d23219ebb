// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/llama.hpp>  // first: it puts the library's intrinsics before Eigen's
#include <specagg/backend/cuda/llama.hpp>
#include <specagg/backend/cuda/llama_weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <specagg/text.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/rows/process.hpp>
#include <string>
#include <vector>

#include "backend/cpu/gguf_writer.hpp"
#include "cuda/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using test::bundled, test::on_device, test::some_tokens, test::rows_of, test::same_bits;

static_assert(LogitSource<cuda::llama>);

namespace {

// Largest difference of two rows of logits, in units of the largest logit.
double distance(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double apart = 0, most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    apart = std::max(apart, std::abs(double{a[i]} - double{b[i]}));
    most = std::max(most, std::abs(double{b[i]}));
  }
  return apart / most;
}
// The same tokens, on the device and on the CPU.
double distance_to_cpu(const std::shared_ptr<const cpu::llama_weights>& weights,
                       std::size_t tokens) {
  cuda::llama model(on_device(weights));
  cpu::llama reference(weights);
  const auto some = some_tokens(tokens, weights->vocab);
  return distance(rows_of(model, some), rows_of(reference, some));
}

// The CPU rounds keys and values to f16.
const double tolerance = 5e-4, bf16_tolerance = 2e-3;

}  // namespace

TEST_CASE(
    "on the device, the bundled models' logits are the CPU's but for rounding, greedy "
    "continuations the reference") {
  for (const std::string name : {"draft", "target"}) {
    const auto host = bundled(name);
    const auto weights = on_device(host);
    for (const auto& r : nlohmann::json::parse(
             std::ifstream(std::string(SPECAGG_MODELS) + "/" + name + ".reference.json"))) {
      const auto ids = r["ids"].get<std::vector<token_id>>();
      cuda::llama model(weights);
      cpu::llama reference(host);
      const auto logits = rows_of(model, ids);
      CHECK(distance(logits, rows_of(reference, ids)) < tolerance);
      std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(host->vocab),
                              logits.end());
      std::vector<token_id> greedy;
      for (std::size_t i = 0; i < r["greedy_continuation_ids"].size(); ++i) {
        greedy.push_back(
            static_cast<token_id>(std::max_element(last.begin(), last.end()) - last.begin()));
        REQUIRE(model.extend(std::span(&greedy.back(), 1), last) == status::ok);
      }
      CHECK(greedy == r["greedy_continuation_ids"].get<std::vector<token_id>>());
    }
  }
}

TEST_CASE(
    "on the device, logits have the same bits fed at once, one by one, in random parts, after "
    "rollbacks") {
  const test::gguf_bytes odd(test::odd_model().write().bytes());
  for (const auto& host : {bundled("draft"), test::weights_of(odd)}) {
    const auto vocab = host->vocab;
    const auto tokens = some_tokens(45, vocab);
    const auto weights = on_device(host);
    cuda::llama at_once(weights), model(weights);
    const auto expected = rows_of(at_once, tokens);
    const auto row = [&](std::size_t i, std::size_t n) {
      return std::span(expected).subspan(i * vocab, n * vocab);
    };
    for (std::size_t i = 0; i < tokens.size(); ++i)
      REQUIRE(same_bits(rows_of(model, std::span(tokens).subspan(i, 1)), row(i, 1)));
    std::mt19937 random(5);
    for (std::size_t i = 0, steps = 0; steps < 12; ++steps) {
      // back to anywhere, over wrong tokens of another future
      i = random() % 3 == 0 ? random() % (i + 1) : i;
      (void)model.rollback(i);
      rows_of(model, some_tokens(random() % 4, vocab, 99));
      (void)model.rollback(i);
      CHECK(model.position() == i);
      const auto n = std::min<std::size_t>(tokens.size() - i, random() % 25);
      REQUIRE(same_bits(rows_of(model, std::span(tokens).subspan(i, n)), row(i, n)));
      i += n;
    }
  }
}

TEST_CASE(
    "on the device, only the last rows are written when fewer are wanted, none for a mere "
    "prefill") {
  const auto weights = on_device(bundled("draft"));
  const auto vocab = weights->host().vocab;
  const auto tokens = some_tokens(37, vocab);
  cuda::llama model(weights);
  const auto all = rows_of(model, tokens);
  for (std::size_t wanted : {0u, 1u, 15u, 16u, 17u, 33u, 36u}) {
    (void)model.rollback(0);
    std::vector<float> logits(wanted * vocab);
    REQUIRE(model.extend(tokens, logits) == status::ok);
    CHECK(same_bits(logits, std::span(all).last(logits.size())));
    CHECK(model.position() == tokens.size());
  }
}

TEST_CASE(
    "the device computes every tensor type, tied and separate output, and sizes that are no "
    "multiple of 16") {
  const auto apart = [](const test::small_model& m) {
    const test::gguf_bytes bytes(m.write().bytes());
    return distance_to_cpu(test::weights_of(bytes), 20);
  };
  for (const auto type : {cpu::tensor_type::f32, cpu::tensor_type::f16})
    CHECK(apart({.type = type}) < tolerance);
  // The numbers of Q8_0 are those of F32 here. (With Q8_0 the CPU rounds activations, the device
  // does not.)
  {
    const test::gguf_bytes bytes(test::small_model{.type = cpu::tensor_type::q8_0}.write().bytes()),
        floats(test::small_model{}.write().bytes());
    cuda::llama model(on_device(test::weights_of(bytes)));
    cpu::llama reference(test::weights_of(floats));
    const auto some = some_tokens(20, reference.vocab_size());
    CHECK(distance(rows_of(model, some), rows_of(reference, some)) < tolerance);
  }
  CHECK(apart({.type = cpu::tensor_type::bf16}) < bf16_tolerance);
  CHECK(apart({.separate_output = -1}) < tolerance);
  CHECK(apart(test::odd_model()) < tolerance);
  // heads of 192
  CHECK(apart({.dim = 576, .heads = 3, .kv_heads = 3, .ffn = 32, .blocks = 1}) < tolerance);
}

TEST_CASE("on the device, attention reaches back over many positions") {
  CHECK(distance_to_cpu(bundled("draft"), 300) < tolerance);
}

TEST_CASE(
    "a session on the device answers with a status, and appends nothing, when tokens do not fit or "
    "are none") {
  const test::gguf_bytes bytes(test::small_model{.context = 35}.write().bytes());
  const auto weights = on_device(test::weights_of(bytes));
  const auto vocab = weights->host().vocab;
  cuda::llama model(weights), other(weights);
  CHECK(model.capacity() == 35);
  CHECK(cuda::llama(weights, 20).capacity() == 20);
  std::vector<float> row(vocab);
  const auto tokens = some_tokens(36, vocab);
  CHECK(model.extend(tokens, {}) == status::context_full);
  CHECK(model.position() == 0);
  const auto expected = rows_of(other, std::span(tokens).first(35));
  CHECK(model.extend(std::span(tokens).first(34), {}) == status::ok);
  for (token_id bad :
       {no_token, static_cast<token_id>(vocab), std::numeric_limits<token_id>::min()}) {
    const token_id one[] = {bad};
    CHECK(model.extend(one, row) == status::token_out_of_range);
    CHECK(model.extend_on_device(one, 1) == status::token_out_of_range);
  }
  CHECK(model.extend(std::span(tokens).first(2), row) == status::context_full);
  CHECK(model.extend({}, row) == status::invalid_parameter);
  CHECK(model.extend(std::span(tokens).first(1), std::span(row).first(vocab - 1)) ==
        status::invalid_parameter);
  CHECK(model.extend_on_device(std::span(tokens).first(1), 2) == status::invalid_parameter);
  CHECK(model.position() == 34);
  CHECK(model.extend({}, {}) == status::ok);
  CHECK(model.extend(std::span(tokens).subspan(34, 1), row) == status::ok);
  CHECK(same_bits(row, std::span(expected).last(vocab)));
  CHECK(model.position() == model.capacity());
  CHECK(model.extend(std::span(tokens).first(1), row) == status::context_full);
  (void)model.rollback(1000);
  CHECK(model.position() == 35);
  (void)model.rollback(3);
  CHECK(model.extend_on_device(std::span(tokens).first(20), 17) == status::invalid_parameter);
}

TEST_CASE(
    "a session on the device that holds another text goes on from what the two have in common") {
  const auto host = bundled("draft");
  const auto weights = on_device(host);
  cuda::llama used(weights), fresh(weights);
  no_processor none;
  std::vector<float> logits(host->vocab), due(host->vocab);
  const auto before = some_tokens(20, host->vocab);
  REQUIRE(used.extend_on_device(std::span(before).first(8), 0) == status::ok);
  REQUIRE(used.extend(std::span(before).subspan(8), {}) == status::ok);
  CHECK(std::ranges::equal(used.tokens(), before));
  CHECK(used.extend(std::vector<token_id>{1, -1}, {}) == status::token_out_of_range);
  CHECK(std::ranges::equal(used.tokens(), before));
  for (const std::size_t common : {12u, 0u}) {
    std::vector<token_id> text = before;  // as long as the text before
    for (std::size_t i = common; i < text.size(); ++i)
      text[i] = (text[i] + 1) % token_id(host->vocab);
    REQUIRE(score(std::span<const token_id>(text), used, none, std::span(logits)) == status::ok);
    REQUIRE(fresh.rollback(0) == status::ok);
    REQUIRE(fresh.extend(text, due) == status::ok);
    CHECK(same_bits(logits, due));
    CHECK(std::ranges::equal(used.tokens(), text));
  }
}

TEST_CASE("logits stay on the device for what the stream does next. Two models share it") {
  const auto on = std::make_shared<const cuda::device>();
  const auto target_weights = on_device(bundled("target"), on),
             draft_weights = on_device(bundled("draft"), on);
  cuda::llama target(target_weights), draft(draft_weights), alone(draft_weights);
  CHECK(target.stream() == draft.stream());
  const auto vocab = draft.vocab_size();
  const auto tokens = some_tokens(40, vocab);
  const auto expected = rows_of(alone, tokens);
  // A prompt, then token by token, the other model's steps in between, and nobody waits.
  REQUIRE(draft.extend_on_device(std::span(tokens).first(30), 5) == status::ok);
  for (std::size_t i = 30; i < 40; ++i) {
    REQUIRE(target.extend_on_device(std::span(tokens).subspan(i, 1), 1) == status::ok);
    REQUIRE(draft.extend_on_device(std::span(tokens).subspan(i, 1), 1) == status::ok);
  }
  // Rows of neighbouring positions are neighbours, as verification wants them: these begin at 14 of
  // a ring of 16.
  std::vector<float> row(vocab), five(5 * vocab);
  REQUIRE(cudaMemcpyAsync(five.data(), draft.logits_at(30), 4 * five.size(), cudaMemcpyDeviceToHost,
                          draft.stream()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(draft.stream()) == cudaSuccess);
  CHECK(same_bits(five, std::span(expected).subspan(30 * vocab, 5 * vocab)));
  for (std::size_t i = 25; i < 40; ++i) {
    REQUIRE(cudaMemcpyAsync(row.data(), draft.logits_at(i), 4 * vocab, cudaMemcpyDeviceToHost,
                            draft.stream()) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(draft.stream()) == cudaSuccess);
    CHECK(same_bits(row, std::span(expected).subspan(i * vocab, vocab)));
  }
}

TEST_CASE(
    "weights that the device cannot hold are refused by name. Weights that are no numbers give "
    "NaN") {
  const auto refusal = [](const std::string& bytes) {
    const test::gguf_bytes kept(bytes);
    return test::error_of([&] { on_device(test::weights_of(kept)); });
  };
  const auto bytes = test::small_model{}.write().bytes();
  const auto with_last = [&](float x, std::size_t from_the_end = 1) {
    auto changed = bytes;
    std::memcpy(changed.data() + changed.size() - 4 * from_the_end, &x, 4);
    return changed;
  };
  CHECK(refusal(bytes) == "");
  CHECK(refusal(with_last(1e5f))
            .find("test.gguf: tensor blk.1.ffn_down.weight: has a number beyond") == 0);
  CHECK(refusal(
            test::small_model{.dim = 1040, .heads = 4, .kv_heads = 4, .blocks = 1}.write().bytes())
            .find("test.gguf: metadata llama.attention.key_length: is 260 (the CUDA backend takes "
                  "at most 256)") == 0);
  for (const std::size_t place : {1u, 8u, 20u}) {
    const test::gguf_bytes kept(with_last(std::numeric_limits<float>::quiet_NaN(), place));
    cuda::llama model(on_device(test::weights_of(kept)));
    CHECK(std::isnan(rows_of(model, some_tokens(3, model.vocab_size())).back()));
  }
}
