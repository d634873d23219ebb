// SPDX-License-Identifier: Apache-2.0
// bench-shapes: what verify.cu leaves out, at B = 64, gamma = 4, bf16: batches as engines hold them
// (backend/cuda/ragged.hpp) with logits of the draft, without rows of it, and with filters; lossy;
// and a vocabulary in two parts, both on this device. Beside each the read of the same bytes.
//
// usage: bench-shapes [--small] [--profile]
//        --small     few and small requests, for tests/cuda/emulator and compute-sanitizer
//        --profile   verifies each kind of filtered batch once, for a profiler
#include <cstring>

#include "measure.hpp"

#include <specagg/backend/cuda/ragged.hpp>
#include <specagg/backend/cuda/sharded.hpp>
#include <specagg/policy/lossy.hpp>

namespace bench {
namespace {

struct bench_shapes {
  shape s;
  bool profile;
  inputs<bf16, token_verifier> in{s, token_verifier{}};
  std::size_t B = s.requests, each = s.gamma + 1, copies = in.copies(), rows = B * each;
  device_array<std::int32_t> out{B * each}, accepted{B};
  device_array<unsigned char> storage{storage_bytes()};
  device_array<std::int32_t> top_k{std::vector<std::int32_t>(B, 50)};
  device_array<float> top_p{std::vector<float>(B, 0.9f)}, min_p{std::vector<float>(B, 0.05f)};
  stopwatch watch;

  // The rows of the draft have one more for each request than it has tokens: so draft_bonus.
  template <class Batch>
  Batch ragged(std::size_t c) const {
    const auto of = in.batch(c);
    Batch b;
    b.requests = B, b.vocabulary = s.vocabulary, b.most = s.gamma, b.drafted = B * s.gamma;
    b.tokens = of.tokens;
    b.target = of.target, b.target_stride = s.vocabulary;
    if constexpr (std::is_same_v<decltype(b.draft), const bf16*>)
      b.draft = of.draft, b.draft_stride = s.vocabulary, b.draft_bonus = true;
    b.start = of.start;
    b.seed = of.seed;
    return b;
  }
  std::size_t storage_bytes() const {
    return gpu::verify_storage(ragged<gpu::filtered_batch<bf16>>(0));
  }
  // of_request(): accepted tokens of each request, after the last call
  template <class Call, class Accepted>
  void line(const char* name, std::size_t read_rows, const Call& call, const Accepted& of_request) {
    const timing t = watch.in_a_row(copies, true, 20, call),
                 alone = watch.alone(copies, true, 60, call);
    const std::size_t row = s.vocabulary * sizeof(bf16);
    const timing read = time_of_read(in.data(0), 2 * rows * row, copies, read_rows * row);
    std::printf("%-28s %9.1f %9.1f %9.1f %6.1f %% %8.2f\n", name, t.median, alone.median,
                read.median, 100 * read.median / t.median, of_request());
  }
  template <class Batch, class F>
  void ragged_line(const char* name, std::size_t read_rows, const F& change) {
    const auto call = [&](std::size_t c, cudaStream_t stream) {
      auto b = ragged<Batch>(c);
      change(b);
      CHECK_CUDA(gpu::verify(b, lossless{}, token_verifier{}, {out.data(), accepted.data()},
                             storage.data(), storage_bytes(), stream));
    };
    if (profile) {
      call(0, nullptr);
      CHECK_CUDA(cudaStreamSynchronize(nullptr));
      return;
    }
    line(name, read_rows, call, [&] {
      double sum = 0;
      for (const std::int32_t a : accepted.read()) sum += a;
      return sum / double(B);
    });
  }
  void run() {
    const std::size_t both = rows + B * s.gamma;
    const auto nothing = [](auto&) {};
    if (!profile) {
      ragged_line<gpu::ragged_batch<bf16>>("logits of the draft", both, nothing);
      ragged_line<gpu::ragged_batch<bf16, gpu::one_hot>>("drafts without rows", rows, nothing);
    }
    using filtered = gpu::filtered_batch<bf16>;
    ragged_line<filtered>("filters, all off", both, nothing);
    ragged_line<filtered>("top-k 50", both, [&](auto& b) { b.top_k = top_k.data(); });
    ragged_line<filtered>("top-p 0.9", both, [&](auto& b) { b.top_p = top_p.data(); });
    ragged_line<filtered>("min-p 0.05", both, [&](auto& b) { b.min_p = min_p.data(); });
    ragged_line<filtered>("top-k 50, top-p 0.9", both,
                          [&](auto& b) { b.top_k = top_k.data(), b.top_p = top_p.data(); });
    if (profile) return;
    line("lossy, alpha 0.2", 2 * rows, verification(in, lossy{0.2}, token_verifier{}),
         [&] { return in.accepted(); });
    in_parts();
  }
  void in_parts() {
    const std::size_t blocks = (s.vocabulary + 1023) / 1024, tokens = (blocks + 1) / 2 * 1024;
    std::vector<device_array<unsigned char>> memory;
    const auto part = [&](std::size_t c, std::uint32_t k) {
      gpu::sharded_batch<bf16> b{in.batch(c), {tokens, 2, k}};
      b.draft += k * tokens, b.target += k * tokens;  // strides stay
      return b;
    };
    for (std::uint32_t k = 0; k < 2; ++k) memory.emplace_back(gpu::shard_storage(part(0, k)));
    line(
        "two parts, one after another", rows + B * s.gamma,
        [&](std::size_t c, cudaStream_t stream) {
          gpu::shard_step step[2];
          for (int k = 0; k < 2; ++k)
            step[k].storage = memory[k].data(),
            step[k].storage_bytes = gpu::shard_storage(part(c, k));
          while (!step[0].done) {
            for (std::uint32_t k = 0; k < 2; ++k)
              CHECK_CUDA(gpu::verify_shard(part(c, k), lossless{}, token_verifier{}, in.out(c),
                                           step[k], stream));
            for (int k = 0; k < 2 && !step[0].done; ++k)
              CHECK_CUDA(cudaMemcpyAsync(static_cast<char*>(step[1 - k].all) + k * step[k].bytes,
                                         step[k].own, step[k].bytes, cudaMemcpyDeviceToDevice,
                                         stream));
          }
        },
        [&] { return in.accepted(); });
  }
};

}  // namespace
}  // namespace bench

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bool profile = false;
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(arguments[i], "--small")) bench::small = true;
    else if (!std::strcmp(arguments[i], "--profile")) profile = true;
    else {
      std::fprintf(stderr, "usage: bench-shapes [--small] [--profile]\n");
      return 2;
    }
  }
  std::printf("microseconds, medians    row      alone     read   share  accepted\n");
  bench::bench_shapes{
      .s = {bench::small ? 2u : 64u, bench::small ? 2u : 4u, bench::small ? 17000u : 128256u},
      .profile = profile}
      .run();
}
