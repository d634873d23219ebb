// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/matrix.hpp>

#include <random>

#include <specagg/backend/cpu/tensor_row.hpp>

#include "backend/cpu/stored_matrix.hpp"
#include "support/catch.hpp"

using namespace specagg::cpu;
using test::stored_matrix;

TEST_CASE("a row reads back as exactly the stored numbers, from the file and repacked") {
  std::mt19937 random(5);
  for (const auto& types : {test::float_types, test::quantised_types})
    for (auto type : types) {
      const std::size_t cols = block_bytes(type) > 0 ? 96 : 45, rows = 35;
      const stored_matrix m(type, rows, cols, random);
      const auto repacked = repack(m.w);
      CHECK(bool(repacked.strips) == (block_bytes(type) > 0));
      std::vector<float> row(cols), again(cols);
      for (std::size_t r = 0; r < rows; ++r) {
        read_row(m.w, r, row.data());
        read_row(repacked, r, again.data());
        for (std::size_t c = 0; c < cols; ++c)
          CHECK((row[c] == m.numbers[r * cols + c] && again[c] == row[c]));
      }
    }
}

TEST_CASE("rows up to the next multiple of 16 are zero") {
  std::mt19937 random(7);
  for (auto type : test::quantised_types) {
    const stored_matrix m(type, 19, 64, random);
    const auto repacked = repack(m.w);
    const std::size_t size = packed_block_bytes(type);
    for (std::size_t b = 0; b < 2; ++b)  // of the second strip, which has three rows
      for (std::size_t i = 0; i < size; ++i) {
        const bool scale = i >= number_bytes(type);
        const std::size_t row = scale ? (i - number_bytes(type)) / 2 % 16 : i % 64 / 4;
        if (row >= 3) CHECK(repacked.strips.get()[2 * size + b * size + i] == std::byte{0});
      }
  }
}

TEST_CASE("repacked weights take the file's memory, in whole strips of 16 rows") {
  for (auto type : test::quantised_types) CHECK(packed_block_bytes(type) == 16 * block_bytes(type));
}
