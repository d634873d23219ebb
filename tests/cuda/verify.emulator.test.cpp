// SPDX-License-Identifier: Apache-2.0
// What only the emulator can show of backend/cuda/verify.hpp, specagg/backend/cuda/launch.hpp and
// specagg/backend/cuda/numbers.hpp: what they ask of CUDA, devices of other kinds, and parts of
// kernels alone.
#include "cuda/agree.hpp"

using namespace specagg;
namespace device = specagg::cuda;
using cuda_emulator::counted;

namespace {

// The largest cluster that verification of a batch of `requests` used on this device. Its results
// are the CPU's.
unsigned cluster_on(int ordinal, std::size_t requests, std::size_t V = 40000) {
  REQUIRE(cudaSetDevice(ordinal) == cudaSuccess);
  counted() = {};
  tally seen;
  agree<float>({requests, V, 1}, 7, std::vector{lossless{}}, token_verifier{}, seen);
  return counted().largest_cluster;
}

// A row of numbers in memory, and its maximum as each thread block finds it.
struct numbers_in_memory {
  using value_type = float;
  const float* x;
  std::size_t n;
  SPECAGG_FUNCTION std::size_t size() const { return n; }
  struct block {
    const float* x;
    template <class V>
    SPECAGG_FUNCTION V operator()(std::size_t k, int) const {
      return V::load(x + k);
    }
  };
  SPECAGG_FUNCTION block open(std::size_t begin, std::size_t) const { return {x + begin}; }
};
__global__ void write_maximum(numbers_in_memory row, double* out) {
  alignas(16) __shared__ unsigned char memory[sizeof(device::detail::shared_memory)];
  auto& shared = *reinterpret_cast<device::detail::shared_memory*>(memory);
  device::detail::collective<true> together(shared);
  const double x = together.reduce<specagg::detail::larger>(row, [](auto at) { return at; });
  if (threadIdx.x == 0) out[blockIdx.x] = x;
}

constexpr auto uses = std::array{stream::coin, stream::residual, stream::bonus};
constexpr auto positions = device::detail::numbers_of_request::positions;
__global__ void write_numbers(std::uint64_t seed, std::uint64_t request, std::uint32_t start,
                              double* out) {
  alignas(16) __shared__ unsigned char memory[sizeof(device::detail::numbers_of_request)];
  auto& numbers = *reinterpret_cast<device::detail::numbers_of_request*>(memory);
  numbers.draw_all(seed, request, start);
  __syncthreads();
  if (threadIdx.x < positions)
    for (unsigned i = 0; i < uses.size(); ++i)
      out[i * positions + threadIdx.x] = numbers.uniform({uses[i], start + threadIdx.x, start});
}

}  // namespace

TEST_CASE("cuda: the numbers that are drawn first are those of random_streams") {
  for (const std::uint32_t start : {0u, 77u, 0xfffffffau}) {  // positions beyond 2^32 begin anew
    const on_device out(std::vector<double>(uses.size() * positions, NAN));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(device::threads);
    const std::uint64_t seed = 1234567890123456789u, request = std::uint64_t(start) << 20 | 5;
    REQUIRE(cudaLaunchKernelEx(&config, write_numbers, seed, request, start, out.data()) ==
            cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const auto found = out.read();
    const random_streams streams(seed, request);
    for (unsigned i = 0; i < uses.size(); ++i)
      for (unsigned j = 0; j < positions; ++j)
        CHECK(found[i * positions + j] == streams.uniform({uses[i], start + j, start}));
  }
}

TEST_CASE("cuda: a row's part and its request are a remainder and a quotient") {
  constexpr unsigned end = 1u << 27;
  for (unsigned n = 1; n <= 16; ++n) {
    const device::detail::division by(n);
    bool same = true;
    for (unsigned i = 0; i < 100'000; ++i)
      for (const unsigned x : {i, end - 1 - i, n * (i * 83) - 1, n * (i * 83)})
        same = same && (x >= end || by.quotient(x) == x / n);
    CHECK(same);
  }
}

TEST_CASE("cuda: all thread blocks of a cluster have one maximum, also of -0 and +0") {
  numbers random(1);
  std::vector<float> x(12 * 1024);
  for (int i = 0; i < 20; ++i) {
    for (float& y : x) y = random.below(2) ? 0.f : -0.f;
    const on_device row(x);
    const on_device out(std::vector<double>(4, NAN));
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {4, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(4);
    config.blockDim = dim3(device::threads);
    config.attrs = &shape;
    config.numAttrs = 1;
    const numbers_in_memory all{row.data(), x.size()};
    REQUIRE(cudaLaunchKernelEx(&config, write_maximum, all, out.data()) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    for (const double largest : out.read())
      REQUIRE(std::signbit(largest) == std::signbit(out.read()[0]));
  }
}

TEST_CASE("cuda: clusters are as large as the device allows, and there is none where it has none") {
  cuda_emulator::set_devices(6);
  cuda_emulator::ability_of(1).clusters = false;
  cuda_emulator::ability_of(2).largest_cluster = 4;
  cuda_emulator::ability_of(3).largest_cluster = 1;
  cuda_emulator::ability_of(4).ptx_version = 80;
  cuda_emulator::ability_of(5).blocks = 1;  // on each of 132 multiprocessors
  CHECK(cluster_on(0, 1) == 4);  // 40 blocks of 1024 tokens; 16 of them for each thread block
  CHECK(cluster_on(1, 1) == 1);
  CHECK(cluster_on(2, 1) == 4);
  CHECK(cluster_on(3, 1) == 1);
  CHECK(cluster_on(0, 62, 33000) == 4);  // as many as run at once
  CHECK(cluster_on(0, 63, 33000) == 2);
  CHECK(cluster_on(0, 67, 17000) == 2);
  CHECK(cluster_on(5, 66, 17000) == 2);
  CHECK(cluster_on(5, 67, 17000) == 1);
  cuda_emulator::set_devices(1);
}

TEST_CASE("cuda: a kernel's attributes are asked for once") {
  tally seen;
  const std::vector choices{lossless{}};
  agree<float>({1, 17000, 1}, 3, choices, token_verifier{}, seen);
  counted() = {};
  agree<float>({1, 17000, 1}, 3, choices, token_verifier{}, seen);
  CHECK(counted().launches == 2);
  CHECK(counted().questions == 0);
}

TEST_CASE("cuda: no thread block starts for a draft row that the policy does not read") {
  // The bonus of ensemble reads the draft's row; that of lossless does not.
  const auto blocks = [](const auto& policy) {
    counted() = {};
    tally seen;
    agree<float>({3, 1000, 2}, 5, std::vector{policy}, token_verifier{}, seen);
    return counted().blocks;
  };
  CHECK(blocks(ensemble{0.5}) == 3 * (3 + 3) + 3);
  CHECK(blocks(lossless{}) == 3 * (2 + 3) + 3);
}
