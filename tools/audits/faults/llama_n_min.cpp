// SPDX-License-Identifier: Apache-2.0
// llama_n_min FILE N: llama.cpp drafts by draft-simple, probabilistic, with n_min N
#include "common.h"
#include "sampling.h"
#include "speculative.h"

int main(int, char** argv) {
  auto* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  auto context = llama_context_default_params();
  context.n_threads = context.n_threads_batch = 1;
  auto* target = llama_init_from_model(model, context);
  common_params_speculative how;
  how.types = {COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE};
  how.draft.ctx_tgt = target, how.draft.ctx_dft = llama_init_from_model(model, context);
  how.draft.probabilistic = true, how.draft.p_min = 0.45f, how.draft.n_min = atoi(argv[2]);
  auto* spec = common_speculative_init(how, 1);
  common_params_sampling sampling;
  sampling.temp = 1, sampling.samplers = {COMMON_SAMPLER_TYPE_TEMPERATURE};
  int seen[4] = {};
  for (sampling.seed = 1; sampling.seed <= 1000; ++sampling.seed) {
    llama_memory_clear(llama_get_memory(target), true);
    llama_memory_clear(llama_get_memory(how.draft.ctx_dft), true);
    llama_tokens prompt, drafted;
    std::vector<std::vector<llama_token_data>> q;
    common_speculative_begin(spec, 0, prompt);
    auto& ask = common_speculative_get_draft_params(spec, 0);
    ask = {true, 2, 0, 2, &prompt, &drafted, &q, 1, sampling.seed};
    common_speculative_draft(spec), q.resize(drafted.size());
    common_batch batch(target);
    std::vector<int> rows{batch.add(2, 0, 0, true)};
    for (auto token : drafted) rows.push_back(batch.add(token, rows.size(), 0, true));
    llama_process(target, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    auto* own = common_sampler_init(model, sampling);
    ++seen[common_sampler_sample_and_accept_n_rejection(own, target, rows, drafted, q)[0]];
  }
  printf("token 0 %d times, token 1 %d times; 500 each are due\n", seen[0], seen[1]);
}
