// SPDX-License-Identifier: Apache-2.0
// bench-flashinfer: the kernels of FlashInfer's headers on the batches of verify.cu, and ours on
// the same device. FlashInfer starts from probabilities: the softmax of the rows counts. With
// filters it renormalises the target's probabilities by top-k, then by top-p of what is left, as
// SGLang has it; ours filter the target's rows alone as well. (It has no min-p for verification.)
// The headers come with its Python package (flashinfer/data/include); no Python runs.
#include <flashinfer/sampling.cuh>
#include <flashinfer/air_top_p.cuh>
#include <flashinfer/topk.cuh>

#include "measure.hpp"

#include <specagg/backend/cuda/ragged.hpp>

namespace bench {
namespace {

namespace theirs = flashinfer::sampling;

struct filters {
  int top_k = 0;    // 0: off
  float top_p = 1;  // 1: off
  bool any() const { return top_k > 0 || top_p < 1; }
};

class comparison {
 public:
  explicit comparison(const shape& s) : s_(s) {
    for (std::size_t c = 0; c < copies; ++c)
      CHECK_CUDA(cudaMemcpy2D(q.data() + c * drafts * V, gamma * V * sizeof(float),
                              in.batch(c).draft, (gamma + 1) * V * sizeof(float),
                              gamma * V * sizeof(float), B, cudaMemcpyDeviceToDevice));
    CHECK_CUDA(cudaMemset(row_states.data(), 0, scratch_bytes));
  }
  void line(const filters& f) {
    CHECK_CUDA(cudaMemset(scratch.data(), 0, scratch_bytes));
    const auto all = [&](std::size_t c, cudaStream_t stream) { theirs_all(f, c, stream); };
    const auto chain_alone = [&](std::size_t c, cudaStream_t stream) { chain(c, stream); };
    // how many they accept of each copy, on average: about as many as we do
    double sum = 0;
    for (std::size_t c = 0; c < copies; ++c) {
      CHECK_CUDA(cudaMemset(emitted.data(), 0, B * sizeof(int)));
      all(c, nullptr);
      CHECK_CUDA(cudaStreamSynchronize(nullptr));
      for (const int n : emitted.read()) sum += n;
    }
    const timing row = watch.in_a_row(copies, true, 30, all),
                 chain_row = watch.in_a_row(copies, true, 30, chain_alone),
                 alone = watch.alone(copies, true, 100, all);
    timing our_row, our_alone;
    const double our_accepted = ours(f, our_row, our_alone);
    std::printf("%4zu %3zu %7zu %5.1f %5d %5.2f %10.1f %9.1f %9.1f %9.2f %10.1f %9.1f %9.2f\n", B,
                gamma, V, double(s_.steepness), f.top_k, double(f.top_p), row.median, alone.median,
                chain_row.median, sum / double(copies * B), our_row.median, our_alone.median,
                our_accepted);
  }

 private:
  // in.accepted() or the like: accepted tokens of each request, the mean over all copies
  double ours(const filters& f, timing& row, timing& alone) {
    if (!f.any()) {
      const auto verify = verification(in, lossless{}, token_verifier{});
      row = watch.in_a_row(copies, true, 30, verify);
      alone = watch.alone(copies, true, 100, verify);
      return in.accepted();
    }
    const device_array top_k(std::vector<std::int32_t>(B, f.top_k)), off(std::vector<int>(B, 0));
    const device_array top_p(std::vector<float>(B, f.top_p)), one(std::vector<float>(B, 1));
    const device_array<std::int32_t> out(targets), counts(B);
    const auto batch = [&](std::size_t c) {
      const auto of = in.batch(c);
      gpu::filtered_batch<float> b;
      b.requests = B, b.vocabulary = V, b.most = gamma, b.drafted = drafts;
      b.tokens = of.tokens, b.start = of.start, b.seed = of.seed;
      b.target = of.target, b.target_stride = V;
      b.draft = of.draft, b.draft_stride = V, b.draft_bonus = true;
      if (f.top_k > 0) b.top_k = top_k.data(), b.draft_top_k = off.data();
      if (f.top_p < 1) b.top_p = top_p.data(), b.draft_top_p = one.data();
      b.order = filter_order::vllm;
      return b;
    };
    const std::size_t bytes = gpu::verify_storage(batch(0));
    const device_array<unsigned char> storage(bytes);
    const auto verify = [&](std::size_t c, cudaStream_t stream) {
      CHECK_CUDA(gpu::verify(batch(c), lossless{}, token_verifier{}, {out.data(), counts.data()},
                             storage.data(), bytes, stream));
    };
    row = watch.in_a_row(copies, true, 30, verify);
    alone = watch.alone(copies, true, 100, verify);
    double sum = 0;
    for (std::size_t c = 0; c < copies; ++c) {
      verify(c, nullptr);
      CHECK_CUDA(cudaStreamSynchronize(nullptr));
      for (const std::int32_t n : counts.read()) sum += n;
    }
    return sum / double(copies * B);
  }
  void softmax(float* x, float* y, std::size_t rows, cudaStream_t stream) {
    CHECK_CUDA(theirs::OnlineSoftmax<float>(x, y, unsigned(rows), unsigned(V), nullptr, 1.f,
                                            scratch.data(), scratch_bytes, true, stream));
  }
  void chain(std::size_t c, cudaStream_t stream) {
    auto* drafted = const_cast<int*>(reinterpret_cast<const int*>(in.batch(c).tokens));
    CHECK_CUDA((theirs::ChainSpeculativeSampling<float, int>(
        q_softmax.data(), drafted, p_softmax.data(), tokens.data(), accepted.data(), emitted.data(),
        unsigned(B), unsigned(gamma), unsigned(V), true, nullptr, ++seed, nullptr, 0, stream)));
  }
  // flashinfer.top_k_renorm_probs and top_p_renorm_probs, where they are now
  void renormalise(const filters& f, cudaStream_t stream) {
    float* p = p_softmax.data();
    if (f.top_k > 0)
      CHECK_CUDA((theirs::RadixTopKRenormProbMultiCTA<float, int>(
          p, p, nullptr, unsigned(targets), unsigned(f.top_k), unsigned(V),
          reinterpret_cast<theirs::RadixRowState*>(row_states.data()), false, stream)));
    if (f.top_p < 1)
      CHECK_CUDA((theirs::air_top_p::AirTopPRenormProb<false, float>(
          p, p, nullptr, unsigned(targets), f.top_p, unsigned(V), scratch.data(), stream)));
  }
  void theirs_all(const filters& f, std::size_t c, cudaStream_t stream) {
    softmax(q.data() + c * drafts * V, q_softmax.data(), drafts, stream);
    softmax(const_cast<float*>(in.batch(c).target), p_softmax.data(), targets, stream);
    renormalise(f, stream);
    chain(c, stream);
  }

  shape s_;
  inputs<float, token_verifier> in{s_, token_verifier{}};
  std::size_t B = s_.requests, gamma = s_.gamma, V = s_.vocabulary, copies = in.copies();
  // their draft has gamma rows a request, next to each other
  std::size_t drafts = B * gamma, targets = B * (gamma + 1);
  device_array<float> q{copies * drafts * V}, q_softmax{drafts * V}, p_softmax{targets * V};
  device_array<int> tokens{targets}, accepted{std::vector<int>(B, 0)},
      emitted{std::vector<int>(B, 0)};
  // air_top_p.cuh: 24 KB and V / 16 floats a row are enough
  std::size_t scratch_bytes = (std::size_t(32) << 20) + targets * ((24 << 10) + V / 4 + 4096);
  device_array<unsigned char> scratch{scratch_bytes}, row_states{scratch_bytes};
  std::uint64_t seed = 0;
  stopwatch watch;
};

}  // namespace
}  // namespace bench

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("f32, T = 1, microseconds, medians; chain: without softmax and filters; steep: of ");
  std::printf("rows ~ rank^-steep (0: benchmarks/rows.hpp)\n");
  std::printf("   B   g       V steep top-k top-p flashinfer     alone     chain  accepted ");
  std::printf("   specagg     alone  accepted\n");
  // the usual ones first: the time may be up before the last
  for (const float steepness : {1.3f, 0.f, 2.f})
    for (const std::size_t requests : {64, 1, 8, 32, 256}) {
      bench::comparison of({requests, 4, 128256, steepness});
      for (const bench::filters& f :
           std::initializer_list<bench::filters>{{}, {50, 1}, {0, 0.95f}, {20, 1}, {50, 0.95f}})
        of.line(f);
    }
  for (const std::size_t gamma : {1, 8})
    for (const std::size_t requests : {64, 1, 8, 32, 256})
      bench::comparison({requests, gamma, 128256, 1.3f}).line({});
}
