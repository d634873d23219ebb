// SPDX-License-Identifier: Apache-2.0
// What links specagg::cuda: one request, verified on the device if there is one.
#include <cstdio>

#include <specagg/backend/cuda/verify.hpp>
#include <specagg/policy/lossless.hpp>

int main() {
  constexpr std::size_t vocabulary = 4;
  struct memory {
    float logits[2][vocabulary] = {{0, 0, 9, 0}, {9, 0, 0, 0}};  // draft and target agree
    specagg::token_id tokens[1] = {2};
    std::uint32_t start[1] = {0};
    std::uint64_t seed[1] = {42};
    double temperature[1] = {0};
    specagg::verdict verdicts[1];
    specagg::emission emissions[2];
    alignas(16) unsigned char storage[1024];
  };
  memory* m = nullptr;
  if (cudaMallocManaged(&m, sizeof(memory)) != cudaSuccess) {
    std::puts("skipped: no CUDA device");
    return 0;
  }
  *m = {};
  specagg::cuda::batch<float> b;
  b.requests = 1;
  b.vocabulary = b.draft_stride = b.target_stride = vocabulary;
  b.most = 1;
  b.draft = b.target = m->logits[0];
  b.tokens = m->tokens;
  b.start = m->start;
  b.seed = m->seed;
  b.temperature = m->temperature;
  if (specagg::cuda::verify(b, specagg::lossless{}, specagg::token_verifier{},
                            {m->verdicts, m->emissions}, m->storage, sizeof m->storage,
                            nullptr) != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess)
    return 1;
  std::printf("%zu tokens\n", m->verdicts[0].emitted);
  return m->verdicts[0].emitted == 2 && m->emissions[0].token == 2 && m->emissions[1].token == 0
             ? 0
             : 1;
}
