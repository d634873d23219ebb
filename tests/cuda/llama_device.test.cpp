// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cuda/llama_device.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

using namespace specagg::cuda;
using test::error_of;

TEST_CASE(
    "an arena without memory counts what one with memory deals out, in multiples of 256 bytes") {
  const auto deal = [](arena& memory) {
    return std::vector<const void*>{memory.take<double>(1), memory.take<std::byte>(256),
                                    memory.take<float>(0), memory.take<std::uint16_t>(129),
                                    memory.take<float>(1)};
  };
  arena counted;
  CHECK(deal(counted) == std::vector<const void*>(5, nullptr));
  CHECK(counted.used() == 256 + 256 + 0 + 512 + 256);
  alignas(256) static std::byte memory[1280];
  arena placed(memory);
  CHECK(deal(placed) ==
        std::vector<const void*>{memory, memory + 256, memory + 512, memory + 512, memory + 1024});
  CHECK(placed.used() == counted.used());
}
TEST_CASE("what CUDA refuses is an error that says where, and is not reported again") {
  CHECK(error_of([] { check(cudaSuccess, "place"); }) == "");
  const std::string refused = error_of([] { check(cudaErrorInvalidValue, "place", "a.gguf"); });
  CHECK(refused.find("a.gguf: place: cudaErrorInvalidValue") == 0);
  CHECK(error_of([] { check(CUBLAS_STATUS_NOT_SUPPORTED, "cuBLASLt"); }).find("CUDA: cuBLASLt: ") ==
        0);
  CHECK(error_of([] { device none(-1); }).find("CUDA: device -1: cudaError") == 0);
  CHECK(error_of([] { check(cudaSetDevice(-1), "place"); }).find("CUDA: place: cudaError") == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}
TEST_CASE(
    "a device has a stream and a workspace. Memory of it can be written and read in that stream") {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return;
  const device on;
  CHECK((on.ordinal() == 0 && on.stream() && on.blas() && on.workspace()));
  const auto there = device_memory(4096, "test");
  const auto here = host_memory<std::uint8_t>(4096, "test");
  REQUIRE(cudaMemsetAsync(there.get(), 0x5a, 4096, on.stream()) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(here.get(), there.get(), 4096, cudaMemcpyDeviceToHost, on.stream()) ==
          cudaSuccess);
  REQUIRE(cudaStreamSynchronize(on.stream()) == cudaSuccess);
  CHECK((here[0] == 0x5a && here[4095] == 0x5a));
}
