// SPDX-License-Identifier: Apache-2.0
// Prints hashes of products of quantised weights: the same lines for every instruction set and
// compiler.
#include <specagg/backend/cpu/product.hpp>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <specagg/random.hpp>

using namespace specagg;
using namespace specagg::cpu;

int main() {
  for (const auto type : {tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0}) {
    const std::size_t rows = 200, cols = 608, n = 29, blocks = cols / quantised_block;
    std::vector<std::byte> bytes(rows * row_bytes(type, cols));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto at = i % block_bytes(type);
      const auto r = philox({std::uint32_t(i), 0, 0, 0}, 1)[0];
      // Scales and minima: the high byte of an F16 between 2^-13 and 1, minima of both signs.
      const bool scale = at == 1, minimum = at == 3 && type == tensor_type::q4_1;
      bytes[i] = std::byte(scale     ? r % 0x34 + 8
                           : minimum ? (r % 0x34 + 8) | (r >> 8 & 0x80)
                                     : r & 255);
    }
    tensor t;
    t.type = type;
    t.rank = 2;
    t.rows = rows;
    t.cols = cols;
    t.data = bytes.data();
    const auto w = repack(t);
    activation_buffer buffer(n, cols);
    auto x = buffer.top(n);
    for (std::size_t i = 0; i < n * cols; ++i) {
      const auto r = philox({std::uint32_t(i), 0, 0, 0}, 2);
      const float size = r[1] % 50 == 0 ? 1000 : 1;  // a second part, here and there
      x(Eigen::Index(i / cols), Eigen::Index(i % cols)) =
          size * (float(r[0] >> 8) - 0x1p23f) * 0x1p-20f;
    }
    rounding_buffer rounding(n, cols);
    std::uint64_t h = 0xcbf29ce484222325;
    for (std::size_t some = 1; some <= n; ++some) {
      rounding.round(buffer.top(some), 0, blocks);
      std::vector<float> y(some * rows);
      multiply(w, 0, rows, buffer.top(some), rounding.rows(some, blocks), y.data(), rows);
      for (const float v : y) h = (h ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3;
    }
    std::printf("type %d: %016llx\n", int(type), static_cast<unsigned long long>(h));
  }
}
