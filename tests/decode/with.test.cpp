// SPDX-License-Identifier: Apache-2.0
// What is given to a decoder by its name.
#include <specagg/decode/together.hpp>
#include <specagg/decode/with.hpp>

#include <utility>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = float;

namespace {

constexpr std::size_t V = 40, most = 64, prompt = 3;
using tokens = std::vector<token_id>;

template <class Work, class... Given>
tokens appended(Work& work, Given&&... given) {
  toy_source<T> q(V, 1), p(V, 2);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  REQUIRE(speculative_decode(t, most, q, p, ensemble{0.3}, random_streams(11), work, given...) ==
          status::ok);
  return {buffer.begin() + prompt, buffer.begin() + std::ptrdiff_t(t.size)};
}

struct counter {
  std::size_t calls = 0;
  bool operator()(const emission&) { return ++calls > 0; }
};

}  // namespace

TEST_CASE("what is given by name may stand in any order, as an object or as a temporary") {
  speculative_workspace<T> work(V, {.gamma = 3});
  const block_verifier block;
  std::size_t rounds = 0;
  const auto count = [&](const auto&, const auto&) { ++rounds; };
  const tokens expected = appended(work, with::verifier{block}, with::after_round{count});
  CHECK(rounds > 0);
  CHECK(appended(work) != expected);
  CHECK(appended(work, with::verifier{block_verifier{}}) == expected);
  const std::size_t once = std::exchange(rounds, 0);
  const with::verifier stored{block};
  CHECK(appended(work, with::after_round{count}, stored) == expected);
  CHECK(rounds == once);
}

TEST_CASE("of an object a reference is kept, of a temporary its value") {
  speculative_workspace<T> work(V, {.gamma = 3});
  counter calls;
  (void)appended(work, with::accept{calls});
  CHECK(calls.calls == most);
  toy_source<T> q(V, 1), p(V, 2);
  model_drafter drafter(q, std::span(work.draft_logits));
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  random_streams random(11);
  const ensemble policy{0.3};
  together_text by_reference(t, 20, drafter, p, policy, random, work, with::accept{calls});
  together_text by_value(t, 20, drafter, p, policy, random, work, with::accept{counter{}});
  CHECK(&by_reference.accept == &calls);
  together_workspace<decltype(by_value)> shared;
  const std::vector one = {&by_value};
  while (together_round(one, shared) > 0) {
  }
  CHECK(by_value.accept.calls == 20);
  CHECK(calls.calls == most);
}

TEST_CASE("the options of a workspace may be changed between texts") {
  speculative_workspace<T> work(V, {.gamma = 3});
  const tokens before = appended(work);
  work.options = {.gamma = 2, .sample = {.temperature = 0.5}};
  speculative_workspace<T> made(V, work.options);
  const tokens after = appended(work);
  CHECK(after == appended(made));
  CHECK(after != before);
  work.options.gamma = 4;
  toy_source<T> q(V, 1), p(V, 2);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  CHECK(speculative_round(t, most, q, p, lossless{}, random_streams(1), work).why ==
        status::invalid_parameter);
}
