// SPDX-License-Identifier: Apache-2.0
// How verifications are launched: what they begin with on the host, and the second kernel, on
// clusters of thread blocks of a size that the device can run and the batch can use.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include <specagg/backend/cuda/collective.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// The second kernel may start while the first one runs, and waits here for everything that the
// first has written.
__device__ inline void start_next_kernel() {
#if SPECAGG_PTX && SPECAGG_CUDA_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_last_kernel() {
#if SPECAGG_PTX && SPECAGG_CUDA_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches a kernel on this many thread blocks.
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 blocks, cudaStream_t stream, const A&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The abilities of the current device with a kernel.
struct kernel_limits {
  // of 1, 2, 4 and 8 thread blocks: how many clusters run at once (fewer than the thread blocks
  // would suggest: a cluster lies in one part of the device)
  unsigned clusters[4] = {};
  // whether it may start before the kernel before it has ended, also when a graph is captured
  bool overlaps = false;
};
static_assert(most_in_cluster == 8);
inline constexpr int most_devices = 64;  // whose limits are remembered

template <class Kernel>
cudaError_t ask_limits(Kernel* kernel, int device, kernel_limits& limits) {
  int processors = 0, clusters = 0, driver = 0, blocks = 0;
  cudaFuncAttributes attributes{};
  cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, kernel);
  if (e == cudaSuccess) e = cudaDriverGetVersion(&driver);
  if (e == cudaSuccess)
    e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
  if (e != cudaSuccess) return e;
  limits = {{unsigned(processors * blocks)}};
  // the code that runs was compiled without clusters
  if (!clusters || attributes.ptxVersion < 90) return cudaSuccess;
  limits.overlaps = driver >= 12030;
  for (int i = 1; i < 4; ++i) {
    const unsigned size = 1u << i;
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size);
    config.blockDim = dim3(threads);
    config.attrs = &shape;
    config.numAttrs = 1;
    int fit = 0;
    if (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess)
      (void)cudaGetLastError();  // it was a question: no later check reports its answer
    else limits.clusters[i] = unsigned(fit > 0 ? fit : 0);
  }
  return cudaSuccess;
}

// The limits of Kernel on the current device. CUDA is asked once for each kernel and device.
template <auto Kernel>
cudaError_t limits_of(kernel_limits& limits) {
  static std::atomic<std::uint64_t> known[most_devices];  // packed; 0: not asked
  constexpr unsigned most = (1u << 15) - 1;
  int device = 0;
  if (const auto e = cudaGetDevice(&device); e != cudaSuccess) return e;
  const bool remembers = device < most_devices;
  std::uint64_t packed = remembers ? known[device].load() : 0;
  if (packed == 0) {
    if (const auto e = ask_limits(Kernel, device, limits); e != cudaSuccess) return e;
    for (const unsigned n : limits.clusters) packed = packed << 15 | (n < most ? n : most);
    packed = packed << 1 | limits.overlaps;
    if (remembers) known[device].store(packed);
  }
  limits.overlaps = packed & 1;
  for (int i = 0; i < 4; ++i) limits.clusters[i] = packed >> (46 - 15 * i) & most;
  return cudaSuccess;
}

// Launches a kernel that verifies requests, on a cluster for each: the largest clusters that all
// run at once, with no more thread blocks than there is work for. (On an H100, 64 requests on
// clusters of 4 are two more than run at once, and took 1.2 times as long as on clusters of 2.)
template <auto Kernel, class... A>
cudaError_t launch_verifier(std::size_t requests, std::size_t vocabulary, cudaStream_t stream,
                            A... arguments) {
  kernel_limits limits;
  if (const auto e = limits_of<Kernel>(limits); e != cudaSuccess) return e;
  unsigned cluster = 1;
  for (int i = 1; i < 4 && cluster * groups < block_count(vocabulary); ++i) {
    if (requests > limits.clusters[i]) break;
    cluster = 1u << i;
  }
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

// policies[r] for request r, or the same policy for all.
template <class Policy>
struct same_for_all {
  Policy policy;
  __device__ const Policy& operator[](std::size_t) const { return policy; }
};

template <class Policies>
using policy_of = std::remove_cvref_t<decltype(std::declval<const Policies&>()[0])>;

// Whether every row that is read can be read four logits at a time.
bool rows_in_fours(const auto& b, bool reads_draft) {
  const auto in_fours = [](const auto* rows, std::size_t stride) {
    return reinterpret_cast<std::uintptr_t>(rows) % (4 * sizeof(*rows)) == 0 && stride % 4 == 0;
  };
  return b.vocabulary % 4 == 0 && !b.draft_mask && !b.target_mask &&
         in_fours(b.target, b.target_stride) && (!reads_draft || in_fours(b.draft, b.draft_stride));
}

// Every verification on a device begins here. Refuses what kernels cannot take, and calls
// kernels(the batch that they take, the policies of the requests). Rows: which Batch to make of the
// Shape b (batch.hpp). has_room: whether there is enough storage.
template <class Verifier, template <class B, bool Whole> class Rows, class B, class Policies,
          class Outcome, class Kernels>
cudaError_t launch_batch(const B& b, const Policies& policies, const Outcome& out, bool has_room,
                         const Kernels& kernels) {
  if constexpr (!requires { policies[0]; }) {
    return launch_batch<Verifier, Rows>(b, same_for_all<Policies>{policies}, out, has_room,
                                        kernels);
  } else {
    using Policy = policy_of<Policies>;
    static_assert(std::is_trivially_copyable_v<Policies> && std::is_trivially_copyable_v<Verifier>,
                  "specagg: one policy for all requests, or a device pointer to one for each");
#if defined(__CUDACC__)
    static_assert(!OneOfSeveral<Policy>,
                  "specagg: no policy chosen at run time (any_of) runs on a device");
#endif
    if constexpr (std::is_pointer_v<Policies>)
      if (!policies) return cudaErrorInvalidValue;
    if (b.requests == 0) return cudaSuccess;
    // a grid has fewer than 2^31 thread blocks
    const std::size_t most_requests = (std::size_t(1) << 24) / (2 * B::limit + 2);
    const bool reads = b.template reads_draft_rows<Policy, Verifier>(out);
    if (b.requests > most_requests || b.most > B::limit || b.vocabulary == 0 ||
        b.vocabulary > most_vocabulary || !b.start || !b.seed || !has_room ||
        !b.can_launch(out, reads))
      return cudaErrorInvalidValue;
    // policies that read the draft need a row of it for the bonus as well
    const std::size_t draft_rows = reads ? b.most + reads_draft<Policy> : 0;
    if (rows_in_fours(b, reads))
      return kernels(Rows<B, true>{b, draft_rows, reads_draft<Policy>}, policies);
    return kernels(Rows<B, false>{b, draft_rows, reads_draft<Policy>}, policies);
  }
}
// Whether memory is given, aligned, and large enough.
inline bool has_room(const void* storage, std::size_t bytes, std::size_t needed) {
  return storage && reinterpret_cast<std::uintptr_t>(storage) % 16 == 0 && bytes >= needed;
}

}  // namespace cuda::detail
SPECAGG_END
