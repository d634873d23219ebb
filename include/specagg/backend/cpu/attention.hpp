// SPDX-License-Identifier: Apache-2.0
// The loops between the products: the norm, and the loops of attention (rotary embedding, scores,
// their exponentials, the weighted sum of values). The order of every sum is fixed by positions and
// dimensions, so the bits do not depend on which tokens are computed together.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/kv_cache.hpp>
#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>
#include <specagg/backend/cpu/tree_paths.hpp>
#include <specagg/kernel/math.hpp>

SPECAGG_BEGIN
namespace cpu::detail {

// y = x / sqrt(mean x^2 + epsilon) * weight. All three are padded with zeros to a multiple of 16
// columns.
[[gnu::flatten]] inline void rms_norm(const float* x, const std::vector<float>& weight,
                                      std::size_t dim, float epsilon, float* y) {
  lanes squares = 0;
  for (std::size_t c = 0; c < weight.size(); c += 16) {
    const auto v = lanes::load(x + c);
    squares = fma(v, v, squares);
  }
  const float scale = 1 / std::sqrt(reduce_add(squares) / float(dim) + epsilon);
  for (std::size_t c = 0; c < weight.size(); c += 16)
    (lanes::load(x + c) * lanes(scale) * lanes::load(weight.data() + c)).store(y + c);
}

// The rotation of a position: cosine and sine of every pair, then minus the sine and the cosine. 4
// floats a frequency.
inline void find_rotation(double position, const std::vector<double>& frequencies,
                          float* rotation) {
  for (std::size_t i = 0, pairs = frequencies.size(); i < pairs; ++i) {
    const auto [sine, cosine] = sin_cos(position * frequencies[i]);
    auto* const one = rotation + 2 * i;
    auto* const other = one + 2 * pairs;
    one[0] = float(cosine);
    one[1] = float(sine);
    other[0] = -one[1];
    other[1] = one[0];
  }
}

// A register of numbers, at least four; and (a, b, c, d, ...) as (a, a, c, c, ...), or with Odd = 1
// as (b, b, d, d, ...).
inline constexpr std::size_t numbers = std::max(4, specagg::detail::native_lanes<float>);
typedef float some_numbers __attribute__((vector_size(4 * numbers)));
template <std::size_t Odd, std::size_t... I>
SPECAGG_LANE some_numbers twice(some_numbers x, std::index_sequence<I...>) {
  return some_numbers{x[I / 2 * 2 + Odd]...};  // one shuffle; nvcc takes no pack in the builtin
}

// Rotates `size` dimensions of one head, in pairs (a, b): to (a cosine - b sine, a sine + b
// cosine).
[[gnu::flatten]] inline void rotate(float* head, const float* rotation, std::size_t size) {
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    float a[16], b[16];
    for (std::size_t j = 0; j < 16; j += numbers) {
      some_numbers x;
      std::memcpy(&x, head + i + j, sizeof x);
      const auto even = twice<0>(x, std::make_index_sequence<numbers>()),
                 odd = twice<1>(x, std::make_index_sequence<numbers>());
      std::memcpy(a + j, &even, sizeof even);
      std::memcpy(b + j, &odd, sizeof odd);
    }
    const auto product = uncontracted(lanes::load(b) * lanes::load(rotation + size + i));
    fma(lanes::load(a), lanes::load(rotation + i), product).store(head + i);
  }
  using one = vec<float, 1>;
  for (; i < size; i += 2) {
    const one a = head[i], b = head[i + 1];
    for (std::size_t j = i; j < i + 2; ++j)
      head[j] = fma(a, one(rotation[j]), uncontracted(b * one(rotation[size + j]))).v;
  }
}

// One core reads memory much faster if the memory is asked for in advance. While keys are read, the
// values that follow them (kv_cache.hpp) are asked for; while values are read, the keys that come
// next.
SPECAGG_LANE void ask_for(const f16* at) { __builtin_prefetch(at, 0, 2); }

// Scores of 16 or 32 positions for several queries: sums over the dimensions of keys times queries,
// in order. Recursive, because compilers put arrays of vectors into memory.
template <int Queries>
struct score_tile {
  lanes a = 0, b = 0;
  score_tile<Queries - 1> rest;
  SPECAGG_LANE void add(lanes key, const float* const* q, std::size_t d) {
    a = fma(key, lanes(q[0][d]), a);
    rest.add(key, q + 1, d);
  }
  SPECAGG_LANE void add(lanes key, lanes next, const float* const* q, std::size_t d) {
    const lanes x = q[0][d];
    a = fma(key, x, a);
    b = fma(next, x, b);
    rest.add(key, next, q + 1, d);
  }
  SPECAGG_LANE void store(float* const* s, std::size_t p, bool both) const {
    a.store(s[0] + p);
    if (both) b.store(s[0] + p + 16);
    rest.store(s + 1, p, both);
  }
};
template <>
struct score_tile<0> {
  SPECAGG_LANE void add(lanes, const float* const*, std::size_t) {}
  SPECAGG_LANE void add(lanes, lanes, const float* const*, std::size_t) {}
  SPECAGG_LANE void store(float* const*, std::size_t, bool) const {}
};

// Writes s[i][from + p] for the queries q[i] and the positions p < count, a multiple of 16. keys:
// [block of 16 positions][dimension][16].
template <int Queries>
[[gnu::flatten]] void score_positions(const f16* keys, std::size_t dims, std::size_t count,
                                      const float* const* q, float* const* s, std::size_t from) {
  std::size_t p = 0;
  for (; p + 16 < count; p += 32) {
    score_tile<Queries> tile;
    const auto* at = keys + p * dims;
    for (std::size_t d = 0; d < dims; ++d, at += 16) {
      ask_for(at + (kv_cache::page_positions + d % 2 * 16) * dims);  // of each the lines in turn
      tile.add(lanes::load(at), lanes::load(at + 16 * dims), q, d);
    }
    tile.store(s, from + p, true);
  }
  if (p == count) return;
  score_tile<Queries> tile;
  const auto* at = keys + p * dims;
  for (std::size_t d = 0; d < dims; ++d, at += 16) tile.add(lanes::load(at), q, d);
  tile.store(s, from + p, false);
}

// Weighted sums of values, for several queries: Wide * 16 dimensions of each, in the order of the
// positions.
template <int Wide>
struct value_lanes {
  lanes first;
  value_lanes<Wide - 1> rest;
  template <class T>
  SPECAGG_LANE void load(const T* x) {
    first = lanes::load(x);
    rest.load(x + 16);
  }
  SPECAGG_LANE void store(float* x) const {
    first.store(x);
    rest.store(x + 16);
  }
  SPECAGG_LANE void add(const value_lanes& value, lanes weight) {
    first = fma(value.first, weight, first);
    rest.add(value.rest, weight);
  }
};
template <>
struct value_lanes<0> {
  SPECAGG_LANE void load(const auto*) {}
  SPECAGG_LANE void store(float*) const {}
  SPECAGG_LANE void add(const value_lanes&, lanes) {}
};
template <int Queries, int Wide>
struct value_tile {
  value_lanes<Wide> sum;
  value_tile<Queries - 1, Wide> rest;
  SPECAGG_LANE void load(float* const* sums, std::size_t d) {
    sum.load(sums[0] + d);
    rest.load(sums + 1, d);
  }
  SPECAGG_LANE void store(float* const* sums, std::size_t d) const {
    sum.store(sums[0] + d);
    rest.store(sums + 1, d);
  }
  SPECAGG_LANE void add(const value_lanes<Wide>& value, const float* const* weight, std::size_t p) {
    sum.add(value, weight[0][p]);
    rest.add(value, weight + 1, p);
  }
};
template <int Wide>
struct value_tile<0, Wide> {
  SPECAGG_LANE void load(float* const*, std::size_t) {}
  SPECAGG_LANE void store(float* const*, std::size_t) const {}
  SPECAGG_LANE void add(const value_lanes<Wide>&, const float* const*, std::size_t) {}
};

// sums[i][d] += weight[i][from + p] values[p * stride + d] for p < count, for Wide * 16 dimensions
// from d on. Asks for as much memory at `next`.
template <int Queries, int Wide>
[[gnu::flatten]] void weigh_values(const float* const* weight, std::size_t from, const f16* values,
                                   std::size_t stride, std::size_t count, float* const* sums,
                                   std::size_t d, const f16* next) {
  value_tile<Queries, Wide> tile;
  tile.load(sums, d);
  for (std::size_t p = 0; p < count; ++p) {
    value_lanes<Wide> value;
    value.load(values + p * stride + d);
    for (int i = 0; i < Wide; i += 2) ask_for(next + (p * stride + d) + 16 * i);
    tile.add(value, weight, from + p);
  }
  tile.store(sums, d);
}
// weigh_values for all `dims` dimensions, a multiple of 16.
template <int Queries>
void weigh_all(const float* const* weight, std::size_t from, const f16* values, std::size_t stride,
               std::size_t count, float* const* sums, std::size_t dims, const f16* next) {
  constexpr int wide = numbers == 16 ? 4 : 2;  // as many sums as there are registers
  std::size_t d = 0;
  for (; d + 16 * wide <= dims; d += 16 * wide)
    weigh_values<Queries, wide>(weight, from, values, stride, count, sums, d, next);
  for (; d < dims; d += 16)
    weigh_values<Queries, 1>(weight, from, values, stride, count, sums, d, next);
}

// Replaces the first `count` scores by e^(score - top) and returns their sum. top: the largest
// score, or if it is larger the lowest finite number. Fills the last group of 16 with 0.
[[gnu::flatten]] inline float exponentiate(float* scores, std::size_t count, float& top) {
  const auto end = padded(count);
  auto* last = scores + (end - 16);
  select(lanes::iota(float(end - 16)) < lanes(float(count)), lanes::load(last),
         lanes(-std::numeric_limits<float>::infinity()))
      .store(last);
  lanes most = std::numeric_limits<float>::lowest();
  for (std::size_t p = 0; p < end; p += 16) most = max(most, lanes::load(scores + p));
  top = reduce_max(most);
  const auto scale = exp_scale<float>::of_temperature(1);
  lanes sum = 0;
  for (std::size_t p = 0; p < end; p += 16) {
    const auto e = exp_scaled(lanes::load(scores + p) - lanes(top), scale);
    e.store(scores + p);
    sum = sum + e;
  }
  return reduce_add(sum);
}

// The results of the queries of a step for each range of the positions that they see. For the
// scores s of a range: top (as in exponentiate), total = sum e^(s - top), values = sum e^(s - top)
// value.
class partial_sums {
 public:
  // queries: the most queries in a step, of all heads. ranges: the most ranges that a query sees.
  // dims: of a head.
  partial_sums(std::size_t queries, std::size_t ranges, std::size_t dims)
      : ranges_(ranges),
        dims_(dims),
        values_(queries * ranges, dims),
        totals_(queries, ranges),
        tops_(queries, ranges) {}

  float* values(std::size_t query, std::size_t range) {
    return values_.data() + (query * ranges_ + range) * padded(dims_);
  }
  float& total(std::size_t query, std::size_t range) {
    return totals_.data()[query * padded(ranges_) + range];
  }
  float& top(std::size_t query, std::size_t range) {
    return tops_.data()[query * padded(ranges_) + range];
  }

  // The mean of the values in the first `ranges` ranges: dims numbers. Call it once: it overwrites
  // the tops.
  void mean(std::size_t query, std::size_t ranges, float* to) {
    float* const weight = &top(query, 0);
    float of_all = 0, all = 0;
    if (ranges > 1) exponentiate(weight, ranges, of_all);
    else *weight = 1;
    for (std::size_t k = 0; k < ranges; ++k)
      all = specagg::detail::fused(weight[k], total(query, k), all);
    for (std::size_t d = 0; d < dims_; d += 16) {
      lanes sum = 0;
      for (std::size_t k = 0; k < ranges; ++k)
        sum = fma(lanes::load(values(query, k) + d), lanes(weight[k]), sum);
      float some[16];
      (sum / lanes(all)).store(some);
      std::copy_n(some, std::min<std::size_t>(16, dims_ - d), to + d);
    }
  }

 private:
  std::size_t ranges_, dims_;
  activation_buffer values_, totals_, tops_;
};

// Attention of the queries of one key-value head, of `count` tokens of a step, in one range of
// positions. Token t of the step is stored at `position` + t. In a tree it sees the text, which
// ends at tree_begin, and its path, numbered after the text in the order of the path.
struct range_attention {
  // positions: those of a few pages, so that a task has work and its keys and values stay in cache
  static constexpr std::size_t size = 2 * kv_cache::page_positions;
  static std::size_t ranges_for(std::size_t positions) { return (positions + size - 1) / size; }

  const kv_cache& cache;
  std::size_t layer, head;
  const tree_paths& tree;
  std::size_t tree_begin, position, count;
  std::size_t group, dims;   // query heads of the key-value head; dimensions of each
  const activations& qkv;    // of the tokens
  std::size_t first_query;   // the number of the first token's first query of this head
  std::size_t queries_each;  // of a token, all heads
  partial_sums& sums;
  // The memory that is probably read next: a range, and a head of a cache.
  struct later {
    const kv_cache* cache;
    std::size_t head, range;
  } after;

  // Into how many parts the queries can be divided. Every part of every range must be computed.
  static std::size_t most_parts(std::size_t queries) { return (queries + at_once - 1) / at_once; }
  void compute(std::size_t range, std::size_t part, std::size_t parts) const {
    for (auto i = part * at_once; i < count * group; i += parts * at_once)
      compute_some(range, i, std::min(at_once, count * group - i));
  }
  // Once all ranges are computed: writes rows of `attended`.
  void finish(activations& attended) const {
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t g = 0; g < group; ++g)
        sums.mean(number(t, g), ranges_for(seen(t)), attended.data() + place(attended, t, g));
  }

 private:
  static constexpr std::size_t at_once = 12;  // queries
  static constexpr std::size_t page = kv_cache::page_positions;

  // Some queries, one after another in the order of tokens and heads.
  struct some_queries {
    std::size_t count, token[at_once], number[at_once];
    const float* q[at_once];
    float *scores[at_once], *found[at_once], memory[at_once][size];
  };

  // For head g of the group and token t: the query's number in `sums`, and its place in rows of
  // tokens.
  std::size_t number(std::size_t t, std::size_t g) const {
    return first_query + t * queries_each + g;
  }
  std::size_t place(const activations& a, std::size_t t, std::size_t g) const {
    return t * std::size_t(a.outerStride()) + (head * group + g) * dims;
  }
  // In a tree the path to token t.
  std::span<const std::uint32_t> path(std::size_t t) const {
    if (tree.size() == 0) return {};
    return tree.path(position + t - tree_begin + 1);
  }
  // Positions that token t sees in the order of the text, and all that it sees.
  std::size_t in_order(std::size_t t) const {
    return tree.size() == 0 ? position + t + 1 : tree_begin;
  }
  std::size_t seen(std::size_t t) const { return in_order(t) + path(t).size(); }

  // Runs body<n>(j) for n queries from j on, where n is 3 but for the last queries.
  static void in_tiles(const some_queries& some, auto&& body) {
    std::size_t j = 0;
    for (; j + 3 <= some.count; j += 3) body.template operator()<3>(j);
    if (some.count - j == 2) body.template operator()<2>(j);
    else if (some.count - j == 1) body.template operator()<1>(j);
  }

  void compute_some(std::size_t range, std::size_t from, std::size_t many) const {
    some_queries some;
    some.count = many;
    for (std::size_t j = 0, t = from / group, g = from % group; j < many; ++j) {
      some.token[j] = t;
      some.number[j] = number(t, g);
      some.q[j] = qkv.data() + place(qkv, t, g);
      some.scores[j] = some.memory[j];
      some.found[j] = sums.values(some.number[j], range);
      std::fill_n(some.found[j], padded(dims), 0.f);
      if (++g == group) ++t, g = 0;
    }
    const auto begin = range * size, end = begin + size,
               text_end = std::min(end, in_order(some.token[many - 1]));  // the last sees most
    // The scores beyond the positions that a query sees are not read.
    for (auto p = begin; p < text_end; p += page) {
      const auto* const keys = cache.keys(p / page, layer, head);
      in_tiles(some, [&]<int N>(std::size_t j) {
        score_positions<N>(keys, dims, padded(std::min(page, text_end - p)), some.q + j,
                           some.scores + j, p - begin);
      });
    }
    const bool nodes = tree.size() > 0 && end > tree_begin;
    if (nodes) score_paths(begin, end, some);
    for (std::size_t j = 0; j < many; ++j)
      if (const auto all = std::min(end, seen(some.token[j])); all > begin)
        sums.total(some.number[j], range) =
            exponentiate(some.scores[j], all - begin, sums.top(some.number[j], range));
    for (auto p = begin; p < text_end; p += page) weigh_page(p, begin, text_end, some);
    if (nodes) weigh_paths(begin, end, some);
  }

  // Values of the page from position p on, of which the queries see those before text_end, or less.
  void weigh_page(std::size_t p, std::size_t begin, std::size_t text_end,
                  const some_queries& some) const {
    const auto* const values = cache.values(p / page, layer, head);
    const auto stride = padded(dims), at = after.range * (size / page) + (p - begin) / page;
    const auto* const then =
        at < after.cache->pages() ? after.cache->keys(at, layer, after.head) : values;
    const auto sees = [&](std::size_t j) {
      return std::max(p, std::min({p + page, text_end, in_order(some.token[j])})) - p;
    };
    in_tiles(some, [&]<int N>(std::size_t j) {
      const auto all_see = sees(j);  // later tokens see as much, or more
      weigh_all<N>(some.scores + j, p - begin, values, stride, all_see, some.found + j, stride,
                   then);
      for (auto k = j + 1; k < j + N; ++k)
        if (sees(k) > all_see)
          weigh_all<1>(some.scores + k, p - begin + all_see, values + all_see * stride, stride,
                       sees(k) - all_see, some.found + k, stride, then);
    });
  }

  // The scores of the nodes of each query's path whose place in the order of the path is in [begin,
  // end).
  void score_paths(std::size_t begin, std::size_t end, const some_queries& some) const {
    std::size_t next[at_once] = {};  // of each path; it ascends
    float memory[at_once][16], *found[at_once];
    for (std::size_t j = 0; j < some.count; ++j) found[j] = memory[j];
    for (auto p = tree_begin / 16 * 16; p < position + count; p += 16) {
      const auto* const keys = cache.keys(p / page, layer, head) + p % page * dims;
      in_tiles(some, [&]<int N>(std::size_t j) {
        score_positions<N>(keys, dims, 16, some.q + j, found + j, 0);
      });
      for (std::size_t j = 0; j < some.count; ++j)
        for (const auto nodes = path(some.token[j]); next[j] < nodes.size(); ++next[j]) {
          const auto at = tree_begin + nodes[next[j]] - 1, to = tree_begin + next[j];
          if (at >= p + 16) break;
          if (to >= begin && to < end) some.scores[j][to - begin] = found[j][at - p];
        }
    }
  }
  // Their values.
  void weigh_paths(std::size_t begin, std::size_t end, const some_queries& some) const {
    for (std::size_t j = 0; j < some.count; ++j) {
      const auto nodes = path(some.token[j]);
      for (auto p = std::max(begin, tree_begin); p < std::min(end, tree_begin + nodes.size());
           ++p) {
        const auto at = tree_begin + nodes[p - tree_begin] - 1;
        const auto* const value = cache.values(at / page, layer, head) + at % page * padded(dims);
        weigh_all<1>(some.scores + j, p - begin, value, 0, 1, some.found + j, padded(dims), value);
      }
    }
  }
};

}  // namespace cpu::detail
SPECAGG_END
