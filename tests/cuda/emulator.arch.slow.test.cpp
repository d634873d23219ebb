// SPDX-License-Identifier: Apache-2.0
// The code that only nvcc sees, compiled for the emulator: what stands under __CUDACC__ and
// __CUDA_ARCH__, for sm_80, whose code has no clusters. All but the asm of PTX. The library has
// another name in this file, because the rest of the program is built without these macros.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cooperative_groups.h"
#include "cuda_runtime.h"
#include "support/catch.hpp"

#define __CUDACC__
#define __CUDA_ARCH__ 800
#define __noinline__ __attribute__((noinline))
#define specagg specagg_of_sm80
#define tally tally_of_sm80
#define example example_of_sm80
#define numbers numbers_of_sm80
#include "cuda/agree.hpp"
#include "cuda/emulator/math_bits.hpp"

extern "C" void math_bits_of_cpu(std::vector<std::uint32_t>&);  // emulator/math_bits.cpp

TEST_CASE("cuda: arithmetic by the device's intrinsics has the bits of the CPU's") {
  const auto device = math_bits();
  std::vector<std::uint32_t> cpu;
  math_bits_of_cpu(cpu);
  REQUIRE(device.size() == cpu.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < device.size(); ++i) different += device[i] != cpu[i];
  CHECK(different == 0);
}

TEST_CASE("cuda: code for sm_80 agrees with the CPU, without clusters") {
  cuda_emulator::ability_of(0).ptx_version = 80;
  cuda_emulator::counted() = {};
  tally seen;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const std::size_t V = seed == 8 ? 17000 : 900 * seed;
    agree<float>({3, V, 3}, seed, std::vector{specagg::lossless{}}, specagg::token_verifier{},
                 seen);
    agree<float>({3, V, 3}, seed, std::vector{specagg::token_v3{0.3}}, specagg::cuda::coupled{},
                 seen);
    agree<specagg::f16>({3, V, 3}, seed, std::vector{specagg::lossless{}},
                        specagg::token_verifier{}, seen);
  }
  cuda_emulator::ability_of(0).ptx_version = 90;
  CHECK(seen.steps > 50);
  CHECK(cuda_emulator::counted().largest_cluster == 1);
}
