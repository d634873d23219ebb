// SPDX-License-Identifier: Apache-2.0
// The keys and values of one sequence.
#pragma once
#include <specagg/kernel/simd.hpp>  // before Eigen: otherwise g++ 12 warns about its intrinsics

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/large_memory.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>

SPECAGG_BEGIN
namespace cpu {

// f16 numbers, which several caches may hold. Their memory is given back with the last cache.
class kv_page {
 public:
  // Bytes of a page of `count` numbers.
  static constexpr std::size_t bytes(std::size_t count) { return alignment + count * sizeof(f16); }
  // Takes a block of bytes(count). Copies `from`, or is zero if that is null. Throws
  // std::bad_alloc.
  kv_page(std::shared_ptr<block_memory> in, std::size_t count, const f16* from)
      : memory_(in->take()) {
    new (memory_) header{std::move(in)};
    if (from) std::memcpy(data(), from, count * sizeof(f16));
    else std::memset(data(), 0, count * sizeof(f16));
  }
  kv_page(const kv_page& other) noexcept : memory_(other.memory_) {
    head().holders.fetch_add(1, std::memory_order_relaxed);
  }
  kv_page(kv_page&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  kv_page& operator=(kv_page other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~kv_page() {
    if (!memory_ || head().holders.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const auto in = std::move(head().in);
    head().~header();
    in->give_back(memory_);
  }

  // 64-byte aligned; and whether another page object holds the memory, too.
  f16* data() const { return reinterpret_cast<f16*>(memory_ + alignment); }
  bool shared() const { return head().holders.load(std::memory_order_acquire) > 1; }

 private:
  static constexpr std::size_t alignment = 64;
  struct header {
    std::shared_ptr<block_memory> in;
    std::atomic<std::size_t> holders = 1;
  };
  header& head() const { return *std::launder(reinterpret_cast<header*>(memory_)); }
  std::byte* memory_;  // a header, and from `alignment` on the numbers
};

// Keys and values are f16 numbers, in pages of 64 positions, each with all layers and heads:
// [layer][kv head][keys, then values]. Keys are stored in blocks of 16 positions,
// [block][dimension][16]. One load is one dimension of 16 positions, so 16 scores are summed at
// once and no sum over lanes is needed. Values are [position][dimension, padded to a multiple of
// 16].
//
// Caches share pages. New keys and values go to pages that no other cache holds.
class kv_cache {
 public:
  static constexpr std::size_t page_positions = 64;  // in a page

  // The memory from which caches of these sizes take their pages.
  static std::shared_ptr<block_memory> memory_for(std::size_t layers, std::size_t heads,
                                                  std::size_t dims) {
    return std::make_shared<block_memory>(kv_page::bytes(layers * heads * part(dims)));
  }
  // memory: from memory_for() with the same sizes.
  kv_cache(std::size_t layers, std::size_t heads, std::size_t dims, std::size_t capacity,
           std::shared_ptr<block_memory> memory)
      : layers_(layers), heads_(heads), dims_(dims), memory_(std::move(memory)) {
    pages_.reserve(pages_for(capacity));
  }

  std::size_t pages() const { return pages_.size(); }
  // The keys and the values of one page, layer and head, in the order above.
  const f16* keys(std::size_t page, std::size_t layer, std::size_t head) const {
    return pages_[page].data() + (layer * heads_ + head) * part(dims_);
  }
  const f16* values(std::size_t page, std::size_t layer, std::size_t head) const {
    return keys(page, layer, head) + page_positions * dims_;
  }

  // Must be called before positions [begin, end) are stored: makes missing pages, and copies pages
  // that other caches hold. If it throws std::bad_alloc, no stored number has changed.
  void open(std::size_t begin, std::size_t end) {
    for (auto i = begin / page_positions; i < pages_for(end); ++i)
      if (i == pages_.size()) pages_.emplace_back(memory_, layers_ * heads_ * part(dims_), nullptr);
      else if (pages_[i].shared())
        pages_[i] = kv_page(memory_, layers_ * heads_ * part(dims_), pages_[i].data());
  }
  // Stores one position. `key` and `value` are arrays of `dims` numbers, and are rounded to f16. A
  // number that is too large for that (65520 or more) becomes NaN, and so does every row that
  // attends to it.
  void store(std::size_t layer, std::size_t head, std::size_t position, const float* key,
             const float* value) {
    auto *const k = key_of(layer, head, position), *const v = value_of(layer, head, position);
    f16 some[16];
    for (std::size_t d = 0; d < dims_; d += 16) {
      const auto n = std::min<std::size_t>(16, dims_ - d);
      round(key + d, n, some);
      for (std::size_t i = 0; i < n; ++i) k[16 * (d + i)] = some[i];
      round(value + d, n, v + d);
    }
  }
  // Position `from` of every layer and head becomes position `to`.
  void move(std::size_t from, std::size_t to) {
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t head = 0; head < heads_; ++head) {
        const auto *const k = key_of(layer, head, from), *const v = value_of(layer, head, from);
        auto* const key = key_of(layer, head, to);
        for (std::size_t d = 0; d < dims_; ++d) key[16 * d] = k[16 * d];
        std::copy_n(v, dims_, value_of(layer, head, to));
      }
  }
  // The first n positions become those of another cache of the same model, whose pages are shared.
  // Allocates nothing.
  void share(const kv_cache& other, std::size_t n) {
    for (std::size_t i = 0; i < pages_for(n); ++i)
      if (i < pages_.size()) pages_[i] = other.pages_[i];
      else pages_.push_back(other.pages_[i]);
  }
  // Gives back the pages after the first `positions`.
  void cut(std::size_t positions) {
    if (pages_for(positions) < pages_.size())
      pages_.erase(pages_.begin() + std::ptrdiff_t(pages_for(positions)), pages_.end());
  }

 private:
  static constexpr std::size_t pages_for(std::size_t positions) {
    return (positions + page_positions - 1) / page_positions;
  }
  // The numbers of one layer and head in a page.
  static constexpr std::size_t part(std::size_t dims) {
    return page_positions * (dims + padded(dims));
  }
  f16* key_of(std::size_t layer, std::size_t head, std::size_t position) {
    const auto at = position % page_positions;
    return pages_[position / page_positions].data() + (layer * heads_ + head) * part(dims_) +
           at / 16 * 16 * dims_ + at % 16;
  }
  f16* value_of(std::size_t layer, std::size_t head, std::size_t position) {
    return pages_[position / page_positions].data() + (layer * heads_ + head) * part(dims_) +
           page_positions * dims_ + position % page_positions * padded(dims_);
  }
  // n numbers, at most 16; to[n] to to[15] become 0.
  static SPECAGG_LANE void round(const float* from, std::size_t n, f16* to) {
    const auto x = n == 16 ? lanes::load(from) : lanes::load_partial(from, int(n), 0);
    select(abs(x) < lanes(65520.f), x, lanes(std::numeric_limits<float>::quiet_NaN())).store(to);
  }

  std::size_t layers_, heads_, dims_;
  std::shared_ptr<block_memory> memory_;
  std::vector<kv_page> pages_;
};

}  // namespace cpu
SPECAGG_END
