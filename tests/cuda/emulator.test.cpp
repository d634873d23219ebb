// SPDX-License-Identifier: Apache-2.0
// The CUDA device on the CPU that the other tests of this folder run on (emulator/engine.hpp): it
// does what CUDA promises, and finds what CUDA does not forgive.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <numeric>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace {

using cuda_emulator::order;

// Device memory that can be read on the host at any time: the emulator's is the host's.
template <class T>
struct buffer {
  T* at = nullptr;
  std::size_t size;
  explicit buffer(std::size_t n) : size(n) {
    REQUIRE(cudaMalloc(&at, n * sizeof(T)) == cudaSuccess);
  }
  ~buffer() { cudaFree(at); }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  std::vector<T> read() const {
    std::vector<T> out(size);
    REQUIRE(cudaMemcpy(out.data(), at, size * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return out;
  }
};

template <class... P, class... A>
cudaError_t launch(unsigned blocks, unsigned threads, unsigned cluster, void (*kernel)(P...),
                   A... arguments) {
  cudaLaunchAttribute attribute{cudaLaunchAttributeClusterDimension, {{cluster, 1, 1}}};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// f() under several orders of threads; what it returned.
template <class F>
auto in_all_orders(F f) {
  std::vector<decltype(f())> results;
  const auto under = [&](order o, std::uint64_t seed) {
    cuda_emulator::set_order(o, seed);
    results.push_back(f());
  };
  under(order::forward, 0);
  under(order::backward, 0);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) under(order::shuffled, seed);
  cuda_emulator::set_order(order::forward);
  return results;
}
template <class T>
bool all_equal(const std::vector<T>& x) {
  return std::all_of(x.begin(), x.end(), [&](const T& y) { return y == x[0]; });
}

std::string misuse_of(unsigned blocks, unsigned threads, unsigned cluster, void (*kernel)()) {
  try {
    launch(blocks, threads, cluster, kernel);
    return "";
  } catch (const cuda_emulator::misuse& e) {
    return e.what();
  }
}
bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// ---- kernels ------------------------------------------------------------------------------------

__global__ void indices(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x + 10000 * threadIdx.y +
      100000 * threadIdx.z;
}

// The sum of the block's threads by halving; without the barriers between, what is read may not be
// there yet.
template <bool Synchronised>
__global__ void sum_by_halving(int* out) {
  __shared__ int part[256];
  part[threadIdx.x] = static_cast<int>(threadIdx.x * threadIdx.x);
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (Synchronised) __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

// Every thread reads its neighbour's number, twice. The second write must wait until the first was
// read.
template <bool Synchronised>
__global__ void write_again(int* out) {
  __shared__ int number[64];
  int sum = 0;
  for (int turn = 1; turn <= 2; ++turn) {
    number[threadIdx.x] = turn;
    __syncthreads();
    sum += number[(threadIdx.x + 33) % 64];
    if (Synchronised) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

__global__ void shuffles(int* out, double* wide) {
  const int x = 100 + static_cast<int>(threadIdx.x);
  const unsigned all = ~0u;
  int* to = out + 10 * threadIdx.x;
  to[0] = __shfl_sync(all, x, 5);
  to[1] = __shfl_sync(all, x, 5, 8);
  to[2] = __shfl_xor_sync(all, x, 3);
  to[3] = __shfl_xor_sync(all, x, 12, 8);  // leaves the group of 8: its own
  to[4] = __shfl_down_sync(all, x, 2);
  to[5] = __shfl_down_sync(all, x, 2, 4);
  to[6] = __shfl_up_sync(all, x, 2);
  to[7] = __shfl_up_sync(all, x, 2, 4);
  to[8] = static_cast<int>(__ballot_sync(all, threadIdx.x % 3 == 0));
  to[9] = __any_sync(all, threadIdx.x == 7) + 2 * __all_sync(all, threadIdx.x < 31);
  wide[threadIdx.x] = __shfl_xor_sync(all, 1 / double(threadIdx.x + 1), 1);
}

// The two halves of a warp reduce numbers of their own, one of them more often.
__global__ void half_warps(float* out) {
  const bool upper = threadIdx.x & 16;
  const unsigned mask = upper ? 0xffff0000u : 0x0000ffffu;
  float x = static_cast<float>(threadIdx.x);
  for (int turn = 0; turn < (upper ? 3 : 1); ++turn)
    for (int d = 8; d > 0; d /= 2) x += __shfl_xor_sync(mask, x, d);
  __syncwarp();
  out[threadIdx.x] = x;
}

// Each block's sum, and the sum over the cluster read from all blocks' shared memory.
__global__ void across_cluster(int* out, bool wait_at_the_end) {
  const auto cluster = cooperative_groups::this_cluster();
  __shared__ int own;
  if (threadIdx.x == 0) own = static_cast<int>(blockIdx.x + 1);
  cluster.sync();
  int sum = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
    sum = 10 * sum + *cluster.map_shared_rank(&own, rank);
  if (wait_at_the_end) cluster.sync();
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void uninitialised(unsigned* out) {
  __shared__ unsigned x[4];
  out[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = 5;
}

__global__ void divergent() {
  if (threadIdx.x != 7) __syncthreads();
}
__global__ void different_waits() {
  if (threadIdx.x < 32) __syncthreads();
  else
    __shfl_sync(threadIdx.x == 32 ? ~0u : 1u << threadIdx.x % 32, 0, static_cast<int>(threadIdx.x));
}
__global__ void not_in_mask() { __syncwarp(1); }
__global__ void not_in_the_other_mask() { __shfl_sync(0xffff0000u | 1u << threadIdx.x, 1, 3); }
__global__ void different_masks() { __syncwarp(threadIdx.x > 16 ? 0xffff0000u : ~0u); }
__global__ void cluster_left() {
  if (blockIdx.x != 1) cooperative_groups::this_cluster().sync();
}
__global__ void no_such_rank() {
  __shared__ int x;
  cooperative_groups::this_cluster().map_shared_rank(&x, 2);
}
int global_variable;
__global__ void not_shared() {
  cooperative_groups::this_cluster().map_shared_rank(&global_variable, 0);
}

// Loads 16 bytes at once, from any address.
struct alignas(16) sixteen {
  float x[4];
};
__global__ void load_sixteen(const float* at, float* out) {
  *out = reinterpret_cast<const sixteen*>(at)->x[3];
}
__global__ void store_sixteen(float* at) { *reinterpret_cast<sixteen*>(at) = {}; }
__global__ void read_only(const float* at, float* out) { *out = __ldg(at); }

// When each thread came here, among all.
__global__ void take_numbers(unsigned* next, unsigned* out) {
  __syncthreads();
  __syncwarp();
  out[threadIdx.x] = atomicAdd(next, 1);
}

struct wide_argument {
  int values[20];
};
__global__ void add(int* at, int x) { atomicAdd(at, x); }
__global__ void add_all(int* at, wide_argument x) {
  for (const int v : x.values) at[threadIdx.x] += v;
}

}  // namespace

TEST_CASE("every thread of every block runs once, and knows where it is") {
  buffer<unsigned> out(2 * 3 * 2 * 4 * 3 * 2);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2, 3, 2);
  config.blockDim = dim3(4, 3, 2);
  REQUIRE(cudaLaunchKernelEx(&config, indices, out.at) == cudaSuccess);
  const auto read = out.read();
  std::size_t i = 0;
  for (unsigned z = 0; z < 2; ++z)
    for (unsigned y = 0; y < 3; ++y)
      for (unsigned x = 0; x < 2; ++x)
        for (unsigned c = 0; c < 2; ++c)
          for (unsigned b = 0; b < 3; ++b)
            for (unsigned a = 0; a < 4; ++a)
              REQUIRE(read[i++] == x + 10 * y + 100 * z + 1000 * a + 10000 * b + 100000 * c);
}

TEST_CASE(
    "barriers order reads and writes of shared memory. A missing one is found by some order of "
    "threads") {
  const auto sum = [](auto* kernel) {
    return [kernel] {
      buffer<int> out(3);
      launch(3, 256, 1, kernel, out.at);
      return out.read();
    };
  };
  const auto right = in_all_orders(sum(&sum_by_halving<true>));
  CHECK(right[0] == std::vector<int>(3, 255 * 256 * 511 / 6));
  CHECK(all_equal(right));
  CHECK_FALSE(all_equal(in_all_orders(sum(&sum_by_halving<false>))));

  const auto twice = [](auto* kernel) {
    return [kernel] {
      buffer<int> out(64);
      launch(1, 64, 1, kernel, out.at);
      return out.read();
    };
  };
  CHECK(all_equal(in_all_orders(twice(&write_again<true>))));
  CHECK_FALSE(all_equal(in_all_orders(twice(&write_again<false>))));
}

TEST_CASE("threads run in the order asked for: forward, backward, or another for each seed") {
  const auto orders = in_all_orders([] {
    buffer<unsigned> next(1), out(96);
    cudaMemset(next.at, 0, 4);
    launch(1, 96, 1, take_numbers, next.at, out.at);
    return out.read();
  });
  for (unsigned i = 0; i < 96; ++i) {
    REQUIRE(orders[0][i] == i);
    REQUIRE(orders[1][i] == 95 - i);
  }
  for (std::size_t i = 0; i < orders.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) CHECK(orders[i] != orders[k]);
}

TEST_CASE("shuffles give the lanes that the CUDA manual says") {
  const auto results = in_all_orders([] {
    buffer<int> out(320);
    buffer<double> wide(32);
    launch(1, 32, 1, shuffles, out.at, wide.at);
    const auto doubles = wide.read();
    for (unsigned i = 0; i < 32; ++i) REQUIRE(doubles[i] == 1 / double((i ^ 1) + 1));
    return out.read();
  });
  CHECK(all_equal(results));
  for (int i = 0; i < 32; ++i) {
    const int* x = results[0].data() + 10 * i;
    const unsigned thirds = 0x49249249u;
    REQUIRE(x[0] == 105);
    REQUIRE(x[1] == 100 + i / 8 * 8 + 5);
    REQUIRE(x[2] == 100 + (i ^ 3));
    REQUIRE(x[3] == 100 + ((i ^ 12) < i / 8 * 8 + 8 ? i ^ 12 : i));
    REQUIRE(x[4] == 100 + (i + 2 < 32 ? i + 2 : i));
    REQUIRE(x[5] == 100 + (i % 4 < 2 ? i + 2 : i));
    REQUIRE(x[6] == 100 + (i >= 2 ? i - 2 : i));
    REQUIRE(x[7] == 100 + (i % 4 >= 2 ? i - 2 : i));
    REQUIRE(static_cast<unsigned>(x[8]) == thirds);
    REQUIRE(x[9] == 1);
  }
}

TEST_CASE("halves of a warp shuffle on their own") {
  const auto results = in_all_orders([] {
    buffer<float> out(64);
    launch(1, 64, 1, half_warps, out.at);
    return out.read();
  });
  CHECK(all_equal(results));
  for (unsigned i = 0; i < 64; ++i) {
    const float lower = static_cast<float>(i / 16 * 16 * 16 + 120);
    REQUIRE(results[0][i] == (i & 16 ? 256 * lower : lower));
  }
}

TEST_CASE(
    "blocks of a cluster read each other's shared memory, as long as these have not returned") {
  const auto sums = [](bool wait_at_the_end) {
    return [=] {
      buffer<int> out(8 * 64);
      launch(8, 64, 4, across_cluster, out.at, wait_at_the_end);
      return out.read();
    };
  };
  const auto right = in_all_orders(sums(true));
  CHECK(all_equal(right));
  for (std::size_t i = 0; i < 512; ++i) REQUIRE(right[0][i] == (i < 256 ? 1234 : 5678));
  if (!cuda_emulator::overwrites_shared_memory()) return;
  CHECK_FALSE(all_equal(in_all_orders(sums(false))));
  buffer<unsigned> garbage(4);
  for (int turn = 0; turn < 2; ++turn) {
    launch(1, 4, 1, uninitialised, garbage.at);
    CHECK(garbage.read() == std::vector<unsigned>(4, ~0u));
  }
}

TEST_CASE("a barrier that some threads never reach is named, not waited for") {
  CHECK(has(misuse_of(1, 64, 1, divergent), "63 threads wait at __syncthreads()"));
  CHECK(has(misuse_of(1, 64, 1, divergent), "1 threads have returned (thread 7"));
  CHECK(has(misuse_of(1, 64, 1, different_waits), "wait for other lanes of their warp (thread 32"));
  CHECK(has(misuse_of(1, 32, 1, not_in_mask), "lane 1 is not in its own mask"));
  CHECK(has(misuse_of(1, 16, 1, not_in_the_other_mask),
            "lane 0 reads lane 3, which is not in the mask"));
  CHECK(has(misuse_of(1, 32, 1, different_masks), "32 threads wait for other lanes of their warp"));
  CHECK(has(misuse_of(2, 32, 2, cluster_left), "32 of 64 threads wait at cluster.sync()"));
  CHECK(has(misuse_of(2, 32, 2, no_such_rank), "it has no block 2"));
  CHECK(has(misuse_of(2, 32, 2, not_shared), "not into shared memory"));
  buffer<int> out(3);  // and what follows works
  launch(3, 256, 1, sum_by_halving<true>, out.at);
  CHECK(out.read()[2] == 255 * 256 * 511 / 6);
}

TEST_CASE(
    "a load or store whose address is not aligned is named. So is a read of memory that is not the "
    "device's") {
  if (!cuda_emulator::overwrites_shared_memory()) return;  // a sanitizer is in its place
  const auto refusal = [](auto* kernel, auto... arguments) {
    try {
      launch(1, 1, 1, kernel, arguments...);
      return std::string();
    } catch (const cuda_emulator::misuse& e) {
      return std::string(e.what());
    }
  };
  buffer<float> at(8), out(1);
  CHECK(refusal(load_sixteen, at.at, out.at) == "");
  CHECK(refusal(load_sixteen, at.at + 4, out.at) == "");
  CHECK(has(refusal(load_sixteen, at.at + 1, out.at), "4 is not a multiple of 16"));
  CHECK(has(refusal(store_sixteen, at.at + 2), "8 is not a multiple of 16"));
  CHECK(refusal(read_only, at.at + 7, out.at) == "");
  CHECK(has(refusal(read_only, at.at + 8, out.at), "there is no such memory on the device"));
  float host = 0;
  CHECK(has(refusal(read_only, &host, out.at), "there is no such memory on the device"));
}

TEST_CASE("what is in a stream happens when it must, in order, and no sooner") {
  buffer<int> at(1);
  int* pinned = nullptr;
  cudaStream_t stream{};
  REQUIRE(cudaMallocHost(&pinned, sizeof(int)) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  cudaLaunchConfig_t config{};
  config.stream = stream;
  *pinned = 0;
  cudaMemsetAsync(at.at, 0, sizeof(int), stream);
  cudaLaunchKernelEx(&config, add, at.at, 5);
  cudaEvent_t after{};
  cudaEventCreate(&after);
  cudaMemcpyAsync(pinned, at.at, sizeof(int), cudaMemcpyDeviceToHost, stream);
  cudaEventRecord(after, stream);
  cudaLaunchKernelEx(&config, add, at.at, 1);
  cudaMemcpyAsync(pinned, at.at, sizeof(int), cudaMemcpyDeviceToHost, stream);
  CHECK(*pinned == 0);
  CHECK(cudaEventQuery(after) == cudaErrorNotReady);
  CHECK(cudaEventSynchronize(after) == cudaSuccess);
  CHECK(*pinned == 5);
  int pageable = 0;
  cudaMemcpyAsync(&pageable, at.at, sizeof(int), cudaMemcpyDeviceToHost, stream);
  CHECK(pageable == 6);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(*pinned == 6);

  cudaEventRecord(after, stream);  // an event recorded anew is done when the last record is
  cudaLaunchKernelEx(&config, add, at.at, 1);
  cudaMemcpyAsync(pinned, at.at, sizeof(int), cudaMemcpyDeviceToHost, stream);
  cudaEventRecord(after, stream);
  CHECK(cudaEventSynchronize(after) == cudaSuccess);
  CHECK(*pinned == 7);

  CHECK(cudaMemcpyAsync(at.at, pinned, 8, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(pinned, at.at, 4, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(pinned, 0, 4, stream) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  config.blockDim = 1025;
  CHECK(cudaLaunchKernelEx(&config, add, at.at, 1) == cudaErrorInvalidConfiguration);
  CHECK(launch(3, 32, 2, add, at.at, 1) == cudaErrorInvalidClusterSize);
  cudaEventDestroy(after);
  cudaStreamDestroy(stream);
  cudaFreeHost(pinned);
}

TEST_CASE("a captured graph holds arguments by value, and runs as often as it is launched") {
  cudaStream_t stream{};
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  buffer<int> at(4), sum(1);
  cudaMemset(at.at, 0, 16);
  cudaMemset(sum.at, 0, 4);
  cuda_emulator::counted() = {};
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  cudaLaunchConfig_t config{};
  config.stream = stream;
  config.blockDim = 4;
  wide_argument x{};
  std::iota(x.values, x.values + 20, 0);
  cudaLaunchKernelEx(&config, add_all, at.at, x);
  x = {};
  config.blockDim = 1;
  int seven = 7;
  cudaLaunchKernelEx(&config, add, sum.at, seven);
  seven = 0;
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(at.read()[0] == 0);
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(at.read() == std::vector<int>(4, 3 * 190));
  CHECK(sum.read()[0] == 21);
  CHECK(cuda_emulator::counted().captured == 2);
  CHECK(cuda_emulator::counted().launches == 0);
  CHECK(cuda_emulator::counted().graph_launches == 3);
  cudaGraphExecDestroy(exec);
  cudaStreamDestroy(stream);
}

TEST_CASE("while a stream captures, what CUDA forbids fails, and spoils the capture") {
  cudaStream_t stream{};
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  buffer<int> at(1);
  void* memory = nullptr;
  cudaGraph_t graph{};
  int host = 0;
  const auto spoils = [&](auto call) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    cudaLaunchConfig_t config{};
    config.stream = stream;
    CHECK(cudaLaunchKernelEx(&config, add, at.at, 1) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
  };
  spoils([&] { return cudaMalloc(&memory, 4); });
  spoils([&] { return cudaStreamSynchronize(stream); });
  spoils([&] { return cudaMemcpy(&host, at.at, 4, cudaMemcpyDeviceToHost); });
  spoils([&] { return cudaDeviceSynchronize(); });
  spoils([&] { return launch(1, 1, 1, add, at.at, 1); });
  CHECK(cudaStreamEndCapture(stream, &graph) != cudaSuccess);
  cudaStreamDestroy(stream);
}

TEST_CASE("calls fail when a test wants them to") {
  buffer<int> at(1);
  cuda_emulator::fail_call(cudaErrorMemoryAllocation, 1);
  // of the two calls it is made of, the second
  CHECK(cudaMemset(at.at, 0, 4) == cudaErrorMemoryAllocation);
  CHECK(cudaMemset(at.at, 0, 4) == cudaSuccess);
  cuda_emulator::set_devices(0);
  int count = 1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 0);
  cuda_emulator::set_devices(1);
}
