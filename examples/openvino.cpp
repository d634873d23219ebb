// SPDX-License-Identifier: Apache-2.0
// A text with drafts of two models that OpenVINO runs. usage: openvino TARGET.xml DRAFT.xml
#include <specagg/decoders.hpp>

#include <specagg/backend/openvino/source.hpp>
#include <specagg/printable.hpp>

#include <openvino/openvino.hpp>

#include <cstdio>
#include <vector>

using namespace specagg;

int main(int count, char** arguments) try {
  if (count != 3) return std::fputs("usage: openvino TARGET.xml DRAFT.xml\n", stderr), 2;
  ov::Core core;
  // OpenVINO's own choice for a CPU, bf16 and a cache of u8, makes a row depend on the calls.
  const auto open = [&](const char* file) {
    return core.compile_model(file, "CPU", ov::hint::inference_precision(ov::element::f32),
                              ov::hint::kv_cache_precision(ov::element::f32));
  };
  openvino_source target(open(arguments[1]), {.capacity = 64}),
      draft(open(arguments[2]), {.capacity = 64});
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
// vocabulary 17, context 64
// temperature 0: ok, 16 tokens in 13 rounds: 16 6 16 7 7 15 7 5 4 4 16 6 4 4 5 10
// temperature 1: ok, 16 tokens in 13 rounds: 16 6 16 7 6 16 7 7 16 16 6 16 7 16 16 6
