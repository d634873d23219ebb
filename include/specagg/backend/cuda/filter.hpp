// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that top-k, top-p and min-p keep of rows in device memory. A thread block takes
// a row. Every filter keeps the first tokens in the order "larger logit, then lower id", so a
// cutoff is a token, and tokens are compared as numbers (token_key). The tokens above a bound are
// listed in shared memory and sorted, and the cutoff is found there. The bound comes from the
// largest logits of the row's parts, which the first kernel has noted: only parts that reach it are
// read. If the list is too short or too long, a sweep over the row divides what is left into 2,048
// buckets, and another one lists the bucket in which the cutoff lies. Masses are whole numbers
// (kernel/mass.hpp), so cutoffs and normalisers have the CPU's bits (rows/process.hpp) in whatever
// way they are found.
#pragma once
#include <specagg/backend/cuda/filtered_row.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// A token of a row as a number: larger for a larger logit, and of equal ones for a lower id.
using token_key = unsigned long long;
__device__ inline token_key key_of(float logit, unsigned id) {
  return token_key(ordered(logit)) << 32 | std::uint32_t(~id);
}
// Less than the keys of all tokens with this logit, more than those of lower logits.
__device__ inline token_key key_from(float logit) { return token_key(ordered(logit)) << 32; }
__device__ inline float logit_of(token_key key) {
  return unordered<float>(std::uint32_t(key >> 32));
}
__device__ inline cutoff<float> cutoff_of(token_key key) {
  return {logit_of(key), std::size_t(std::uint32_t(~std::uint32_t(key)))};
}

// The memory of a thread block that filters a row.
struct filter_memory {
  static constexpr unsigned capacity = 2048;
  union {                                  // in use one at a time
    token_key keys[capacity];              // of the list, from the largest to the least
    unsigned long long buckets[capacity];  // of the tokens of each bucket
  };
  mass of_warps[threads / 32];
  mass before;             // of crossing()
  unsigned at;             // of crossing()
  unsigned listed, least;  // how many tokens; the least number of smallest()
};

// Tokens from lo to hi in 2,048 buckets, ascending: by their logits if `linear`, else by keys. Two
// keys that differ are in different buckets after a few divisions by keys.
struct key_buckets {
  static constexpr unsigned last = filter_memory::capacity - 1;
  token_key lo, hi;
  float low, scale;  // scale 0: by keys
  int shift;
  __device__ key_buckets(token_key from, token_key to, bool linear)
      : lo(from), hi(to), low(logit_of(from)) {
    scale = float(last) / (logit_of(to) - low);
    if (!linear || !(scale > 0 && scale < std::numeric_limits<float>::infinity())) scale = 0;
    const int bits = 64 - __clzll((long long)(to - from));
    shift = bits > 11 ? bits - 11 : 0;
  }
  __device__ unsigned of(token_key key) const {
    if (scale == 0) return unsigned((key - lo) >> shift);
    const float x = (logit_of(key) - low) * scale;
    return x < float(last) ? unsigned(x) : last;
  }
  // The least key of this bucket or a later one; hi + 1 or more if there is none.
  __device__ SPECAGG_OUTLINE token_key first_of(unsigned bucket) const {
    if (scale == 0) return lo + (token_key(bucket) << shift);
    std::uint32_t below = std::uint32_t(lo >> 32), reaches = std::uint32_t(hi >> 32) + 1;
    if (bucket == 0) return lo;
#pragma unroll 1
    while (reaches - below > 1) {
      const std::uint32_t middle = below + (reaches - below) / 2;
      (of(token_key(middle) << 32) < bucket ? below : reaches) = middle;
    }
    return token_key(reaches) << 32;
  }
};

// The masses of tokens, or 1 for each.
struct token_masses {
  softmax_factors<float> weight;  // of total 1
  mass_unit<float> unit;
  bool counts;
  __device__ mass operator()(float l) const {
    using V = vec<float, 1>;
    return counts ? 1 : unit.whole(uncontracted(weight(V(l) - V(weight.max))).v);
  }
};

// A row that the threads of a block filter together. Each thread has one of these. maxima: the
// largest logits of the 16 parts of each block of the row, in the order of the threads that have
// them in registers (block_in_registers).
template <class S, bool Whole>
class row_filter {
 public:
  __device__ row_filter(const raw_row<S, Whole>& row, const float* maxima, float largest,
                        filter_memory& m)
      : row_(row), maxima_(maxima), top_(key_of(largest, 0)), m_(&m) {}
  // Below the keys of all tokens that are not masked.
  static __device__ token_key lowest() { return key_from(std::numeric_limits<float>::lowest()); }

  // A bound that at least k tokens reach, and not many more; or lowest().
  __device__ token_key reached_by(unsigned k) {
    const unsigned parts = 16 * unsigned(block_count(row_.size));
    const token_key least = token_key(least_of_parts(parts)) << 32;
    const key_buckets in(least, top_, true);
    clear_buckets();
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < parts; i += threads)
      if (const token_key key = key_from(maxima_[i]); key >= least)
        atomicAdd(&m_->buckets[in.of(key)], 1ull);
    mass above = 0;
    const unsigned at = crossing_bucket(k, above);
    return at <= key_buckets::last ? in.first_of(at) : lowest();
  }
  // Lists the tokens from lo to hi, sorted. False if they are too many.
  __device__ SPECAGG_OUTLINE bool list(token_key lo, token_key hi) {
    covered_ = none;
    __syncthreads();
    if (threadIdx.x == 0) m_->listed = 0;
    __syncthreads();
    (void)sweep(lo, hi, nullptr, nullptr);
    __syncthreads();
    listed_ = m_->listed;
    if (listed_ > m_->capacity) return false;
    sort();
    if (hi >= top_) covered_ = lo;
    return true;
  }
  // The last token of the shortest prefix with this mass, which tokens from `from` on are expected
  // to have; lowest() if all have less. kept: its mass.
  __device__ SPECAGG_OUTLINE token_key prefix(mass enough, token_key from,
                                              const token_masses& mass_of, mass& kept) {
    kept = 0;
    unsigned at = covered_ != none ? crossing(enough, kept, &mass_of) : m_->capacity;
    if (at == m_->capacity) {
      if (!narrow(enough, from, mass_of, kept)) return lowest();
      at = crossing(enough, kept, &mass_of);
    }
    const token_key key = m_->keys[at];
    kept += mass_of(logit_of(key));
    return key;
  }
  // The mass of the tokens from `cut` on.
  __device__ SPECAGG_OUTLINE mass mass_from(token_key cut, const token_masses& mass_of) {
    mass own = 0;
    if (cut >= covered_) {
      for (unsigned i = threadIdx.x; i < listed_; i += threads)
        if (m_->keys[i] >= cut) own += mass_of(logit_of(m_->keys[i]));
    } else {
      own = sweep(cut, top_, &mass_of, nullptr);
    }
#pragma unroll 1
    for (int d = 16; d > 0; d /= 2) own += __shfl_xor_sync(~0u, own, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) m_->of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    own = 0;
    for (const mass x : m_->of_warps) own += x;
    return own;
  }

 private:
  static constexpr token_key none = ~0ull;

  // Reads the tokens from lo to hi. Lists them (mass_of null), adds up their masses for this thread
  // (in null), or adds their masses to those of their buckets.
  __device__ SPECAGG_OUTLINE mass sweep(token_key lo, token_key hi, const token_masses* mass_of,
                                        const key_buckets* in) {
    // copies: nothing that is written here changes them
    const raw_row<S, Whole> row = row_;
    const float* const maxima = maxima_;
    filter_memory& m = *m_;
#if SPECAGG_PTX
    __builtin_assume(__isGlobal(row.logits));
    __builtin_assume(__isGlobal(maxima));
    __builtin_assume(__isShared(&m));
#endif
    const float lowest = logit_of(lo);
    const unsigned blocks = unsigned(block_count(row.size)), lane = threadIdx.x % 16;
    mass sum = 0;
#pragma unroll 1
    for (unsigned b = threadIdx.x / 16; b < blocks; b += groups) {
      if (!(maxima[16 * b + lane] >= lowest)) continue;
#pragma unroll 1
      for (unsigned half = 0; half < 2; ++half) {  // a loop: half the code
        const unsigned first = unsigned(block_size) * b + 4 * lane + 512 * half;
        unsigned reach = reaching(row, first, 64, lowest);
#pragma unroll 1
        for (; reach != 0; reach &= reach - 1) {
          const unsigned i = unsigned(__ffs(int(reach))) - 1, id = first + 64 * (i / 4) + i % 4;
          const float l = number(row.logits[id]);  // no masked one reaches it
          const token_key key = key_of(l, id);
          if (key < lo || key > hi) continue;
          if (!mass_of) {
            const unsigned at = atomicAdd(&m.listed, 1u);
            if (at < m.capacity) m.keys[at] = key;
          } else if (const mass own = (*mass_of)(l); in) {
            atomicAdd(&m.buckets[in->of(key)], static_cast<unsigned long long>(own));
          } else {
            sum += own;
          }
        }
      }
    }
    return sum;
  }
  // Lists the tokens among which the prefix with this mass ends. above: becomes the mass of those
  // before them. False if all tokens have less.
  __device__ bool narrow(mass enough, token_key from, const token_masses& mass_of, mass& above) {
    const std::uint32_t last_id = ~std::uint32_t(row_.size - 1);
    const token_key least = lowest() | last_id;
    token_key to = top_;
    above = 0;
    for (bool linear = true;; linear = false) {
      if (std::uint32_t(from) < last_id) from = (from >> 32 << 32) | last_id;
      const key_buckets in(from, to, linear);
      clear_buckets();
      (void)sweep(from, to, &mass_of, &in);
      const unsigned at = crossing_bucket(enough, above);
      if (at > in.last) {
        if (from <= least) return false;
        from = least;
        above = 0;
        continue;
      }
      from = in.first_of(at);
      if (at < in.last) to = in.first_of(at + 1) - 1;
      if (list(from, to)) return true;
    }
  }
  __device__ void clear_buckets() {
    covered_ = none;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < m_->capacity; i += threads) m_->buckets[i] = 0;
    __syncthreads();
  }
  // The least ordered number of a part's largest logit, of parts with a token that is not masked.
  __device__ std::uint32_t least_of_parts(unsigned parts) {
    float least = logit_of(top_);
#pragma unroll 1
    for (unsigned first = threadIdx.x; first < parts; first += 4 * threads)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {  // beyond the last one: the last one again
        const unsigned at = first + i * threads;
        const float x = maxima_[at < parts ? at : parts - 1];
        if (x >= std::numeric_limits<float>::lowest() && x < least) least = x;
      }
    const unsigned own = least_of_warp(ordered(least));
    __syncthreads();
    if (threadIdx.x == 0) m_->least = own;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicMin(&m_->least, own);
    __syncthreads();
    return m_->least;
  }
  // From the largest to the least, by a bitonic network.
  __device__ void sort() {
    unsigned n = 1;
    while (n < listed_) n *= 2;
    for (unsigned i = listed_ + threadIdx.x; i < n; i += threads) m_->keys[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (unsigned size = 2; size <= n; size *= 2)
#pragma unroll 1
      for (unsigned d = size / 2; d > 0; d /= 2) {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < n / 2; i += threads) {
          const unsigned a = 2 * i - (i & (d - 1)), b = a + d;
          const token_key x = m_->keys[a], y = m_->keys[b];
          if ((x < y) == ((a & size) == 0)) m_->keys[a] = y, m_->keys[b] = x;
        }
        __syncthreads();
      }
  }
  // The first of the listed tokens, or, with mass_of null, of the buckets from the last one down,
  // at which the sum of their masses and `above` reaches `enough`; capacity: all have less. `above`
  // becomes the sum before it.
  __device__ SPECAGG_OUTLINE unsigned crossing(mass enough, mass& above,
                                               const token_masses* mass_of) {
    constexpr unsigned each = filter_memory::capacity / threads;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = each * threadIdx.x;
    const auto mass_at = [&](unsigned i) -> mass {
      if (!mass_of) return mass(m_->buckets[key_buckets::last - i]);
      return i < listed_ ? (*mass_of)(logit_of(m_->keys[i])) : 0;
    };
    mass before = 0;
    unsigned at = first;
    bool crosses = false;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      // first the sum of all that are this thread's, then as far as the crossing
      if (pass == 0) __syncthreads();
      mass own = 0;
#pragma unroll 1
      for (at = first; (pass == 0 || crosses) && at < first + each; ++at) {
        const mass x = mass_at(at);
        if (crosses && before + own + x >= enough) break;
        own += x;
      }
      if (pass == 1) {
        if (crosses || (threadIdx.x == threads - 1 && before < enough)) {
          m_->at = crosses ? at : filter_memory::capacity;
          m_->before = before + (crosses ? own : 0);
        }
        break;
      }
      mass up_to = own;
#pragma unroll 1
      for (unsigned d = 1; d < 32; d *= 2) {
        const mass y = __shfl_up_sync(~0u, up_to, d);
        if (lane >= d) up_to += y;
      }
      if (lane == 31) m_->of_warps[warp] = up_to;
      __syncthreads();
      up_to += above;
#pragma unroll 1
      for (unsigned w = 0; w < warp; ++w) up_to += m_->of_warps[w];
      before = up_to - own;
      crosses = before < enough && up_to >= enough;
      if (!crosses) before = up_to;
    }
    __syncthreads();
    above = m_->before;
    return m_->at;
  }
  // From the last bucket down; above key_buckets::last: all have less.
  __device__ unsigned crossing_bucket(mass enough, mass& above) {
    return key_buckets::last - crossing(enough, above, nullptr);
  }

  raw_row<S, Whole> row_;
  const float* maxima_;
  token_key top_, covered_ = none;  // covered_: the list has all tokens from here on
  unsigned listed_ = 0;
  filter_memory* m_;
};

// As find_kept() of rows/process.hpp, for a row that is valid. blocks: the sums of the row's blocks
// at the temperature that the filters see.
template <class S, bool Whole>
__device__ void find_kept(const raw_row<S, Whole>& row, const sampling& s,
                          const block_sum<float>* blocks, const float* maxima, filter_memory& m,
                          filtered_facts& found) {
  constexpr unsigned usual = 256;  // top-p seldom keeps more tokens of a peaked row
  const float largest = found.sampled.max;
  const double seen = s.order == filter_order::llama_cpp ? 1 : s.temperature;
  const bool top_k = s.top_k > 0 && s.top_k < row.size,
             min_p_first = s.min_p > 0 && s.order == filter_order::vllm,
             nothing_before = s.order == filter_order::joint || (!top_k && !min_p_first);
  const unsigned parts = 16 * unsigned(block_count(row.size));
  row_filter<S, Whole> filter(row, maxima, largest, m);
  const mass_unit<float> unit(row.size);
  token_masses mass_of{factors_of(largest, seen, 1), unit, false};
  const token_key all = filter.lowest(),
                  bound = s.min_p > 0 ? key_from(least_with_fraction(s.min_p, seen, largest)) : all;
  token_key cut = all, start = all;
  mass kept = 0;  // from `cut` on; 0: not known
  const unsigned first = top_k ? s.top_k : s.top_p < 1 ? usual : ~0u;  // tokens that may be enough
  if (first <= parts) start = filter.reached_by(first);
  if (min_p_first && !top_k && bound > start) start = bound;
  if (start > all) (void)filter.list(start, ~token_key(0));
  if (top_k) {
    mass_of.counts = true;
    cut = filter.prefix(s.top_k, start, mass_of, kept);
    kept = 0;
    mass_of.counts = false;
  }
  if (min_p_first && bound > cut) cut = bound;
  if (s.top_p < 1) {
    if (top_k || min_p_first) kept = filter.mass_from(cut, mass_of);
    const double total =
        nothing_before
            ? sum_of_blocks(row, blocks, exp_scale<float>::of_temperature(seen).high).total
            : unit.sum(kept);
    const share_of_mass<float> due(s.top_p, total, row.size, seen, largest, kept, unit,
                                   [&] { return filter.mass_from(all, mass_of); });
    const token_key lightest = due.lightest > double(std::numeric_limits<float>::lowest())
                                   ? key_from(float(due.lightest))
                                   : all;
    cut = filter.prefix(due.enough, cut > lightest ? cut : lightest, mass_of, kept);
  }
  if (bound > cut) cut = bound, kept = 0;
  if (seen != s.temperature) mass_of.weight = factors_of(largest, s.temperature, 1), kept = 0;
  if (kept == 0) kept = filter.mass_from(cut, mass_of);
  found.restriction = cutoff_of(cut);
  found.sampled = factors_of(largest, s.temperature, unit.sum(kept));
}

// The facts of a row with summed blocks. All threads of a block call it; every thread gets them.
template <class S, bool Whole>
__device__ filtered_facts filtered_facts_of(const raw_row<S, Whole>& row, const sampling& s,
                                            bool confidence, const block_sum<float>* blocks,
                                            const float* maxima, filter_memory& m) {
  filtered_facts found{facts_of(row, s.temperature, confidence, blocks), {}};
  if constexpr (!std::is_same_v<S, probability> && !std::is_same_v<S, one_hot>) {
    if (!s.valid()) found.why = status::invalid_parameter;
    if (found.why != status::ok) return found;
    if (found.greedy) {
      const float largest = number(row.logits[found.token]);
      found.sampled = factors_of(largest, 1, 1);
      found.restriction = {largest, found.token};
    } else if (s.filters(row.size)) {
      if (const row_scales scales(s.temperature);
          s.order == filter_order::llama_cpp && scales.sampled != scales.confidence)
        blocks += block_count(row.size);  // the sums at temperature 1
      find_kept(row, s, blocks, maxima, m, found);
    }
  }
  return found;
}

}  // namespace cuda::detail
SPECAGG_END
