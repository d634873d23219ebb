// SPDX-License-Identifier: Apache-2.0
// The threads that work together on one row or one request: a thread block, or a cluster of thread
// blocks (sm_90 and later).
//
// Policies and verifiers are the library's own code (policy/, verify/). Every thread runs it, and
// all threads take the same branches. Reductions, weights, draws and races are computed by all
// threads together, in the order of kernel/reduce.hpp. So the bits are those of the CPU for any
// number of thread blocks. 16 threads process a block of 1024 tokens, four tokens per load: thread
// t has lanes 4 (t mod 4) .. + 3 of accumulator t / 4.
#pragma once
#include <cooperative_groups.h>

#include <specagg/backend/cuda/warp.hpp>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define SPECAGG_CUDA_CLUSTERS 1
#else
#define SPECAGG_CUDA_CLUSTERS 0
#endif

SPECAGG_BEGIN
namespace cuda {

namespace detail {

#if SPECAGG_PTX
// nvcc defines no macro for the flags below, but its optimiser knows them. With one of them a call
// of the second function stays, which does not exist: the program does not link.
extern "C" __device__ int __nvvm_reflect(const char*);
extern "C" __device__ void specagg_needs_nvcc_without_use_fast_math_ftz_prec_sqrt();
__device__ inline void refuse_flags_that_change_bits() {
  if (__nvvm_reflect("__CUDA_FTZ") || !__nvvm_reflect("__CUDA_PREC_SQRT"))
    specagg_needs_nvcc_without_use_fast_math_ftz_prec_sqrt();
}
#else
__device__ inline void refuse_flags_that_change_bits() {}
#endif

// The memory that the threads of one thread block share. In a cluster each thread block has its own
// copy of every result.
struct shared_memory {
  double results[2][3 * most_blocks];  // of reductions, one per block; two arrays, used in turn
  double known[most_blocks];           // the same of a row whose sums the first kernel has left
  float weight[block_size];            // of the block that a token is drawn from
  double group_sum[block_size / 16];
};

// The place in a block of `count` tokens whose weights are in shared memory; `count` if there is
// none. The barrier in the next weigh() comes before the next write to this memory.
SPECAGG_OUTLINE __device__ std::size_t place_in_block(const shared_memory& shared,
                                                      std::size_t count, const place& in) {
  const std::size_t sixteens = (count + 15) / 16;
  const auto in_sixteens = place_in_warp(shared.group_sum, sixteens, in);
  if (in_sixteens.index >= sixteens) return count;
  const std::size_t first = 16 * in_sixteens.index;
  const auto weight = [&](std::size_t i) { return double(shared.weight[first + i]); };
  return first + find_in_turn(weight, 16, in_sixteens).index;
}
// How many of the four tokens from k on exist.
template <bool Whole>
__device__ int lanes_at(std::size_t count, std::size_t k) {
  if constexpr (Whole) return k < count ? 4 : 0;
  else return k >= count ? 0 : count - k < 4 ? int(count - k) : 4;
}

// An emission as it is written: until then log_pi and log_p are pi and p.
__device__ inline emission with_logs(emission e) {
  e.log_pi = log(e.log_pi);
  e.log_p = log(e.log_p);
  return e;
}

// For rows that lie on this device as a whole. (Other rows: backend/cuda/sharded.hpp.)
struct whole_rows {
  static constexpr bool are_shared = false;
};

// Whole: rows consist of whole groups of four tokens (backend/cuda/row.hpp). Then loads need no
// test, and several can be in flight at once. Shards: the log of exchanges with devices that hold
// other parts of the rows.
template <bool Whole, class Shards = whole_rows>
class collective : public Shards {
 public:
  static constexpr bool whole = Whole;
  static constexpr bool takes_logs_at_the_end = true;  // with_logs() does
  // Whether the weights are those of a row whose sums the first kernel has left (terms_of_row).
  template <class Rows>
  static constexpr bool has_known_sums =
      !Shards::are_shared &&
      requires(const Rows& rows, double sum) { rows.row.sum_of_block(0u, sum); };
  __device__ explicit collective(shared_memory& shared, const Shards& shards = {})
      : Shards(shards), shared_(&shared) {
    refuse_flags_that_change_bits();
#if SPECAGG_CUDA_CLUSTERS
    const auto cluster = cooperative_groups::this_cluster();
    rank_ = cluster.block_rank();
    size_ = cluster.num_blocks();
    // all thread blocks must have started before their memory is written; nothing was written so
    // far
    if (size_ > 1) {
      __cluster_barrier_arrive_relaxed();
      __cluster_barrier_wait();
    }
#endif
  }
  __device__ unsigned size() const { return size_; }  // number of thread blocks
  // The number of warps of all thread blocks, and the number of this warp.
  __device__ std::size_t warps() const { return std::size_t(size_) * (threads / 32); }
  __device__ std::size_t warp() const { return rank_ * (threads / 32) + threadIdx.x / 32; }
  // True for a single one of all threads; and for its warp, whose threads write the results.
  __device__ bool leads() const { return rank_ == 0 && threadIdx.x == 0; }
  __device__ bool writes() const { return rank_ == 0 && threadIdx.x < 32; }

  // The members of one_thread (kernel/reduce.hpp). Every thread gets the result. reduce and draw
  // are not inlined: laws and verifiers call them from several places, and would spill registers.
  template <class Op, class Rows, class F>
  __device__ SPECAGG_OUTLINE auto reduce(const Rows& rows, const F& f) {
    return reduce_at<Op>(rows, [&](auto at, std::size_t, int) { return f(at); });
  }
  // `out` is memory of the device. Every thread may read the stored numbers.
  template <class Rows, class F>
  __device__ double sum_stored(const Rows& rows, const F& f, float* out) {
    return reduce_at<add>(rows, [&](auto at, std::size_t v, int n) {
      const vec<float, 4> x = uncontracted(f(at));
      struct alignas(Whole ? 16 : 4) quad {
        float x[4];
      } four;
      x.store(four.x);
      if (Whole) *reinterpret_cast<quad*>(out + v) = four;  // one store of 16 bytes
      else
        for (int i = 0; i < n; ++i) out[v + std::size_t(i)] = four.x[i];
      return x;
    });
  }
  // One thread of each thread block runs f, which writes to memory that all threads read. The write
  // comes after their earlier reads and before their later reads.
  template <class F>
  __device__ void once(const F& f) const {
    synchronise();
    if (threadIdx.x == 0) f();
    synchronise();
  }
  // As one_thread's (kernel/reduce.hpp); all blocks are read.
  template <class Rows, class F, class Empty>
  __device__ double sum_of_filled(const Rows& rows, const F& f, const Empty&) {
    return reduce<add>(rows, f);
  }
  // The block sums stay in shared memory until the second reduction after this one. A row whose
  // sums are known is not read.
  template <class Rows>
  __device__ bool can_weigh(const Rows&, std::span<double>) const {
    return true;
  }
  template <class Rows, class F>
  __device__ SPECAGG_OUTLINE weights<Rows, F> weigh(const Rows& rows, F f, std::span<double>) {
    const std::size_t blocks = block_count(rows.size());
    if constexpr (has_known_sums<Rows>) {
      __syncthreads();  // after the reads of an earlier draw
      static_assert(most_blocks <= threads);
      const unsigned b = threadIdx.x;
      const bool known = b >= blocks || rows.row.sum_of_block(b, shared_->known[b]);
      if (__syncthreads_and(known))
        return {rows, f, {shared_->known, blocks}, total_of<add>(shared_->known, blocks)};
    }
    const double total = reduce<add>(rows, f);
    return {rows, f, {shared_->results[turn_ ^ 1], blocks}, total};
  }
  // Each thread block does the last two steps itself.
  template <class Rows, class F>
  __device__ SPECAGG_OUTLINE token_id draw(const weights<Rows, F>& w, double u) {
    if (!(w.total > 0 && w.total < infinity)) return no_token;
    const double rest = (vec<double, 1>(u) * vec<double, 1>(w.total)).v;
    const auto in_blocks =
        place_in_warp(w.blocks.data(), w.blocks.size(), place::of(rest, w.total));
    if (in_blocks.index == w.blocks.size()) return no_token;
    if constexpr (Shards::are_shared)
      return this->token_of_owner(w.rows, in_blocks.index * block_size,
                                  [&] { return draw_in_block(w, in_blocks); });
    else return draw_in_block(w, in_blocks);
  }
  // The tokens with the maximum get weight 1, the others 0. A draw with uniform number 0 takes the
  // first of them.
  template <class Rows, class F>
  __device__ std::size_t largest(const Rows& rows, const F& f) {
    const double top = reduce<larger>(rows, f);
    if (!(top > larger::identity)) return 0;
    const auto has_it = [&](auto at) {
      const auto x = f(at);
      return select(x == top, decltype(x)(1), decltype(x)(0));
    };
    const token_id first = draw(weigh(rows, has_it, {}), 0);
    return first == no_token ? 0 : std::size_t(first);
  }
  // The order of contenders is total, so they may be compared in any order.
  template <class Rows, class F>
  __device__ contender race(const Rows& rows, const F& f, const coupled_noise& noise,
                            std::uint32_t position, contender last) {
    const auto among = [&](std::size_t from, std::size_t to) {
      return race_among(rows, f, noise, position, last, from, to);
    };
    if constexpr (Shards::are_shared) return this->best_contender(rows, among);
    else return among(0, rows.size());
  }
  // Sets slots[i] = x in every thread block. Called by 16 or 32 threads with the same x: thread
  // `lane` of them writes to block `lane`.
  template <class T>
  __device__ void publish(unsigned lane, T* slots, std::size_t i, const T& x) const {
    static_assert(most_in_cluster <= 16);
    if (lane >= size_) return;
#if SPECAGG_CUDA_CLUSTERS
    if (size_ > 1) slots = cooperative_groups::this_cluster().map_shared_rank(slots, lane);
#endif
    slots[i] = x;
  }
  // Waits for all threads of the block or cluster: afterwards each thread sees what all threads
  // have written.
  __device__ void synchronise() const {
#if SPECAGG_CUDA_CLUSTERS
    if (size_ > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }

  // Calls per_block(begin, count) for every block of 1024 tokens; 16 threads compute each. Returns
  // the results. All threads may read them until the second call after this one.
  template <class D, class F>
  __device__ const D* of_blocks(std::size_t size, const F& per_block) {
    static_assert(sizeof(D) * most_blocks <= sizeof shared_->results[0]);
    auto* slots = reinterpret_cast<D*>(shared_->results[turn_]);
    const auto blocks = [&](std::size_t from, std::size_t to, const auto& use) {
      const std::size_t step = std::size_t(size_) * groups;
      for (std::size_t b = from + rank_ * groups + threadIdx.x / 16; b < to; b += step) {
        const std::size_t begin = b * block_size;
        const D x = per_block(begin, size - begin < block_size ? size - begin : block_size);
        use(threadIdx.x % 16, b, first_of_group(x));  // as in first_lane()
      }
    };
    if constexpr (Shards::are_shared) this->blocks_of_ranks(slots, blocks);
    else
      blocks(0, block_count(size),
             [&](unsigned lane, std::size_t b, const D& x) { publish_block(lane, slots, b, x); });
    synchronise();
    turn_ ^= 1;
    return slots;
  }

 private:
  // publish(), not inlined: a kernel has several reductions.
  template <class D>
  __device__ SPECAGG_OUTLINE void publish_block(unsigned lane, D* slots, std::size_t b, D x) const {
    publish(lane, slots, b, x);
  }
  __device__ static contender better(const contender& a, const contender& b) {
    return b.token != no_token && (a.token == no_token || before(b, a)) ? b : a;
  }
  template <class Rows, class F>
  __device__ token_id draw_in_block(const weights<Rows, F>& w, const place& in_blocks) {
    using V = vec<float, 4>;
    const std::size_t begin = in_blocks.index * block_size, size = w.size();
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    const std::size_t k = 4 * threadIdx.x;  // 4 threads for 16 tokens
    const int n = lanes_at<Whole>(count, k);
    V x(0);
    if (n > 0)
      x = reducer<add, V>::masked(w.f(w.rows.open(begin, count).template operator()<V>(k, n)), n);
    x.store(shared_->weight + k);
    x = x + other(x, 2, whole_warp);
    x = x + other(x, 1, whole_warp);
    if (threadIdx.x % 4 == 0) shared_->group_sum[threadIdx.x / 4] = double(reduce_add(x));
    __syncthreads();
    const std::size_t in_block = place_in_block(*shared_, count, in_blocks);
    return in_block < count ? token_id(begin + in_block) : no_token;
  }
  // The race among tokens from .. to - 1.
  template <class Rows, class F>
  __device__ contender race_among(const Rows& rows, const F& f, const coupled_noise& noise,
                                  std::uint32_t position, contender last, std::size_t from,
                                  std::size_t to) {
    using V = vec<float, 4>;
    contender best;
    const std::size_t step = std::size_t(4 * threads) * size_;
    for (std::size_t v = from + 4 * (std::size_t(rank_) * threads + threadIdx.x); v < to;
         v += step) {
      const std::size_t begin = v / block_size * block_size;
      const int n = lanes_at<Whole>(rows.size(), v);
      float w[4];
      f(rows.open(begin, rows.size() - begin).template operator()<V>(v - begin, n)).store(w);
      const auto words = noise.four_words(position, token_id(v));
      for (int i = 0; i < 4; ++i) {
        if (i >= n || !(w[i] > 0)) continue;
        const std::uint32_t word = words[std::size_t(i)];
        // it cannot win
        if (double(w[i]) * (1 + 1e-9) < random_streams::least_noise(word) * best.score) continue;
        const contender c{token_id(v) + i, double(w[i]) / noise(position, token_id(v) + i, word)};
        if (before(last, c)) best = better(best, c);
      }
    }
    for (int d = 16; d > 0; d /= 2)
      best =
          better(best, {__shfl_xor_sync(~0u, best.token, d), __shfl_xor_sync(~0u, best.score, d)});
    // Each warp publishes its best contender. Then every thread compares all of them.
    auto* slots = reinterpret_cast<contender*>(shared_->results[turn_]);
    publish(threadIdx.x % 32, slots, rank_ * (threads / 32) + threadIdx.x / 32, best);
    synchronise();
    turn_ ^= 1;
    best = {};
    for (unsigned i = 0; i < size_ * (threads / 32); ++i) best = better(best, slots[i]);
    return best;
  }
  // across_group(). Not inlined: a kernel has several reductions.
  template <class Op, class A>
  __device__ SPECAGG_OUTLINE static auto of_group(const A& a) {
    return across_group<Op>(a);
  }
  // Reduces f(view of tokens v .. v + 3, v, how many of them exist).
  template <class Op, class Rows, class F>
  __device__ auto reduce_at(const Rows& rows, const F& f) {
    const auto per_block = [&](std::size_t begin, std::size_t count) {
      using V = vec<float, 4>;
      const auto block = rows.open(begin, count);
      const auto term = [&](std::size_t k, int n) {
        return f(block.template operator()<V>(k, n), begin + k, n);
      };
      using R = reducer<Op, decltype(term(0, 4))>;
      auto a = R::identity();
      if (!has_known_sums<Rows> && count == block_size) {  // the others are rarely read
        // no test in between: so several loads are in flight
#pragma unroll 4
        for (std::size_t i = 0; i < 16; ++i)
          a = R::apply(a, term(4 * (threadIdx.x % 16) + 64 * i, 4));
      } else {
#pragma unroll 1
        for (std::size_t k = 4 * (threadIdx.x % 16); k < count; k += 64) {
          const int n = lanes_at<Whole>(count, k);
          a = R::apply(a, n == 4 ? term(k, 4) : R::masked(term(k, n), n));
        }
      }
      return of_group<Op>(a);
    };
    using D = decltype(per_block(0, 0));
    return total_of<Op>(of_blocks<D>(rows.size(), per_block), block_count(rows.size()));
  }
  // Combines the results of so many blocks.
  template <class Op, class D>
  __device__ SPECAGG_OUTLINE static D total_of(const D* results, std::size_t blocks) {
    using R = reducer<Op, D>;
    D total = R::identity();
#pragma unroll 1
    for (std::size_t b = threadIdx.x % 32; b < blocks; b += 32) total = R::apply(total, results[b]);
    return across_warp<Op>(total);
  }
  shared_memory* shared_;
  unsigned rank_ = 0, size_ = 1, turn_ = 0;
};

}  // namespace detail
}  // namespace cuda
SPECAGG_END
