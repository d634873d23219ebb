// SPDX-License-Identifier: Apache-2.0
// bench-flashinfer: the kernels of FlashInfer's headers on the batches of verify.cu, and ours on
// the same device. FlashInfer starts from probabilities: the softmax of the rows counts. The
// headers come with its Python package (flashinfer/data/include); no Python runs.

#include <flashinfer/sampling.cuh>

#include "measure.hpp"

namespace bench {
namespace {

namespace theirs = flashinfer::sampling;

void compare(const shape& s) {
  const inputs<float, token_verifier> in(s, token_verifier{});
  const std::size_t B = s.requests, gamma = s.gamma, V = s.vocabulary, copies = in.copies();
  // their draft has gamma rows a request, next to each other
  const std::size_t drafts = B * gamma, targets = B * (gamma + 1);
  const device_array<float> q(copies * drafts * V), q_softmax(drafts * V), p_softmax(targets * V);
  for (std::size_t c = 0; c < copies; ++c)
    CHECK_CUDA(cudaMemcpy2D(q.data() + c * drafts * V, gamma * V * sizeof(float), in.batch(c).draft,
                            (gamma + 1) * V * sizeof(float), gamma * V * sizeof(float), B,
                            cudaMemcpyDeviceToDevice));
  const device_array<int> tokens(targets), accepted(std::vector<int>(B, 0)),
      emitted(std::vector<int>(B, 0));
  constexpr std::size_t scratch_bytes = std::size_t(32) << 20;
  const device_array<unsigned char> scratch(scratch_bytes);
  const auto softmax = [&](float* x, float* y, std::size_t rows, cudaStream_t stream) {
    CHECK_CUDA(theirs::OnlineSoftmax<float>(x, y, unsigned(rows), unsigned(V), nullptr, 1.f,
                                            scratch.data(), scratch_bytes, true, stream));
  };
  std::uint64_t seed = 0;
  const auto chain = [&](std::size_t c, cudaStream_t stream) {
    auto* drafted = const_cast<int*>(reinterpret_cast<const int*>(in.batch(c).tokens));
    CHECK_CUDA((theirs::ChainSpeculativeSampling<float, int>(
        q_softmax.data(), drafted, p_softmax.data(), tokens.data(), accepted.data(), emitted.data(),
        unsigned(B), unsigned(gamma), unsigned(V), true, nullptr, ++seed, nullptr, 0, stream)));
  };
  const auto all = [&](std::size_t c, cudaStream_t stream) {
    softmax(q.data() + c * drafts * V, q_softmax.data(), drafts, stream);
    softmax(const_cast<float*>(in.batch(c).target), p_softmax.data(), targets, stream);
    chain(c, stream);
  };
  // how many they accept of each copy, on average: about as many as we do
  double sum = 0;
  for (std::size_t c = 0; c < copies; ++c) {
    CHECK_CUDA(cudaMemset(emitted.data(), 0, B * sizeof(int)));
    all(c, nullptr);
    CHECK_CUDA(cudaStreamSynchronize(nullptr));
    for (const int n : emitted.read()) sum += n;
  }
  stopwatch watch;
  const timing row = watch.in_a_row(copies, true, 30, all),
               chain_row = watch.in_a_row(copies, true, 30, chain),
               alone = watch.alone(copies, true, 100, all);
  const auto verify = verification(in, lossless{}, token_verifier{});
  const timing our_row = watch.in_a_row(copies, true, 30, verify),
               our_alone = watch.alone(copies, true, 100, verify);
  std::printf("%4zu %3zu %7zu %10.1f %9.1f %9.1f %9.2f %10.1f %9.1f %9.2f\n", B, gamma, V,
              row.median, alone.median, chain_row.median, sum / double(copies * B), our_row.median,
              our_alone.median, in.accepted());
}

}  // namespace
}  // namespace bench

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("f32, microseconds, medians; chain: without the softmax\n");
  std::printf("   B   g       V flashinfer     alone     chain  accepted    specagg     alone");
  std::printf("  accepted\n");
  for (const std::size_t requests : {64, 1, 8, 32, 256}) bench::compare({requests, 4, 128256});
  bench::compare({64, 4, 32000});
}
