// SPDX-License-Identifier: Apache-2.0
// How a kernel that verifies requests is launched: on clusters of thread blocks of a size that the
// device can run and the batch can use.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include <specagg/backend/cuda/collective.hpp>

SPECAGG_BEGIN
namespace cuda {
namespace detail {

// What the current device can do with a kernel.
struct kernel_limits {
  unsigned blocks = 0, cluster = 1;  // thread blocks at once; the largest cluster that fits
  // whether it may start before the kernel before it has ended, also when a graph is captured
  bool overlaps = false;
};
inline constexpr int most_devices = 64;  // whose limits are remembered

template <class Kernel>
cudaError_t ask_limits(Kernel* kernel, int device, kernel_limits& limits) {
  int processors = 0, clusters = 0, driver = 0, blocks = 0;
  cudaFuncAttributes attributes{};
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      e != cudaSuccess)
    return e;
  if (const auto e = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
      e != cudaSuccess)
    return e;
  if (const auto e = cudaFuncGetAttributes(&attributes, kernel); e != cudaSuccess) return e;
  if (const auto e = cudaDriverGetVersion(&driver); e != cudaSuccess) return e;
  if (const auto e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
      e != cudaSuccess)
    return e;
  limits = {unsigned(processors * blocks), 1};
  // the code that runs was compiled without clusters
  if (!clusters || attributes.ptxVersion < 90) return cudaSuccess;
  limits.overlaps = driver >= 12030;
  for (unsigned size = most_in_cluster; size > 1; size /= 2) {
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size);
    config.blockDim = dim3(threads);
    config.attrs = &shape;
    config.numAttrs = 1;
    int fit = 0;
    if (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess) {
      (void)cudaGetLastError();  // it was a question: no later check reports its answer
    } else if (fit > 0) {
      limits.cluster = size;
      break;
    }
  }
  return cudaSuccess;
}

// The same, asked once for each kernel and device.
template <auto Kernel>
cudaError_t limits_of(kernel_limits& limits) {
  // 32 blocks + 2 cluster + overlaps; 0: not asked
  static std::atomic<std::uint32_t> known[most_devices];
  static_assert(most_in_cluster < 16);
  int device = 0;
  if (const auto e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (const std::uint32_t x = device < most_devices ? known[device].load() : 0) {
    limits = {x / 32, x / 2 % 16, x % 2 == 1};
    return cudaSuccess;
  }
  const auto e = ask_limits(Kernel, device, limits);
  if (e == cudaSuccess && device < most_devices)
    known[device].store(32 * limits.blocks + 2 * limits.cluster + limits.overlaps);
  return e;
}

// Launches a kernel that verifies requests, on a cluster for each. A cluster has more than one
// thread block if that does not fill the device; never more than there is work for, or than the
// device can run.
template <auto Kernel, class... A>
cudaError_t launch_verifier(std::size_t requests, std::size_t vocabulary, cudaStream_t stream,
                            A... arguments) {
  kernel_limits limits;
  if (const auto e = limits_of<Kernel>(limits); e != cudaSuccess) return e;
  unsigned cluster = 1;
  while (cluster < limits.cluster && cluster * groups < block_count(vocabulary) &&
         2 * cluster * requests <= limits.blocks)
    cluster *= 2;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(requests * cluster));
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
  }
  if (limits.overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, Kernel, arguments...);
}

}  // namespace detail
}  // namespace cuda
SPECAGG_END
