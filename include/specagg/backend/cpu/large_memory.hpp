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

// Blocks of one size. Several stand in one piece of large_memory, so many that they fill seven
// eighths of it, if they are that large. A piece is freed with its last block. Any thread may call.
class block_memory {
 public:
  // bytes: a multiple of 64.
  explicit block_memory(std::size_t bytes) : bytes_(bytes) {
    const auto filled = [&] {
      const auto all = in_piece_ * bytes_;
      return 8 * all >= 7 * ((all + huge_page - 1) / huge_page * huge_page);
    };
    if (8 * bytes_ >= huge_page)
      while (in_piece_ < 8 && !filled()) ++in_piece_;
  }
  // 64-byte aligned, until it is given back. Throws std::bad_alloc.
  [[nodiscard]] std::byte* take() {
    const std::lock_guard lock(mutex_);
    auto p = std::find_if(pieces_.begin(), pieces_.end(), [](const piece& x) { return x.free; });
    if (p == pieces_.end()) {
      pieces_.push_back({large_memory(in_piece_ * bytes_), all()});
      p = pieces_.end() - 1;
    }
    const auto i = static_cast<std::size_t>(std::countr_zero(p->free));
    p->free &= p->free - 1;
    return p->memory.get() + i * bytes_;
  }
  // block: of take(), which has not been given back since.
  void give_back(std::byte* block) noexcept {
    const std::lock_guard lock(mutex_);
    const auto p = std::find_if(pieces_.begin(), pieces_.end(), [&](const piece& x) {
      return !std::less<>()(block, x.memory.get()) &&
             std::less<>()(block, x.memory.get() + in_piece_ * bytes_);
    });
    p->free |= 1u << static_cast<std::size_t>(block - p->memory.get()) / bytes_;
    if (p->free == all()) pieces_.erase(p);
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
