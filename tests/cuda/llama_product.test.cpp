// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cuda/llama_product.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg::cuda;

namespace {

// The bits of a whole number below 256 in 16 bits.
std::uint16_t bits_of(int x, cudaDataType_t type) {
  const int mantissa_bits = type == CUDA_R_16BF ? 7 : 10, bias = type == CUDA_R_16BF ? 127 : 15;
  const unsigned sign = x < 0 ? 0x8000u : 0, size = unsigned(std::abs(x));
  if (size == 0) return 0;
  const int e = std::ilogb(double(size));
  const unsigned mantissa = (size << (mantissa_bits - e)) & ((1u << mantissa_bits) - 1);
  return std::uint16_t(sign | unsigned(e + bias) << mantissa_bits | mantissa);
}
std::vector<std::uint16_t> in_16_bits(const std::vector<int>& numbers, cudaDataType_t type) {
  std::vector<std::uint16_t> bits;
  for (const int x : numbers) bits.push_back(bits_of(x, type));
  return bits;
}
std::vector<float> multiplied(const device& on, const product& by,
                              const std::vector<std::uint16_t>& w,
                              const std::vector<std::uint16_t>& x, std::size_t size) {
  const auto w_there = device_memory(2 * w.size(), "test"),
             x_there = device_memory(2 * x.size(), "test");
  const auto y_there = device_memory(4 * size, "test");
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    REQUIRE(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.stream()) == cudaSuccess);
  };
  copy(w_there.get(), w.data(), 2 * w.size());
  copy(x_there.get(), x.data(), 2 * x.size());
  REQUIRE(by.run(on, w_there.get(), x_there.get(), reinterpret_cast<float*>(y_there.get())) ==
          CUBLAS_STATUS_SUCCESS);
  std::vector<float> y(size);
  copy(y.data(), y_there.get(), 4 * size);
  REQUIRE(cudaStreamSynchronize(on.stream()) == cudaSuccess);
  return y;
}

}  // namespace

TEST_CASE("a product of whole numbers is exact, each column beside each row") {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return;
  const device on;
  const std::size_t rows = 48, cols = 80, columns = 32;
  numbers n(1);
  std::vector<int> w(rows * cols), x(columns * cols);
  for (auto* all : {&w, &x})
    for (int& i : *all) i = int(n.below(17)) - 8;
  std::vector<float> due;
  for (std::size_t c = 0; c < columns; ++c)
    for (std::size_t r = 0; r < rows; ++r) {
      int sum = 0;
      for (std::size_t k = 0; k < cols; ++k) sum += w[r * cols + k] * x[c * cols + k];
      due.push_back(float(sum));
    }
  for (const cudaDataType_t type : {CUDA_R_16F, CUDA_R_16BF}) {
    const product by(on, type, rows, cols, columns);
    CHECK(multiplied(on, by, in_16_bits(w, type), in_16_bits(x, type), rows * columns) == due);
  }
}
TEST_CASE("a column's product has the same bits beside any others") {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return;
  const device on;
  const std::size_t rows = 48, cols = 208, columns = 32;
  numbers n(2);
  const auto random_bits = [&](std::size_t size) {
    std::vector<std::uint16_t> all(size);
    for (auto& b : all) b = std::uint16_t(n.word() & 0xbbffu);  // f16 below 1, and not infinite
    return all;
  };
  const product by(on, CUDA_R_16F, rows, cols, columns);
  const auto w = random_bits(rows * cols);
  auto x = random_bits(columns * cols);
  const auto before = multiplied(on, by, w, x, rows * columns);
  const std::size_t kept = 13;
  auto others = random_bits(columns * cols);
  std::copy_n(x.begin() + std::ptrdiff_t(kept * cols), cols,
              others.begin() + std::ptrdiff_t(kept * cols));
  const auto after = multiplied(on, by, w, others, rows * columns);
  CHECK(std::memcmp(&before[kept * rows], &after[kept * rows], 4 * rows) == 0);
  CHECK(before != after);
}
