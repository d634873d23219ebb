// SPDX-License-Identifier: Apache-2.0
// How the threads of one device read rows of which other devices have parts: from the numbers that
// all ranks gave to earlier exchanges (backend/cuda/sharded.hpp).
#pragma once
#include <specagg/backend/cuda/collective.hpp>
#include <specagg/shards/detail/rank_reader.hpp>

SPECAGG_BEGIN
namespace cuda {

// Rank k of `ranks` has the tokens k tokens ... (k + 1) tokens - 1, the last rank the rest. tokens:
// a multiple of 1024; each rank must have some. The same on every rank but for `rank`.
struct vocabulary_part {
  std::size_t tokens = 0;
  std::uint32_t ranks = 1, rank = 0;
};

namespace detail {

// Which tokens and blocks a rank has.
struct shares : vocabulary_part {
  std::size_t vocabulary = 0;
  SPECAGG_FUNCTION std::size_t begin() const { return rank * tokens; }
  SPECAGG_FUNCTION std::size_t end() const {
    return begin() + tokens < vocabulary ? begin() + tokens : vocabulary;
  }
  SPECAGG_FUNCTION bool owns(std::size_t v) const { return v >= begin() && v < end(); }
  SPECAGG_FUNCTION std::size_t owner(std::size_t v) const { return v / tokens; }
  SPECAGG_FUNCTION std::size_t most_blocks() const { return tokens / block_size; }
  SPECAGG_FUNCTION std::size_t first_block(std::size_t k) const { return k * most_blocks(); }
  SPECAGG_FUNCTION std::size_t blocks_of(std::size_t k) const {
    const std::size_t left = block_count(vocabulary - k * tokens);
    return left < most_blocks() ? left : most_blocks();
  }
  SPECAGG_FUNCTION bool valid() const {
    return tokens > 0 && tokens % block_size == 0 && rank < ranks &&
           (ranks - 1) * tokens < vocabulary && vocabulary <= ranks * tokens;
  }
};

// The log of one request: the numbers that all ranks gave to its exchanges, for a collective whose
// rows lie on several devices. Every thread has its own copy, and all threads do the same. A launch
// replays the exchanges before it, and records one more.
class shard_log : public rank_reader<shard_log, std::uint32_t> {
  using reader = rank_reader;

 public:
  static constexpr bool are_shared = true;
  // The log of request r of a batch (struct shard of backend/cuda/sharded.hpp).
  __device__ shard_log(const auto& b, std::size_t r)
      : layout_(b.of),
        at_(b.log + r * b.doubles),
        rank_stride_(b.requests * b.doubles),
        gathered_(b.gathered),
        room_(b.exchanges - 1) {}
  __device__ const shares& layout() const { return layout_; }
  // Whether the request needed an exchange that was not made yet. Then all later results are
  // worthless.
  __device__ bool lacks() const { return lacking_; }

  // The results D of all blocks, as numbers. blocks(from, to, use) computes those of a range, and
  // calls use(lane, b, result) in the threads of a group for each.
  template <class D, class Blocks>
  __device__ void blocks_of_ranks(D* results, const Blocks& blocks) {
    constexpr std::size_t n = sizeof(D) / sizeof(double);
    static_assert(n * sizeof(double) == sizeof(D) && n <= 3);
    const gathered all = exchange(n * layout_.most_blocks(), [&](double* own) {
      const std::size_t first = layout_.first_block(layout_.rank);
      blocks(first, first + layout_.blocks_of(layout_.rank),
             [&](unsigned lane, std::size_t b, const D& x) {
               if (lane == 0) reinterpret_cast<D*>(own)[b - first] = x;
             });
    });
    auto* out = reinterpret_cast<double*>(results);
    for (std::size_t i = threadIdx.x; i < n * block_count(layout_.vocabulary); i += threads)
      out[i] = of_block(all, n, i / n, i % n);
  }

 private:
  friend reader;
  __device__ bool writes() const { return threadIdx.x == 0; }
  __device__ void refuse() const {}  // there is no token then
  // The next exchange. Nothing is recorded if the launch has recorded one, or no exchange is left.
  __device__ gathered next(std::size_t /*n*/, const auto& own) {
    if (lacking_) return {};
    if (read_ < gathered_) return {at_ + read_++ * layout_.ranks * rank_stride_, rank_stride_};
    lacking_ = true;
    if (read_ < room_) own(at_ + (read_ * layout_.ranks + layout_.rank) * rank_stride_);
    return {};
  }

  shares layout_;
  double* at_;
  std::size_t rank_stride_;
  std::uint32_t gathered_, room_, read_ = 0;
  bool lacking_ = false;
};

}  // namespace detail
}  // namespace cuda
SPECAGG_END
