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
        for (std::size_t c = 0; c < cols; ++c) CHECK((row[c] == m.numbers[r * cols + c] && again[c] == row[c]));
      }
    }
}

TEST_CASE("repacked weights take the file's memory, in whole strips of 16 rows") {
  for (auto type : test::quantised_types) CHECK(packed_block_bytes(type) == 16 * block_bytes(type));
}
