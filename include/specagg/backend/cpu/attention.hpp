// SPDX-License-Identifier: Apache-2.0
// The loops between the products: the norm, and those of attention: rotary embedding, scores, their
// exponentials, the weighted sum of values. The order of every sum is fixed by positions and
// dimensions, so the bits do not depend on which tokens are computed together.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>
#include <specagg/backend/cpu/tree_paths.hpp>
#include <specagg/config.hpp>
#include <specagg/kernel/math.hpp>

SPECAGG_BEGIN
namespace cpu {
namespace detail {

// y = x / sqrt(mean x^2 + epsilon) * weight. All three are padded with zeros to a multiple of 16
// columns.
[[gnu::flatten]] inline void rms_norm(const float* x, const std::vector<float>& weight,
                                      std::size_t dim, float epsilon, float* y) {
  lanes squares = 0;
  for (std::size_t c = 0; c < weight.size(); c += 16) {
    const auto v = lanes::load(x + c);
    squares = fma(v, v, squares);
  }
  const float scale = 1 / std::sqrt(reduce_add(squares) / static_cast<float>(dim) + epsilon);
  for (std::size_t c = 0; c < weight.size(); c += 16)
    (lanes::load(x + c) * lanes(scale) * lanes::load(weight.data() + c)).store(y + c);
}

// Adds weight[p] values[p * stride + ...] for p in [begin, end), for Wide * 16 dimensions of one
// head. There are four accumulators, chosen by p mod 4. `sums` holds their 64 * Wide floats between
// calls. begin % 4 must be 0.
template <int Wide>
[[gnu::flatten]] void weigh_values(const float* weight, const float* values, std::size_t stride,
                                   std::size_t begin, std::size_t end, float* sums) {
  const auto at = [&](int i) { return lanes::load(sums + 16 * i); };
  lanes a0 = at(0), a1 = at(1), a2 = at(2), a3 = at(3), b0 = 0, b1 = 0, b2 = 0, b3 = 0;
  if constexpr (Wide == 2) {
    b0 = at(4);
    b1 = at(5);
    b2 = at(6);
    b3 = at(7);
  }
  const auto add = [&](std::size_t p, lanes& a, lanes& b) {
    const lanes w = weight[p];
    a = fma(lanes::load(values + p * stride), w, a);
    if constexpr (Wide == 2) b = fma(lanes::load(values + p * stride + 16), w, b);
  };
  auto p = begin;
  for (; p + 4 <= end; p += 4) {
    add(p, a0, b0);
    add(p + 1, a1, b1);
    add(p + 2, a2, b2);
    add(p + 3, a3, b3);
  }
  if (p < end) add(p, a0, b0);
  if (p + 1 < end) add(p + 1, a1, b1);
  if (p + 2 < end) add(p + 2, a2, b2);
  a0.store(sums);
  a1.store(sums + 16);
  a2.store(sums + 32);
  a3.store(sums + 48);
  if constexpr (Wide == 2) {
    b0.store(sums + 64);
    b1.store(sums + 80);
    b2.store(sums + 96);
    b3.store(sums + 112);
  }
}

// The same for one position: accumulator p mod 4 of `sums`. value: of that position.
template <int Wide>
[[gnu::flatten]] void weigh_value(float weight, const float* value, std::size_t p, float* sums) {
  float* const sum = sums + 16 * (p % 4);
  for (int i = 0; i < Wide; ++i)
    fma(lanes::load(value + 16 * i), lanes(weight), lanes::load(sum + 64 * i)).store(sum + 64 * i);
}

// The rotation of a position: cosine and sine of every pair, then minus the sine and the cosine. 4
// floats a frequency.
inline void find_rotation(double position, const std::vector<double>& frequencies,
                          float* rotation) {
  for (std::size_t i = 0, pairs = frequencies.size(); i < pairs; ++i) {
    const auto [sine, cosine] = sin_cos(position * frequencies[i]);
    auto* const one = rotation + 2 * i;
    auto* const other = one + 2 * pairs;
    one[0] = static_cast<float>(cosine);
    one[1] = static_cast<float>(sine);
    other[0] = -one[1];
    other[1] = one[0];
  }
}

// Rotates `size` dimensions of one head, in pairs (a, b): to (a cosine - b sine, a sine + b
// cosine).
[[gnu::flatten]] inline void rotate(float* head, const float* rotation, std::size_t size) {
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    float a[16], b[16];
    for (std::size_t j = 0; j < 16; j += 4) {
      f32x4 x;
      std::memcpy(&x, head + i + j, sizeof x);
      const auto even = __builtin_shufflevector(x, x, 0, 0, 2, 2),
                 odd = __builtin_shufflevector(x, x, 1, 1, 3, 3);
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

// Writes s[i][p] for the queries q[i] and all positions p in [begin, end), both multiples of 16.
// keys: [block of 16 positions][dimension][16].
template <int Queries>
[[gnu::flatten]] void score_positions(const float* keys, std::size_t dims, std::size_t begin,
                                      std::size_t end, const float* const* q, float* const* s) {
  auto p = begin;
  for (; p + 16 < end; p += 32) {
    score_tile<Queries> tile;
    const auto* at = keys + p * dims;
    for (std::size_t d = 0; d < dims; ++d, at += 16)
      tile.add(lanes::load(at), lanes::load(at + 16 * dims), q, d);
    tile.store(s, p, true);
  }
  if (p == end) return;
  score_tile<Queries> tile;
  const auto* at = keys + p * dims;
  for (std::size_t d = 0; d < dims; ++d, at += 16) tile.add(lanes::load(at), q, d);
  tile.store(s, p, false);
}

// Replaces the first `count` scores by e^(score - largest score) and returns their sum. Fills the
// last group of 16 with 0.
[[gnu::flatten]] inline float exponentiate(float* scores, std::size_t count) {
  const lanes infinity = std::numeric_limits<float>::infinity();
  const auto end = padded(count);
  auto* last = scores + (end - 16);
  select(lanes::iota(static_cast<float>(end - 16)) < lanes(static_cast<float>(count)),
         lanes::load(last), -infinity)
      .store(last);
  auto most = -infinity;
  for (std::size_t p = 0; p < end; p += 16) most = max(most, lanes::load(scores + p));
  const lanes top = reduce_max(most);
  const auto scale = exp_scale<float>::of_temperature(1);
  lanes sum = 0;
  for (std::size_t p = 0; p < end; p += 16) {
    const auto e = exp_scaled(lanes::load(scores + p) - top, scale);
    e.store(scores + p);
    sum = sum + e;
  }
  return reduce_add(sum);
}

// Attention for tokens [first, end) of a step and all query heads of one key-value head. It
// processes a few keys or values at a time for all of these queries, so the cache is read from
// memory once. Token t of the step is stored at `position` + t. In a tree it sees the text, which
// ends at tree_begin, and its path.
struct grouped_attention {
  const float *keys, *values;  // of the key-value head (kv_cache.hpp)
  const tree_paths& tree;
  std::size_t tree_begin, position, first, end;
  std::size_t group, dims, column;  // query heads; of each; where the first one begins in a row
  float* memory;                    // a row of scores for each query
  std::size_t row_size;
  const activations& qkv;
  activations& attended;

  void compute() const {
    const std::size_t queries = (end - first) * group;
    score(queries);
    for (std::size_t from = 0; from < queries; from += most_weighed)
      weigh(from, std::min(most_weighed, queries - from));
  }

 private:
  static constexpr std::size_t most_weighed = 32;  // queries

  std::size_t token_of(std::size_t i) const { return first + i / group; }
  // In a tree the positions of the path to query i's token, numbered after the text in the order of
  // the path.
  std::span<const std::uint32_t> path(std::size_t i) const {
    if (tree.size() == 0) return {};
    return tree.path(position + token_of(i) - tree_begin + 1);
  }
  // Positions that query i sees in the order of the text, and all that it sees.
  std::size_t in_order(std::size_t i) const {
    return tree.size() == 0 ? position + token_of(i) + 1 : tree_begin;
  }
  std::size_t seen(std::size_t i) const { return in_order(i) + path(i).size(); }
  // Where the head of query i is in a row of token_of(i).
  std::size_t place(const activations& a, std::size_t i) const {
    return token_of(i) * static_cast<std::size_t>(a.outerStride()) + column + i % group * dims;
  }
  float* scores(std::size_t i) const { return memory + i * row_size; }

  // For a query that sees less than others, the scores after that are not read.
  void score(std::size_t queries) const {
    const auto end_of_keys = padded(position + end);
    for (std::size_t p = 0; p < end_of_keys; p += 64)
      for (std::size_t i = 0; i < queries; i += 3) {
        const float* q[3];
        float* s[3];
        const auto some = std::min<std::size_t>(3, queries - i);
        for (std::size_t j = 0; j < some; ++j) {
          q[j] = qkv.data() + place(qkv, i + j);
          s[j] = scores(i + j);
        }
        const auto to = std::min(p + 64, end_of_keys);
        if (some == 3) score_positions<3>(keys, dims, p, to, q, s);
        else if (some == 2) score_positions<2>(keys, dims, p, to, q, s);
        else score_positions<1>(keys, dims, p, to, q, s);
      }
  }
  // The mean of the values, weighed by the exponentials of the scores, of the queries from, from +
  // 1, ...
  void weigh(std::size_t from, std::size_t some) const {
    float totals[most_weighed], sums[most_weighed][128];
    for (std::size_t i = 0; i < some; ++i) {
      auto* const s = scores(from + i);
      std::size_t p = tree_begin;
      // a path ascends, so none is lost
      for (const auto node : path(from + i)) s[p++] = s[tree_begin + node - 1];
      totals[i] = exponentiate(s, seen(from + i));
    }
    for (std::size_t d = 0; d < dims; d += 32) {
      for (std::size_t i = 0; i < some; ++i) std::fill_n(sums[i], 128, 0.f);
      if (d + 16 < dims) add_values<2>(from, some, d, sums);
      else add_values<1>(from, some, d, sums);
      for (std::size_t i = 0; i < some; ++i)
        for (std::size_t e = d; e < std::min(dims, d + 32); e += 16) {
          const auto* a = sums[i] + (e - d) * 4;
          const auto sum =
              (lanes::load(a) + lanes::load(a + 16)) + (lanes::load(a + 32) + lanes::load(a + 48));
          float mean[16];
          (sum / lanes(totals[i])).store(mean);
          std::copy_n(mean, std::min<std::size_t>(16, dims - e),
                      attended.data() + place(attended, from + i) + e);
        }
    }
  }
  // Adds the weighed values, Wide * 16 dimensions from d on.
  template <int Wide>
  void add_values(std::size_t from, std::size_t some, std::size_t d, float (*sums)[128]) const {
    const auto* v = values + d;
    for (std::size_t p = 0; p < in_order(from + some - 1); p += 64)
      for (std::size_t i = 0; i < some; ++i)
        if (const auto to = std::min(p + 64, in_order(from + i)); p < to)
          weigh_values<Wide>(scores(from + i), v, padded(dims), p, to, sums[i]);
    for (std::size_t i = 0; i < some; ++i) {
      std::size_t p = tree_begin;
      for (const auto node : path(from + i)) {
        const auto* const value = v + (tree_begin + node - 1) * padded(dims);
        weigh_value<Wide>(scores(from + i)[p], value, p, sums[i]);
        ++p;
      }
    }
  }
};

}  // namespace detail
}  // namespace cpu
SPECAGG_END
