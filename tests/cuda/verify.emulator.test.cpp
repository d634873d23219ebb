// SPDX-License-Identifier: Apache-2.0
// What only the emulator can show of backend/cuda/verify.hpp and specagg/backend/cuda/launch.hpp:
// what they ask of CUDA, and devices of other kinds.
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

}  // namespace

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
