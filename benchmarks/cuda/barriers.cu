// SPDX-License-Identifier: Apache-2.0
// bench-barriers: cycles of what the kernels do between their loads. One line for each.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

namespace {

constexpr unsigned threads = 256, blocks_in_row = 126;  // of the kernels; of a row of 128,256
constexpr int repetitions = 100;

enum class what { cluster_sync, cluster_barrier, block_barrier, sum, place, logarithm };

template <what What>
__global__ void __launch_bounds__(threads, 2) measure(long long* cycles, double* sink) {
  const auto cluster = cooperative_groups::this_cluster();
  __shared__ double x[blocks_in_row];
  for (unsigned i = threadIdx.x; i < blocks_in_row; i += threads) x[i] = 1. / (i + 1);
  cluster.sync();
  const long long start = clock64();
  double sum = 0;
  for (int k = 0; k < repetitions; ++k) {
    if (What == what::cluster_sync) {
      cluster.sync();
    } else if (What == what::cluster_barrier) {
      __cluster_barrier_arrive_relaxed();
      __cluster_barrier_wait();
    } else if (What == what::block_barrier) {
      __syncthreads();
    } else if (What == what::sum) {
      for (unsigned i = 0; i < blocks_in_row; ++i) sum += x[i];
    } else if (What == what::place) {  // as find_place (kernel/sample.hpp), to the end
      double rest = 1e9 + sum;
      for (unsigned i = 0; i < blocks_in_row; ++i) {
        if (!(x[i] > 0)) continue;
        if (rest < x[i]) break;
        rest -= x[i];
      }
      sum += rest;
    } else {
      sum = log(sum + 2);
    }
  }
  const long long end = clock64();
  if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = (end - start) / repetitions;
  if (sum == 12345.678) *sink = sum;  // hardly ever; the compiler cannot know
  cluster.sync();
}

bool fine = true;

template <what What>
void run(const char* name, unsigned cluster, unsigned blocks) {
  long long *cycles, least = -1;
  double* sink;
  cudaMalloc(&cycles, sizeof *cycles);
  cudaMalloc(&sink, sizeof *sink);
  for (int k = 0; k < 5; ++k) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {cluster, 1, 1};
    config.attrs = &shape;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, measure<What>, cycles, sink);
    long long now = 0;  // waits for the kernel
    if (const auto e = cudaMemcpy(&now, cycles, sizeof now, cudaMemcpyDeviceToHost)) {
      std::printf("%s: %s\n", name, cudaGetErrorString(e));
      fine = false;
      return;
    }
    least = least < 0 ? now : std::min(least, now);
  }
  std::printf("%-44s clusters of %u, %3u blocks: %6lld cycles\n", name, cluster, blocks, least);
  cudaFree(cycles);
  cudaFree(sink);
}

}  // namespace

int main() {
  for (const unsigned cluster : {2u, 4u, 8u})
    for (const unsigned blocks : {cluster, 256u}) {
      run<what::cluster_sync>("cluster.sync()", cluster, blocks);
      run<what::cluster_barrier>("barrier of the cluster, arrive relaxed", cluster, blocks);
    }
  run<what::block_barrier>("__syncthreads()", 1, 256);
  run<what::sum>("126 doubles added in order", 1, 1);
  run<what::place>("the place of a number among 126 doubles", 1, 1);
  run<what::logarithm>("log of a double", 1, 1);
  return !fine;
}
