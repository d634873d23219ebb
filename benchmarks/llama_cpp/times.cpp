// SPDX-License-Identifier: Apache-2.0
// What n tokens cost in llama.cpp: the rival of bench-llama, by llama.cpp's C interface.
// scripts/bench builds it with the sources of llama.cpp.
//   times model.gguf      prints lines "threads n milliseconds", medians; the last n of each is a
//                         prefill of 256 tokens
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

void print_times(llama_model* model, int threads) {
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  auto of_context = llama_context_default_params();
  of_context.n_ctx = 512;
  of_context.n_batch = of_context.n_ubatch = 512;
  of_context.n_threads = of_context.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, of_context);
  if (!context) {
    std::fputs("times: llama.cpp makes no context\n", stderr);
    std::exit(1);
  }
  llama_batch batch = llama_batch_init(512, 0, 1);
  // Appends n tokens at `from`; logits after each of them, or after the last.
  const auto decode = [&](int from, int n, bool all) {
    batch.n_tokens = n;
    for (int i = 0; i < n; ++i) {
      batch.token[i] = static_cast<llama_token>((long(i) * 7919) % vocab);
      batch.pos[i] = from + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = all || i + 1 == n;
    }
    return llama_decode(context, batch) == 0 && llama_get_logits(context) != nullptr;
  };
  const auto milliseconds = [&](int from, int n, bool all) {
    llama_memory_seq_rm(llama_get_memory(context), 0, from, -1);
    const auto start = std::chrono::steady_clock::now();
    if (!decode(from, n, all)) {
      std::fputs("times: llama.cpp failed\n", stderr);
      std::exit(1);
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const auto median = [](std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
    return x[x.size() / 2];
  };
  milliseconds(0, 100, false);
  std::vector<double> times[6];
  constexpr int counts[] = {1, 2, 3, 5, 9, 17};
  for (int round = 0; round < 35; ++round)
    for (int k = 0; k < 6; ++k) times[k].push_back(milliseconds(100, counts[k], true));
  for (int k = 0; k < 6; ++k) std::printf("%d %d %.4f\n", threads, counts[k], median(times[k]));
  std::vector<double> prefill;
  for (int round = 0; round < 5; ++round) prefill.push_back(milliseconds(0, 256, false));
  std::printf("%d 256 %.4f\n", threads, median(prefill));
  llama_batch_free(batch);
  llama_free(context);
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("times model.gguf\n", stderr);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  auto of_model = llama_model_default_params();
  of_model.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(arguments[1], of_model);
  if (!model) {
    std::fprintf(stderr, "times: %s: llama.cpp cannot load it\n", arguments[1]);
    return 2;
  }
  for (const int threads : {1, 2}) print_times(model, threads);
  llama_model_free(model);
}
