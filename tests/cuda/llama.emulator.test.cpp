// SPDX-License-Identifier: Apache-2.0
// What only the emulator can show of backend/cuda/llama.hpp: what it asks of CUDA, and what it does
// when CUDA fails.
#include <specagg/backend/cuda/llama.hpp>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using cuda_emulator::counted, cuda_emulator::order;
using test::on_device, test::some_tokens, test::rows_of, test::same_bits;

namespace {

struct small {
  test::gguf_bytes bytes{test::small_model{.context = 200}.write().bytes()};
  std::shared_ptr<const cpu::llama_weights> host = test::weights_of(bytes);
};

}  // namespace

TEST_CASE("a step is the replay of one graph: nothing is launched, captured or allocated for it") {
  const small m;
  cuda::llama model(on_device(m.host));
  counted() = {};
  const auto tokens = some_tokens(150, model.vocab_size());
  std::vector<float> logits(3 * model.vocab_size());
  std::size_t fed = 0;
  for (const std::size_t count : {1u, 2u, 5u, 16u, 1u, 9u}) {
    REQUIRE(model.extend(std::span(tokens).subspan(fed, count),
                         std::span(logits).first(model.vocab_size())) == status::ok);
    fed += count;
  }
  CHECK(counted().graph_launches == 6);
  REQUIRE(model.extend(std::span(tokens).subspan(fed, 40), logits) == status::ok);
  REQUIRE(model.extend_on_device(std::span(tokens).subspan(fed, 33), 0) == status::ok);
  CHECK(counted().graph_launches == 6 + 3 + 3);
  CHECK(counted().launches == 0);
  CHECK(counted().captured == 0);
  CHECK(counted().allocations == 0);
}

TEST_CASE("the device's threads may run in any order: no barrier is missing") {
  const small m;
  const auto tokens = some_tokens(140, m.host->vocab);
  std::vector<float> expected;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    cuda_emulator::set_order(seed == 0   ? order::forward
                             : seed == 1 ? order::backward
                                         : order::shuffled,
                             seed);
    cuda::llama model(on_device(m.host));
    REQUIRE(model.extend(std::span(tokens).first(120), {}) == status::ok);
    const auto logits = rows_of(model, std::span(tokens).subspan(120));
    if (seed == 0) expected = logits;
    // shared memory starts as NaN
    REQUIRE(std::isfinite(std::accumulate(logits.begin(), logits.end(), 0.f)));
    CHECK(same_bits(logits, expected));
  }
  cuda_emulator::set_order(order::forward);
}

TEST_CASE(
    "whichever call of CUDA fails in a step, the model says so, has appended nothing, and can go "
    "on") {
  const small m;
  const auto tokens = some_tokens(38, m.host->vocab);
  const auto weights = on_device(m.host);
  cuda::llama model(weights), other(weights);
  const auto prompt = std::span(tokens).first(20), next = std::span(tokens).subspan(20);
  REQUIRE(model.extend(prompt, {}) == status::ok);
  REQUIRE(other.extend(prompt, {}) == status::ok);
  const auto expected = rows_of(other, next);
  std::vector<float> logits(next.size() * model.vocab_size());
  std::size_t failures = 0;
  for (;; ++failures) {
    cuda_emulator::fail_call(cudaErrorLaunchFailure, failures);
    const status s = model.extend(next, logits);
    cuda_emulator::fail_call(cudaSuccess);
    if (s == status::ok) break;
    REQUIRE(s == status::model_failed);
    REQUIRE(model.failure() == cudaErrorLaunchFailure);
    REQUIRE(model.position() == 20);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    std::vector<float> one(model.vocab_size());  // another token there, before it goes on
    REQUIRE(model.extend(std::span(tokens).first(1), one) == status::ok);
    (void)model.rollback(20);
  }
  CHECK(failures > 2 + 2 * 2 + next.size());  // set device, wait; steps: copy, launch; rows: copy
  CHECK(same_bits(logits, expected));
}

TEST_CASE(
    "whichever call of CUDA fails as a model is made, an error says what was being done, and "
    "nothing leaks") {
  const small m;
  std::size_t failures = 0;
  for (;; ++failures) {
    cuda_emulator::fail_call(cudaErrorMemoryAllocation, failures);
    const std::string message = test::error_of([&] {
      const cuda::llama model(on_device(m.host));
      cuda_emulator::fail_call(cudaSuccess);  // as it goes, all is given back
    });
    cuda_emulator::fail_call(cudaSuccess);
    if (message.empty()) break;
    INFO(message);
    REQUIRE((message.starts_with("CUDA: ") || message.starts_with("test.gguf: ")));
    REQUIRE((message.find("cudaErrorMemoryAllocation") != std::string::npos ||
             message.find("CUBLAS_STATUS_EXECUTION_FAILED") != std::string::npos));
  }
  CHECK(failures > 50);
  CHECK(cuda_emulator::allocated() == 0);
  cuda_emulator::set_devices(0);
  CHECK(test::error_of([] { cuda::device d; }).starts_with("CUDA: device 0: cudaErrorNoDevice"));
  cuda_emulator::set_devices(1);
  CHECK(test::error_of([] {
          cuda::device d(1);
        }).starts_with("CUDA: device 1: cudaErrorInvalidDevice"));
}
