// SPDX-License-Identifier: Apache-2.0
// Memory that a call reads from end to end: weights, keys and values. It stands in huge pages where
// the system has some: with pages of 4 KiB TLB misses take much of the time.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

inline constexpr std::size_t huge_page = std::size_t{1} << 21;  // bytes

// 64-byte aligned; from the size of a huge page on whole huge pages. Throws std::bad_alloc.
[[nodiscard]] inline std::shared_ptr<std::byte> large_memory(std::size_t bytes) {
  const bool large = bytes >= huge_page;
  if (large) bytes = (bytes + huge_page - 1) / huge_page * huge_page;
  const std::align_val_t alignment{large ? huge_page : 64};
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(::operator new(bytes, alignment)),
                                    [alignment](std::byte* p) { ::operator delete(p, alignment); });
#if defined(MADV_HUGEPAGE)
  if (large) ::madvise(memory.get(), bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

// Blocks of one size. Up to 8 blocks stand in one piece of large_memory, because a single block
// would leave much of its huge pages empty. A piece is freed with its last block. Any thread may
// call.
class block_memory {
 public:
  // bytes: a multiple of 64.
  explicit block_memory(std::size_t bytes) : bytes_(bytes) {
    const auto filled = [&](std::size_t blocks) {
      const auto all = blocks * bytes_;
      return double(all) / double((all + huge_page - 1) / huge_page * huge_page);
    };
    if (8 * bytes_ < huge_page) return;
    for (std::size_t n = 1; n <= 8 && filled(in_piece_) < 0.875; ++n)
      if (filled(n) > filled(in_piece_)) in_piece_ = n;
  }
  // 64-byte aligned, until it is given back. Throws std::bad_alloc.
  [[nodiscard]] std::byte* take() {
    const std::lock_guard lock(mutex_);
    piece* fullest = nullptr;  // so that others are emptied
    for (piece& p : pieces_)
      if (p.free && (!fullest || std::popcount(p.free) < std::popcount(fullest->free)))
        fullest = &p;
    if (!fullest) {
      pieces_.push_back({large_memory(in_piece_ * bytes_), all()});
      fullest = &pieces_.back();
    }
    const auto i = std::size_t(std::countr_zero(fullest->free));
    fullest->free &= fullest->free - 1;
    return fullest->memory.get() + i * bytes_;
  }
  // block: of take(), which has not been given back since.
  void give_back(std::byte* block) noexcept {
    std::shared_ptr<std::byte> empty;  // freed after the lock
    const std::lock_guard lock(mutex_);
    const auto p = std::find_if(pieces_.begin(), pieces_.end(), [&](const piece& x) {
      return !std::less<>()(block, x.memory.get()) &&
             std::less<>()(block, x.memory.get() + in_piece_ * bytes_);
    });
    p->free |= 1u << std::size_t(block - p->memory.get()) / bytes_;
    if (p->free != all()) return;
    empty = std::move(p->memory);
    pieces_.erase(p);
  }

 private:
  struct piece {
    std::shared_ptr<std::byte> memory;
    std::uint32_t free;  // bit i: its i-th block is not taken
  };
  std::uint32_t all() const { return (1u << in_piece_) - 1; }

  std::size_t bytes_, in_piece_ = 1;
  std::mutex mutex_;
  std::vector<piece> pieces_;
};

}  // namespace cpu
SPECAGG_END
