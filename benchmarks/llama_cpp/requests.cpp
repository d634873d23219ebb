// SPDX-License-Identifier: Apache-2.0
// What a token costs when R sequences of one context get n tokens each in one call of libllama:
// processor time, with the keys and values of all sequences in one buffer (kv_unified), and with a
// buffer for each.
//   requests MODEL [STEPS]
#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

namespace {

constexpr int prompt = 100;  // tokens that each sequence has read

double processor_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double milliseconds_a_token(llama_model* model, int sequences, int tokens, bool unified,
                            int steps) {
  auto how = llama_context_default_params();
  how.n_seq_max = std::uint32_t(sequences);
  how.n_ctx = how.n_seq_max * 256;
  how.kv_unified = unified;
  how.n_batch = how.n_ubatch = std::uint32_t(std::max(prompt, sequences * tokens));
  how.n_threads = how.n_threads_batch = 1;
  how.swa_full = true;
  const std::unique_ptr<llama_context, decltype(&llama_free)> in(llama_init_from_model(model, how),
                                                                 llama_free);
  if (!in) {
    std::fputs("requests: libllama makes no context\n", stderr);
    std::exit(1);
  }
  llama_batch call = llama_batch_init(std::int32_t(how.n_batch), 0, 1);
  const auto add = [&](int position, int sequence, bool wanted) {
    const auto k = call.n_tokens++;
    call.token[k] = 100 + 7 * position + sequence;
    call.pos[k] = position;
    call.n_seq_id[k] = 1;
    call.seq_id[k][0] = sequence;
    call.logits[k] = wanted;
  };
  const auto run = [&] {
    if (llama_decode(in.get(), call) != 0 || !llama_get_logits(in.get())) {
      std::fputs("requests: llama_decode failed\n", stderr);
      std::exit(1);
    }
    call.n_tokens = 0;
  };
  call.n_tokens = 0;
  for (int s = 0; s < sequences; ++s) {
    for (int i = 0; i < prompt; ++i) add(i, s, i + 1 == prompt);
    run();
  }
  const double start = processor_seconds();
  for (int step = 0; step < steps; ++step) {
    for (int s = 0; s < sequences; ++s)
      for (int i = 0; i < tokens; ++i) add(prompt + step * tokens + i, s, true);
    run();
  }
  llama_batch_free(call);
  return 1e3 * (processor_seconds() - start) / (steps * sequences * tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: requests MODEL [STEPS]\n", stderr);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free);
  if (!model) {
    std::fprintf(stderr, "requests: %s: libllama cannot load it\n", argv[1]);
    return 1;
  }
  const int steps = argc > 2 ? std::atoi(argv[2]) : 10;
  std::puts(
      "| requests | tokens of each in a call | one buffer, ms a token | a buffer each, ms a token "
      "|");
  std::puts("| ---: | ---: | ---: | ---: |");
  for (const int sequences : {1, 8, 32})
    for (const int tokens : {1, 4}) {
      const double one = milliseconds_a_token(model.get(), sequences, tokens, true, steps);
      const double each = milliseconds_a_token(model.get(), sequences, tokens, false, steps);
      std::printf("| %d | %d | %.2f | %.2f |\n", sequences, tokens, one, each);
      std::fflush(stdout);
    }
}
