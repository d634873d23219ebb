// SPDX-License-Identifier: Apache-2.0
// The loops between the products: the norm, and those of attention: rotary embedding, scores, their
// exponentials, the weighted sum of values. The order of every sum is fixed by positions and
// dimensions, so the bits do not depend on which tokens are computed together.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>
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

}  // namespace detail
}  // namespace cpu
SPECAGG_END
