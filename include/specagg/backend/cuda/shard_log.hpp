// SPDX-License-Identifier: Apache-2.0
// How the threads of one device read rows of which other devices have parts: from the numbers that
// all ranks gave to earlier exchanges (backend/cuda/sharded.hpp).
#pragma once
#include <specagg/backend/cuda/collective.hpp>

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
// rows lie on several devices. Every thread has its own copy, and all threads do the same.
class shard_log {
 public:
  static constexpr bool are_shared = true;
  // The log of request r of a batch (struct shard of backend/cuda/sharded.hpp).
  template <class Shard>
  __device__ shard_log(const Shard& b, std::size_t r)
      : of_(b.of),
        at_(b.log + r * b.doubles),
        rank_stride_(b.requests * b.doubles),
        gathered_(b.gathered),
        room_(b.exchanges - 1) {}
  __device__ const shares& of() const { return of_; }
  // Whether the request needed an exchange that was not made yet. Then all later results are
  // worthless.
  __device__ bool lacks() const { return lacking_; }

  // The results D of all blocks, as numbers. blocks(from, to, use) computes those of a range, and
  // calls use(b, result) in one thread for each.
  template <class D, class Blocks>
  __device__ void blocks_of_ranks(D* results, const Blocks& blocks) {
    constexpr std::size_t n = sizeof(D) / sizeof(double);
    static_assert(n * sizeof(double) == sizeof(D) && n <= 3);
    const double* all = next();
    auto* out = reinterpret_cast<double*>(results);
    for (std::size_t i = threadIdx.x; i < n * block_count(of_.vocabulary); i += threads) {
      const std::size_t k = of_.owner(i / n * block_size);
      out[i] = all ? all[k * rank_stride_ + i - n * k * of_.most_blocks()] : 0;
    }
    double* const own = all ? nullptr : ask();
    if (!own) return;
    const std::size_t first = of_.begin() / block_size;
    blocks(first, first + of_.blocks_of(of_.rank), [&](unsigned lane, std::size_t b, const D& x) {
      if (lane == 0) reinterpret_cast<D*>(own)[b - first] = x;
    });
  }
  // The token that choose() of the owner of token `of` finds, with its logits in the rows.
  template <class Rows, class Choose>
  __device__ token_id told_by_owner(const Rows& rows, std::size_t of, const Choose& choose) {
    const double* const all = next();
    if (!all) {
      double* const own = ask();
      if (own && of_.owns(of)) tell(rows, choose(), own, 1);
      return 0;
    }
    const double* const told = all + of_.owner(of) * rank_stride_;
    const token_id v = token_told(told[0]);
    if (v != no_token) hear(rows, v, told + 1);
    return v;
  }
  // The best of what among(from, to) finds on every rank.
  template <class Rows, class Among>
  __device__ contender best_of_ranks(const Rows& rows, const Among& among) {
    const double* const all = next();
    if (!all) {
      double* const own = ask();
      if (!own) return {0, 0};
      const contender c = among(of_.begin(), of_.end());
      if (threadIdx.x == 0) own[1] = c.score;
      tell(rows, c.token, own, 2);
      return {0, 0};
    }
    contender best;
    std::size_t from = 0;
    for (std::size_t k = 0; k < of_.ranks; ++k) {
      const double* const told = all + k * rank_stride_;
      const contender c{token_told(told[0]), told[1]};
      if (c.token == no_token || (best.token != no_token && !before(c, best))) continue;
      best = c;
      from = k;
    }
    if (best.token != no_token) hear(rows, best.token, all + from * rank_stride_ + 2);
    return best;
  }
  // The logit of token v in row `number`, which may have come with the token; value() of its owner.
  template <class Value>
  __device__ float logit(std::size_t v, std::uint32_t number, const Value& value) {
    if (telling_ || hearing_) {
      if (told_count_ < most_told)
        told_[told_count_] = {number, telling_ ? value() : float(hearing_[told_count_])};
      told_count_ += told_count_ < most_told;
      return 0;
    }
    for (unsigned i = 0; i < told_count_ && token_id(v) == told_token_; ++i)
      if (told_[i].number == number) return told_[i].logit;
    const double* const all = next();
    if (all) return float(all[of_.owner(v) * rank_stride_]);
    double* const own = ask();
    if (own && of_.owns(v) && threadIdx.x == 0) *own = double(value());
    return 0;
  }

 private:
  // no_token: no token of the vocabulary was told.
  __device__ token_id token_told(double x) const {
    return x >= 0 && x < double(of_.vocabulary) ? token_id(x) : no_token;
  }
  // The numbers that rank 0 gave to the next exchange; null if this exchange has still to be made.
  __device__ const double* next() {
    told_count_ = 0;
    if (lacking_ || read_ == gathered_) return nullptr;
    return at_ + read_++ * of_.ranks * rank_stride_;
  }
  // The place for the numbers that this rank gives to the next exchange. Null if the request has
  // already asked in this step, or no exchange is left.
  __device__ double* ask() {
    if (lacking_) return nullptr;
    lacking_ = true;
    return read_ < room_ ? at_ + (read_ * of_.ranks + of_.rank) * rank_stride_ : nullptr;
  }
  // Writes token v, and from out[first] on the logits that the view of v reads, in their order.
  template <class Rows>
  __device__ void tell(const Rows& rows, token_id v, double* out, std::size_t first) {
    told_count_ = 0;
    if (v != no_token) {
      telling_ = true;
      (void)specagg::at(rows, std::size_t(v));
      telling_ = false;
    }
    if (threadIdx.x != 0) return;
    out[0] = double(v);
    for (unsigned i = 0; i < told_count_; ++i) out[first + i] = double(told_[i].logit);
  }
  // Notes which rows the logits are of, until the next exchange.
  template <class Rows>
  __device__ void hear(const Rows& rows, token_id v, const double* told) {
    told_count_ = 0;
    hearing_ = told;
    (void)specagg::at(rows, std::size_t(v));
    hearing_ = nullptr;
    told_token_ = v;
  }

  static constexpr unsigned most_told = 4;
  shares of_;
  double* at_;
  std::size_t rank_stride_;
  std::uint32_t gathered_, room_, read_ = 0;
  bool lacking_ = false, telling_ = false;
  struct told_logit {
    std::uint32_t number;
    float logit;
  } told_[most_told];
  unsigned told_count_ = 0;
  token_id told_token_ = no_token;
  const double* hearing_ = nullptr;
};

}  // namespace detail
}  // namespace cuda
SPECAGG_END
