// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that top-k, top-p and min-p keep of rows in device memory. A thread block takes
// a row. The filters are the CPU's code (find_kept of rows/process.hpp). Here threads only read a
// row together, and keep a list of tokens in shared memory. Masses are whole numbers
// (kernel/mass.hpp), so cutoffs and normalisers have the CPU's bits in whatever way they are found:
// here by buckets of the bits of the logits, to which threads add in any order.
#pragma once
#include <specagg/backend/cuda/filtered_row.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

inline constexpr int bits_at_once = 11;  // of the logits, in shortest_prefix

// The memory of a thread block that filters a row. Members that share memory are in use one at a
// time.
struct filter_memory {
  static constexpr std::size_t capacity = 2048;
  union {
    shared_memory reductions;
    unsigned long long mass[1 << bits_at_once];  // of the buckets of a shortest prefix
  };
  union {
    block_sum<float> sums[most_blocks];
    std::uint32_t order[threads];
  };
  alignas(16) float logits[capacity];  // of the list
  token_id ids[capacity];
  std::uint32_t counts[groups];
  std::size_t found;
};
static_assert(sizeof(filter_memory) <= 48 << 10);

// The sum of x over the threads before this one; total: over all of the thread block.
__device__ inline unsigned sum_before(unsigned x, filter_memory& m, unsigned& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned up_to = x;
  for (unsigned d = 1; d < 32; d *= 2) {
    const unsigned y = __shfl_up_sync(~0u, up_to, d);
    if (lane >= d) up_to += y;
  }
  __syncthreads();
  if (lane == 31) m.counts[warp] = up_to;
  __syncthreads();
  unsigned before = up_to - x;
  total = 0;
  for (unsigned w = 0; w < threads / 32; ++w) {
    if (w < warp) before += m.counts[w];
    total += m.counts[w];
  }
  return before;
}

// ---- the shortest prefix (shortest_prefix of kernel/prefix.hpp) ---------------------------------

// Four logits for each thread of tokens begin .. begin + 1023.
template <class S>
struct four_logits {
  std::size_t first;
  int count;
  float x[4];
  __device__ four_logits(const raw_row<S, false>& row, std::size_t begin)
      : first(begin + 4 * threadIdx.x), count(lanes_at<false>(row.size, first)) {
    row.four_at(first, count).template as<vec<float, 4>>().store(x);
  }
};

// One of its steps: which bits of a logit are the number of its bucket, and which must be `prefix`.
struct prefix_step {
  std::uint32_t prefix;
  int left, take;
  static constexpr std::uint32_t none = ~0u;
  __device__ std::uint32_t bucket_of(float l) const {
    const std::uint32_t k = ordered(l);
    if (left < 32 && k >> left != prefix >> left) return none;
    return k >> (left - take) & ((1u << take) - 1);
  }
};

// m.mass: the mass of the tokens of each bucket.
template <class S, class Weight>
__device__ void sum_buckets(const raw_row<S, false>& row, const prefix_step& step,
                            const mass_unit<float>& unit, const Weight& weight, filter_memory& m) {
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 1u << step.take; i += threads) m.mass[i] = 0;
  __syncthreads();
  for (std::size_t b = threadIdx.x / 16; b < block_count(row.size); b += groups)
    block_in_registers<S>(row, b).each([&](int, float l, std::size_t k) {
      if (b * block_size + k >= row.size) return;
      if (const auto bucket = step.bucket_of(l); bucket != step.none)
        atomicAdd(&m.mass[bucket],
                  static_cast<unsigned long long>(unit.whole(weight(vec<float, 1>(l)).v)));
    });
  __syncthreads();
}
// As crossing_bucket() of kernel/select.hpp. The threads of a warp share 32 buckets.
__device__ inline std::uint32_t crossing_of_warp(const unsigned long long* of, std::uint32_t n,
                                                 mass enough, mass& above) {
  const unsigned lane = threadIdx.x % 32;
  mass reached = above;
  std::uint32_t crossing = 0;
  for (std::uint32_t first = 0; first < n; first += 32) {
    const auto own = first + lane < n ? static_cast<long long>(of[n - 1 - first - lane]) : 0;
    long long up_to = own;
    for (unsigned d = 1; d < 32; d *= 2) {
      const long long y = __shfl_up_sync(~0u, up_to, d);
      if (lane >= d) up_to += y;
    }
    const unsigned positive = __ballot_sync(~0u, own > 0),
                   there = __ballot_sync(~0u, own > 0 && reached + up_to >= enough);
    if (positive != 0) {
      const int at = there ? __ffs(int(there)) - 1 : 31 - __clz(int(positive));
      crossing = n - 1 - first - std::uint32_t(at);
      above = reached + __shfl_sync(~0u, up_to - own, at);
    }
    if (there) break;
    reached += __shfl_sync(~0u, up_to, 31);
  }
  return crossing;
}
// The last of the largest logits of mass `enough`. `above`: the mass of the logits before it.
template <class S, class Weight>
__device__ float last_logit(const raw_row<S, false>& row, mass enough, const mass_unit<float>& unit,
                            const Weight& weight, mass& above, filter_memory& m) {
  std::uint32_t prefix = 0;
  above = 0;
  for (int left = 32; left > 0;) {
    const int take = bits_at_once < left ? bits_at_once : left;
    sum_buckets(row, prefix_step{prefix, left, take}, unit, weight, m);
    left -= take;
    prefix |= crossing_of_warp(m.mass, 1u << take, enough, above) << left;
  }
  return unordered<float>(prefix);
}
// The n-th token with this logit, or the last one.
template <class S>
__device__ std::size_t nth_equal(const raw_row<S, false>& row, float logit, std::size_t& n,
                                 filter_memory& m) {
  std::size_t before = 0, last = 0;
  for (std::size_t begin = 0; begin < row.size && before < n; begin += block_size) {
    const four_logits<S> l(row, begin);
    const auto is_tie = [&](int j) { return j < l.count && l.x[j] == logit; };
    unsigned ties = 0, total;
    for (int j = 0; j < 4; ++j) ties += is_tie(j);
    std::size_t number = before + sum_before(ties, m, total);
    const std::size_t wanted = before + total < n ? before + total : n;
    for (int j = 0; j < 4; ++j)
      if (is_tie(j) && ++number == wanted) m.found = l.first + std::size_t(j);
    __syncthreads();
    if (total > 0) last = m.found;
    before = wanted;
  }
  n = before;
  return last;
}
template <class S, class Weight>
__device__ prefix<float> shortest_prefix(const raw_row<S, false>& row, mass enough,
                                         const mass_unit<float>& unit, const Weight& weight,
                                         filter_memory& m) {
  mass above;
  const float logit = last_logit(row, enough, unit, weight, above, m);
  const mass each = unit.whole(weight(vec<float, 1>(logit)).v);
  std::size_t ties = std::size_t((enough - above + each - 1) / each);
  const std::size_t last = nth_equal(row, logit, ties, m);
  return {{logit, last}, above + mass(ties) * each, ties};
}

// ---- a list and a row ---------------------------------------------------------------------------

// As shortlist (kernel/select.hpp). Each thread has one; the tokens are in shared memory.
class block_list {
 public:
  static constexpr std::size_t capacity = filter_memory::capacity;
  std::size_t size = 0;
  __device__ block_list(filter_memory& m, collective<false>& together)
      : m_(&m), together_(&together) {}
  __device__ filter_memory& memory() const { return *m_; }
  __device__ collective<false>& together() const { return *together_; }
  __device__ raw_row<float, false> row() const { return {m_->logits, nullptr, size}; }

  // Keeps only the shortest prefix with a mass of at least `enough`.
  template <class Weight>
  __device__ prefix<float> shorten(mass enough, const mass_unit<float>& unit,
                                   const Weight& weight) {
    const prefix<float> found = size <= threads ? prefix_of_few(enough, unit, weight)
                                                : shortest_prefix(row(), enough, unit, weight, *m_);
    const auto last = std::size_t(m_->ids[found.cut.last]);
    keep([=](float l, std::size_t at) { return found.cut.keeps(l, at); });
    return {{found.cut.logit, last}, found.kept, found.ties};
  }
  // Keeps only the tokens with logit >= lowest.
  __device__ void keep_from(float lowest) {
    keep([=](float l, std::size_t) { return l >= lowest; });
  }

 private:
  template <class Keep>
  __device__ void keep(const Keep& keep_token) {
    constexpr unsigned each = capacity / threads;
    float logit[each];
    token_id id[each];
    unsigned kept = 0, count = 0, total;
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      const std::size_t at = each * threadIdx.x + i;
      if (at >= size) continue;
      logit[i] = m_->logits[at];
      id[i] = m_->ids[at];
      if (!keep_token(logit[i], at)) continue;
      kept |= 1u << i;
      ++count;
    }
    unsigned at = sum_before(count, *m_, total);
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      if (!(kept >> i & 1)) continue;
      m_->logits[at] = logit[i];
      m_->ids[at++] = id[i];
    }
    __syncthreads();
    size = total;
  }
  template <class Weight>
  __device__ prefix<float> prefix_of_few(mass enough, const mass_unit<float>& unit,
                                         const Weight& weight) const {
    const unsigned t = threadIdx.x;
    __syncthreads();
    if (t < size) {
      unsigned before = 0;
      for (unsigned i = 0; i < size; ++i)
        before += m_->logits[i] > m_->logits[t] || (m_->logits[i] == m_->logits[t] && i < t);
      m_->order[before] = t;
    }
    __syncthreads();
    prefix<float> found{{m_->logits[m_->order[0]], m_->order[0]}, 0, 0};
    for (std::size_t i = 0; i < size && found.kept < enough; ++i) {
      const std::uint32_t at = m_->order[i];
      const float l = m_->logits[at];
      const mass own = unit.whole(weight(vec<float, 1>(l)).v);
      if (own == 0) continue;
      found = {{l, at}, found.kept + own, l == found.cut.logit ? found.ties + 1 : 1};
    }
    return found;
  }
  filter_memory* m_;
  collective<false>* together_;
};

// As logits_in_memory (kernel/prefix.hpp). blocks: the sums of the row's blocks, as sum_block_of()
// makes them, at the temperature that the filters see. Null for a list: no list is made of a list.
template <class S>
class logits_of_block {
 public:
  using value_type = float;
  __device__ logits_of_block(const raw_row<S, false>& row, const block_sum<float>* blocks,
                             filter_memory& m, collective<false>& together)
      : row_(row), blocks_(blocks), m_(&m), together_(&together) {}
  __device__ std::size_t size() const { return row_.size; }
  template <class Op, class F>
  __device__ auto reduce(const F& f) const {
    return together_->template reduce<Op>(*this, f);
  }
  struct block {
    const raw_row<S, false>& row;
    std::size_t begin;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      return row.template at<V>(begin + k, n);
    }
  };
  __device__ block open(std::size_t begin, std::size_t) const { return {row_, begin}; }

  __device__ softmax_sum<float> sum_exponentials(double temperature) const {
    return sum_of_blocks(row_, blocks_, exp_scale<float>::of_temperature(temperature).high);
  }
  // The largest logit. (Rows with a NaN or +inf are not filtered.)
  __device__ float largest() const {
    float x = -infinite;
    for (std::size_t b = threadIdx.x % 32; b < block_count(size()); b += 32)
      x = blocks_[b].max > x ? blocks_[b].max : x;
    return largest_of_warp(x);
  }
  template <class Weight>
  __device__ mass mass_from(const mass_unit<float>& unit, const Weight& weight,
                            float lowest) const {
    return specagg::sum_mass_from(*this, unit, weight, lowest);
  }
  __device__ bool list_first(std::size_t k, block_list& list, cutoff<float>& cut) const {
    if (k > most_listed) return false;
    const count_of_tokens one;
    const mass_unit<float> unit(size());
    const mass enough = mass(k) * unit.whole(1.f);
    mass above;
    // at least k tokens reach it, or all tokens that are not masked
    const float least = std::numeric_limits<float>::lowest(),
                reached = k <= block_count(size())
                              ? largest_block(k)
                              : last_logit(row_, enough, unit, one, above, *m_);
    if (list_between(reached > least ? reached : least, infinite, list)) {
      if (list.size >= k) cut = list.shorten(enough, unit, one).cut;
      return true;
    }
    const cutoff<float> prefix = detail::shortest_prefix(row_, enough, unit, one, *m_).cut;
    cut = prefix;
    return list_kept(cut.logit, list, [=](float l, std::size_t v) { return prefix.keeps(l, v); });
  }
  // The list stays empty.
  template <class Weight>
  __device__ prefix<float> shortest_prefix(mass enough, float /*lowest*/, double /*total*/,
                                           float /*lightest*/, const mass_unit<float>& unit,
                                           const Weight& weight, block_list&) const {
    return detail::shortest_prefix(row_, enough, unit, weight, *m_);
  }

 private:
  static constexpr float infinite = std::numeric_limits<float>::infinity();
  // Lists the tokens with lowest <= logit < end. False if there are too many.
  __device__ bool list_between(float lowest, float end, block_list& list) const {
    return list_kept(lowest, list, [=](float l, std::size_t) { return l >= lowest && l < end; });
  }
  // The k-th largest of the blocks' largest logits.
  __device__ float largest_block(std::size_t k) const {
    const std::size_t n = block_count(size()), t = threadIdx.x;
    static_assert(most_blocks <= threads);
    __syncthreads();
    if (t < n) m_->sums[t] = blocks_[t];
    __syncthreads();
    std::size_t before = 0;
    for (std::size_t b = 0; t < n && b < n; ++b)
      before += m_->sums[b].max > m_->sums[t].max || (m_->sums[b].max == m_->sums[t].max && b < t);
    if (t < n && before + 1 == k) m_->found = t;
    __syncthreads();
    return m_->sums[m_->found].max;
  }
  // Lists the tokens with keep(logit, id), in ascending order of their ids: none is below `lowest`.
  // False if there are too many. A function of its own: its registers are a block's logits.
  template <class Keep>
  __device__ SPECAGG_OUTLINE bool list_kept(float lowest, block_list& list,
                                            const Keep& keep) const {
    const std::size_t n = block_count(size());
    const unsigned group = threadIdx.x / 16;
    unsigned listed = 0;
    for (std::size_t first = 0; first < n; first += groups) {
      const std::size_t b = first + group;
      std::uint32_t kept[2] = {};                   // bit 4 a + b: number b of the four at 64 a
      std::uint32_t own[4] = {}, up_to[4], all[4];  // of the four at 64 a: byte a mod 4 of a / 4
      if (b < n && blocks_[b].max >= lowest)
        block_in_registers<S>(row_, b).each([&](int i, float l, std::size_t k) {
          kept[i / 32] |= std::uint32_t(keep(l, b * block_size + k)) << i % 32;
        });
      unsigned of_group = 0;
      if (__any_sync(~0u, (kept[0] | kept[1]) != 0)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] = bits_of_fours(kept[i / 2] >> i % 2 * 16);
        of_group = bytes_before(own, up_to, all);
      }
      __syncthreads();
      if (threadIdx.x % 16 == 0) m_->counts[group] = of_group;
      __syncthreads();
      unsigned at = listed;
      for (unsigned g = 0; g < groups; ++g) {
        if (g < group) at += m_->counts[g];
        listed += m_->counts[g];
      }
      if (listed > list.capacity) return false;
      if (of_group == 0) continue;
#pragma unroll
      for (int a = 0; a < 16; ++a) {
        unsigned to = at + (up_to[a / 4] >> a % 4 * 8 & 255);
        for (unsigned four = kept[a / 8] >> a % 8 * 4 & 15; four != 0; four &= four - 1) {
          const std::size_t v = b * block_size + 4 * (threadIdx.x % 16) + 64 * std::size_t(a) +
                                std::size_t(__ffs(int(four)) - 1);
          m_->logits[to] = number(row_.logits[v]);  // no masked one is kept
          m_->ids[to++] = token_id(v);
        }
        at += all[a / 4] >> a % 4 * 8 & 255;
      }
    }
    __syncthreads();
    list.size = listed;
    return true;
  }
  // How many bits are 1 of each of four times four, as bytes.
  __device__ static std::uint32_t bits_of_fours(std::uint32_t x) {
    x = (x & 0xff) | (x & 0xff00) << 8;
    x = (x | x << 4) & 0x0f0f0f0f;
    x -= x >> 1 & 0x05050505;
    return (x & 0x03030303) + (x >> 2 & 0x03030303);
  }
  // Sums of 16 bytes over the threads of a group of 16: those before this one, and all; no sum is
  // above 64. Returns the sum of all bytes.
  __device__ static unsigned bytes_before(const std::uint32_t* own, std::uint32_t* before,
                                          std::uint32_t* all) {
    const unsigned lane = threadIdx.x % 16, mask = threadIdx.x & 16 ? 0xffff0000u : 0x0000ffffu;
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t up_to = own[i];
      for (unsigned d = 1; d < 16; d *= 2) {
        const std::uint32_t y = __shfl_up_sync(mask, up_to, d, 16);
        if (lane >= d) up_to += y;
      }
      before[i] = up_to - own[i];
      all[i] = __shfl_sync(mask, up_to, 15, 16);
      sum += (all[i] & 255) + (all[i] >> 8 & 255) + (all[i] >> 16 & 255) + (all[i] >> 24);
    }
    return sum;
  }

  raw_row<S, false> row_;
  const block_sum<float>* blocks_;
  filter_memory* m_;
  collective<false>* together_;
};
__device__ inline logits_of_block<float> row_of(const block_list& list) {
  return {list.row(), nullptr, list.memory(), list.together()};
}

// ---- the facts of a row, and the row with them --------------------------------------------------

// The facts of a row with summed blocks. All threads of a block call it; every thread gets them.
template <class S>
__device__ filtered_facts filtered_facts_of(const raw_row<S, false>& row, const sampling& s,
                                            bool confidence, const block_sum<float>* blocks,
                                            filter_memory& m, collective<false>& together) {
  filtered_facts found{facts_of(row, s.temperature, confidence, blocks), {}};
  if constexpr (std::is_same_v<S, probability> || std::is_same_v<S, one_hot>) {
    return found;
  } else {
    if (!s.valid()) found.why = status::invalid_parameter;
    if (found.why != status::ok) return found;
    if (found.greedy) {
      const float largest = number(row.logits[found.token]);
      found.sampled = {largest, 1, 1};
      found.restriction = {largest, found.token};
      return found;
    }
    if (!s.filters(row.size)) return found;
    if (const row_scales scales(s.temperature);
        s.order == filter_order::llama_cpp && scales.sampled != scales.confidence)
      blocks += block_count(row.size);  // the sums at temperature 1
    const logits_of_block<S> logits(row, blocks, m, together);
    block_list list(m, together);
    found.sampled = {};
    found.why = find_kept(logits, s, s.temperature, list, found);
    return found;
  }
}

}  // namespace cuda::detail
SPECAGG_END
