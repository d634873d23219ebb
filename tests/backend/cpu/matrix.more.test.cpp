// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/matrix.hpp>

#include <fstream>
#include <random>
#include <sstream>
#include <string>

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

TEST_CASE(
    "matrices in one piece of memory do not overlap and are aligned, and it outlives its maker") {
  std::mt19937 random(9);
  std::vector<stored_matrix> all;
  std::vector<matrix> repacked;
  all.reserve(12);
  for (std::size_t i = 0; i < 12; ++i)
    all.emplace_back(test::quantised_types[i % 3], 17 + 16 * (i % 2), 32 * (1 + i % 5), random);
  {
    std::size_t room = 0;
    for (const auto& m : all) room += strip_memory::room_for(m.w);
    strip_memory memory(room);
    for (const auto& m : all) repacked.push_back(repack(m.w, memory));
    CHECK(repacked.back().strips.get() + strip_memory::room_for(all.back().w) ==
          repacked.front().strips.get() + room);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& m = all[i];
    CHECK(reinterpret_cast<std::uintptr_t>(repacked[i].strips.get()) % 64 == 0);
    std::vector<float> row(m.w.cols);
    for (std::size_t r = 0; r < m.w.rows; ++r) {
      read_row(repacked[i], r, row.data());
      for (std::size_t c = 0; c < row.size(); ++c) CHECK(row[c] == m.numbers[r * row.size() + c]);
    }
  }
}

TEST_CASE("strips of 2 MiB or more ask for huge pages") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return;
  std::mt19937 random(10);
  const stored_matrix m(tensor_type::q8_0, 1024, 2080, random);
  const auto repacked = repack(m.w);
  const auto address = reinterpret_cast<std::uintptr_t>(repacked.strips.get());
  CHECK(address % (1 << 21) == 0);
  std::ifstream maps("/proc/self/smaps");
  std::string flags;
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t from, to;
    char dash;
    if (std::istringstream in(line); in >> std::hex >> from >> dash >> to && dash == '-')
      here = from <= address && address < to;
    if (here && line.starts_with("VmFlags:")) flags = line + " ";
  }
  CHECK(flags.find(" hg ") != std::string::npos);
}
