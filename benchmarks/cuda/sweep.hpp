// SPDX-License-Identifier: Apache-2.0
// bench-cuda --sweep: the first kernel, the second in clusters of 1 to 8, and both as verify()
// launches them, at three temperatures (1, 0.7, and 0: greedy). Microseconds, medians; a line for
// each batch.
#pragma once
#include "measure.hpp"

namespace bench {

inline constexpr unsigned cluster_sizes[] = {1, 2, 4, 8};

template <auto Kernel, class... A>
void launch_in(unsigned cluster, std::size_t units, cudaStream_t stream, A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(units * cluster));
  config.blockDim = dim3(gpu::threads);
  config.stream = stream;
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim = {cluster, 1, 1};
  config.attrs = &shape;
  config.numAttrs = cluster > 1;
  CHECK_CUDA(cudaLaunchKernelEx(&config, Kernel, arguments...));
}

template <class S>
void at_temperature(double temperature, const shape& s, const inputs<S, token_verifier>& in) {
  using policies = gpu::detail::same_for_all<lossless>;
  using whole = gpu::detail::drafts<gpu::detail::padded<gpu::batch<S>>, true>;
  constexpr auto* verify =
      gpu::detail::verify_requests<whole, policies, token_verifier, gpu::outcome>;
  const device_array of_each(std::vector<double>(s.requests, temperature));
  const auto batch = [&](std::size_t c) {
    auto b = in.batch(c);
    b.temperature = of_each.data();
    return b;
  };
  stopwatch watch;
  const auto time = [&](const auto& call) {
    return watch.in_a_row(in.copies(), true, 15, call).median;
  };
  std::printf("%-4s %4zu %5.1f ", type_name<S>(), s.requests, temperature);
  const auto rows = [&](std::size_t c) { return whole{{{batch(c)}, s.gamma, false}}; };
  const auto sums = [&](std::size_t c) {
    return static_cast<specagg::block_sum<float>*>(in.storage(c));
  };
  std::printf(" %8.1f ", time([&](std::size_t c, cudaStream_t stream) {
                CHECK_CUDA(gpu::detail::launch_sums(rows(c), false, sums(c), stream));
              }));
  for (const unsigned cluster : cluster_sizes)
    std::printf(" %8.1f", time([&](std::size_t c, cudaStream_t stream) {
                  launch_in<verify>(cluster, s.requests, stream, rows(c), policies{},
                                    token_verifier{}, sums(c), in.out(c));
                }));
  const auto both = [&](std::size_t c, cudaStream_t stream) {
    const auto b = batch(c);
    CHECK_CUDA(gpu::verify(b, lossless{}, token_verifier{}, in.out(c), in.storage(c),
                           gpu::verify_storage(b), stream));
  };
  std::printf("  %8.1f %8.1f\n", time(both), watch.alone(in.copies(), true, 60, both).median);
}

template <class S>
void sweep_batch(const shape& s) {
  const inputs<S, token_verifier> in(s, token_verifier{});
  for (const double temperature : {1., 0.7, 0.}) at_temperature<S>(temperature, s, in);
}

inline int sweep() {
  std::printf(
      "lossless token verification, gamma = 4, V = 128256; the second kernel in clusters of 1, 2, "
      "4, 8:\n");
  std::printf("type    B     T  1st kernel 2nd kernel");
  std::printf("                              both    alone\n");
  for (const std::size_t requests : {64, 1, 8, 32, 256}) {
    sweep_batch<float>({requests, 4, 128256});
    sweep_batch<bf16>({requests, 4, 128256});
  }
  return 0;
}

}  // namespace bench
