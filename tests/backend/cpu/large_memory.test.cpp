// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/large_memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "support/allocations.hpp"
#include "support/catch.hpp"

using specagg::cpu::block_memory, specagg::cpu::huge_page, specagg::cpu::large_memory;

namespace {

constexpr std::size_t page_of_smollm2 = 64 + 64 * 30 * 3 * 2 * 64 * 2;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

TEST_CASE("large memory is aligned to cache lines, and to huge pages where it fills one") {
  for (const std::size_t bytes : {std::size_t{1}, huge_page - 1, huge_page, 2 * huge_page + 1}) {
    const auto memory = large_memory(bytes);
    CHECK(address(memory.get()) % (bytes < huge_page ? 64 : huge_page) == 0);
    std::memset(memory.get(), 1, bytes);
  }
}

TEST_CASE("blocks do not overlap, and pieces of several blocks are freed with their last block") {
#ifdef SPECAGG_ALLOCATIONS_OF_TSAN
  return;
#endif
  struct expected {
    std::size_t bytes, in_piece;
  };
  for (const auto& [bytes, in_piece] : {expected{64, 1},
                                        {huge_page / 8 - 64, 1},
                                        {huge_page / 8, 7},
                                        {303168, 6},
                                        {page_of_smollm2, 4},
                                        {huge_page, 1},
                                        {huge_page + 64, 7},
                                        {huge_page * 5 / 4, 3}}) {
    CAPTURE(bytes);
    block_memory memory(bytes);
    const std::size_t before = aligned_blocks;
    std::vector<std::byte*> blocks;
    for (std::size_t i = 0; i < 3 * in_piece; ++i) {
      CHECK(aligned_blocks - before == (i + in_piece - 1) / in_piece);
      blocks.push_back(memory.take());
      CHECK(address(blocks.back()) % 64 == 0);
    }
    auto sorted = blocks;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 1; i < sorted.size(); ++i)
      CHECK(std::size_t(sorted[i] - sorted[i - 1]) >= bytes);
    // The second of three pieces goes; a block of another piece is taken again.
    for (std::size_t i = in_piece; i < 2 * in_piece; ++i) memory.give_back(blocks[i]);
    CHECK(aligned_blocks - before == 2);
    if (in_piece > 1) {
      memory.give_back(blocks[0]);
      CHECK(memory.take() == blocks[0]);
    }
    // Of two pieces with free blocks the fuller one gives the next.
    if (in_piece > 2) {
      for (const std::size_t i : {std::size_t{0}, std::size_t{1}, 2 * in_piece})
        memory.give_back(blocks[i]);
      CHECK(memory.take() == blocks[2 * in_piece]);
      CHECK(std::min(memory.take(), memory.take()) == std::min(blocks[0], blocks[1]));
    }
    // Where there is no memory nothing has changed.
    aligned_blocks_left = 0;
    CHECK_THROWS_AS(memory.take(), std::bad_alloc);
    aligned_blocks_left = std::size_t(-1);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (i / in_piece != 1) memory.give_back(blocks[i]);
    CHECK(aligned_blocks == before);
    memory.give_back(memory.take());
    CHECK(aligned_blocks == before);
  }
}

TEST_CASE("threads take and give back blocks at once, and no two hold the same") {
  block_memory memory(huge_page / 4 - 1024);
  std::atomic<std::size_t> wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned id = 1; id <= 4; ++id)
    threads.emplace_back([&, id] {
      std::mt19937 random(id);
      std::vector<std::byte*> held;
      for (int round = 0; round < 2000; ++round)
        if (held.empty() || (held.size() < 9 && random() % 2)) {
          held.push_back(memory.take());
          std::memset(held.back(), int(id), 4096);
        } else {
          std::swap(held[random() % held.size()], held.back());
          for (std::size_t i = 0; i < 4096; i += 512) wrong += held.back()[i] != std::byte(id);
          memory.give_back(held.back());
          held.pop_back();
        }
      for (auto* p : held) memory.give_back(p);
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}
