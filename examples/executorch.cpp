// SPDX-License-Identifier: Apache-2.0
// A text with drafts of two programs of ExecuTorch. usage: executorch TARGET.pte DRAFT.pte
#include <specagg/decoders.hpp>

#include <specagg/backend/executorch/source.hpp>
#include <specagg/printable.hpp>

#include <cstdio>
#include <vector>

using namespace specagg;

int main(int count, char** arguments) try {
  if (count != 3) return std::fputs("usage: executorch TARGET.pte DRAFT.pte\n", stderr), 2;
  executorch::extension::Module target_module(arguments[1]), draft_module(arguments[2]);
  // Every call has four tokens: a row does not depend on which tokens came in one call.
  executorch_source target(target_module, {.exact_calls = 4}),
      draft(draft_module, {.exact_calls = 4});
  std::printf("vocabulary %zu, context %zu\n", target.vocab_size(), target.capacity());

  const std::size_t most = 16, gamma = 3;
  for (const double temperature : {0.0, 1.0}) {
    std::vector<token_id> buffer{1, 7, 3};  // the prompt, of your tokenizer
    const std::size_t begin = buffer.size();
    buffer.resize(begin + most + gamma);
    text t{buffer, begin};
    const decode_options options{.gamma = gamma, .sample = {.temperature = temperature}};
    speculative_workspace<float> work(target.vocab_size(), options);
    random_streams random(/*seed=*/1);
    std::size_t rounds = 0;
    const status why = speculative_decode(
        draft, target, lossless{}, random,
        {.text = t, .most = most, .work = work, .after_round = [&](auto&&...) { ++rounds; }});
    std::printf("temperature %.0f: %s, %zu tokens in %zu rounds:", temperature, name(why),
                t.size - begin, rounds);
    for (std::size_t i = begin; i < t.size; ++i) std::printf(" %d", buffer[i]);
    std::puts("");
  }
  return 0;
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", printable(e.what(), 1000).c_str()), 1;
}

// Output:
// vocabulary 17, context 61
// temperature 0: ok, 16 tokens in 13 rounds: 15 15 15 15 15 15 15 15 15 7 15 7 15 7 15 15
// temperature 1: ok, 16 tokens in 7 rounds: 14 6 0 2 14 0 6 15 12 15 9 16 14 11 4 6
