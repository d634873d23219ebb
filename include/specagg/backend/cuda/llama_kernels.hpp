// SPDX-License-Identifier: Apache-2.0
// The operations of the Llama forward between its matrix products, for up to `tile` tokens at once.
// Every kernel computes a token in the same way, beside any other tokens. Threads of tokens
// that do not exist return at once, so one graph of launches works for steps of any number of
// tokens.
//
// Products take columns of 16-bit elements. A column x is given as two columns, high + low; low is
// the rounding error of high. This keeps 22 bits of x with f16 (16 with bf16), and the weights are
// read only once. Before that, x is scaled by a power of two so that the largest |x| lies in
// 2^14..2^15. The token's `factor` undoes this.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <specagg/half.hpp>
#include <specagg/kernel/simd.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cuda::llama_kernels {

using specagg::detail::bit_cast;
using specagg::detail::number;

inline constexpr unsigned tile = 16;  // tokens per step
inline constexpr unsigned block = 256, attention_block = 128, most_head_dim = 256;

// The input of all kernels of a step: its tokens and their place.
struct step {
  // position of the first token; number of tokens; how many of them want no logits
  unsigned position, count, skip;
  token_id tokens[tile];
};

// Padded numbers are multiples of 16 (the capacity: of 32), and are used as strides.
struct shape {
  unsigned dim, dim_padded, ffn, ffn_padded, heads, kv_heads, head_dim, width_padded, qkv_padded,
      gate_up_padded;
  unsigned pairs, vocab, vocab_padded, capacity_padded;
  float epsilon, query_scale;

  // Keys are stored in blocks of 32 positions, [kv head][block][dimension][32], so the threads of a
  // warp read neighbours.
  SPECAGG_FUNCTION std::size_t key(unsigned kv_head, unsigned position, unsigned d) const {
    return std::size_t{kv_head} * head_dim * capacity_padded +
           (std::size_t{position / 32} * head_dim + d) * 32 + position % 32;
  }
  SPECAGG_FUNCTION std::size_t value(unsigned kv_head, unsigned position, unsigned d) const {
    return (std::size_t{kv_head} * capacity_padded + position) * head_dim + d;
  }
  // floats per layer
  std::size_t cached() const { return std::size_t{kv_heads} * head_dim * capacity_padded; }
};

// Rounds to the nearest 16-bit float, ties to even.
template <class E>
SPECAGG_FUNCTION E rounded(float x);
template <>
SPECAGG_FUNCTION inline bf16 rounded<bf16>(float x) {
  const auto u = bit_cast<std::uint32_t>(x);
  if (x != x) return {std::uint16_t(u >> 16 | 0x40u)};
  return {std::uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
template <>
SPECAGG_FUNCTION inline f16 rounded<f16>(float x) {
  const auto u = bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  std::uint32_t h = 0;
  if (a > 0x7f800000u) h = 0x7e00u;
  else if (a >= 0x477ff000u) h = 0x7c00u;  // 65520 rounds to infinity
  // subnormal: units of 2^-24, the spacing of floats near 1/2
  else if (a < 0x38800000u) h = bit_cast<std::uint32_t>(bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  else h = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
  return {std::uint16_t(sign | h)};
}

// Memory for one number per warp.
__device__ inline float* warp_results() {
  __shared__ float part[32];
  return part;
}
// Reduces x by op over the threads of a block, in a fixed order. Every thread gets the result.
__device__ float across_block(float x, auto op) {
  float* const part = warp_results();
  for (int d = 16; d > 0; d /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
  __syncthreads();  // all threads have read the results of an earlier call
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = part[0];
  for (unsigned i = 1; i < blockDim.x / 32; ++i) x = op(x, part[i]);
  return x;
}
// For across_block().
struct add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
// For across_block(); NaN is ignored.
struct larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Converts a row to the format that the next product takes. Thread i reads the columns i, i +
// blockDim.x, ...
template <class E>
__device__ void split_row(const float* row, unsigned count, E* high, E* low, float* factor) {
  float most = 0;
  for (unsigned c = threadIdx.x; c < count; c += blockDim.x) most = fmaxf(most, fabsf(row[c]));
  const auto exponent = bit_cast<std::uint32_t>(across_block(most, larger())) >> 23;
  const bool usual = exponent > 14 && exponent < 255;  // otherwise all zeros, or NaN or infinity
  const std::uint32_t scale_exponent = usual ? 268 - exponent : 127;
  const float scale = bit_cast<float>(scale_exponent << 23);
  for (unsigned c = threadIdx.x; c < count; c += blockDim.x) {
    const float x = row[c] * scale;
    const E h = rounded<E>(x);
    high[c] = h;
    low[c] = rounded<E>(x - number(h));
  }
  if (threadIdx.x == 0) *factor = bit_cast<float>((254 - scale_exponent) << 23);
}

// The result of the product for the two columns of token t.
struct result {
  const float *high, *low;
  float factor;
  __device__ result(const float* y, unsigned stride, unsigned t, const float* factors)
      : high(y + std::size_t{t} * stride),
        low(y + std::size_t{t + tile} * stride),
        factor(factors[t]) {}
  __device__ float operator[](unsigned r) const { return (high[r] + low[r]) * factor; }
};

// One block for each token.
template <class E>
__global__ void embed(const step* s, shape m, const E* table, float* x) {
  const unsigned t = blockIdx.x;
  if (t >= s->count) return;
  const E* from = table + std::size_t(s->tokens[t]) * m.dim_padded;
  for (unsigned c = threadIdx.x; c < m.dim; c += blockDim.x)
    x[t * m.dim_padded + c] = number(from[c]);
}

// x += the product, unless y is null. Then x / sqrt(mean x^2 + epsilon) * weight, split into two
// columns. If `last`, only for the tokens that want logits. One block for each token.
template <class E>
__global__ void normalise(const step* s, shape m, float* x, const float* y, const float* weight,
                          float* scratch, E* columns, float* factors, bool last) {
  const unsigned t = blockIdx.x;
  if (t >= s->count || (last && t < s->skip)) return;
  float* row = x + t * m.dim_padded;
  float squares = 0;
  for (unsigned c = threadIdx.x; c < m.dim; c += blockDim.x) {
    float v = row[c];
    if (y) row[c] = v += result(y, m.dim_padded, t, factors)[c];
    squares = fmaf(v, v, squares);
  }
  const float scale = 1 / sqrtf(across_block(squares, add()) / float(m.dim) + m.epsilon);
  float* normal = scratch + std::size_t{t} * m.dim_padded;
  for (unsigned c = threadIdx.x; c < m.dim; c += blockDim.x) normal[c] = row[c] * scale * weight[c];
  split_row(normal, m.dim, columns + t * m.dim_padded, columns + (t + tile) * m.dim_padded,
            factors + t);
}

// Rotates queries and keys, scales the queries, stores keys and values. rotations: cosine and sine
// of each pair, position by position. Blocks: tokens x heads (queries, keys, values).
template <class = void>  // a template, so that several files may contain it
__global__ void remember(const step* s, shape m, const float* y, const float* factors,
                         const float2* rotations, float* queries, float* keys, float* values) {
  const unsigned t = blockIdx.x, head = blockIdx.y;
  if (t >= s->count) return;
  const unsigned position = s->position + t;
  const result x(y, m.qkv_padded, t, factors);
  for (unsigned i = threadIdx.x; 2 * i < m.head_dim; i += blockDim.x) {
    const unsigned d = 2 * i, n = d + 1 < m.head_dim ? 2 : 1;
    float pair[2] = {x[head * m.head_dim + d], n == 2 ? x[head * m.head_dim + d + 1] : 0};
    if (head < m.heads + m.kv_heads && i < m.pairs) {
      const float2 by = rotations[std::size_t{position} * m.pairs + i];
      const float a = pair[0], b = pair[1];
      pair[0] = fmaf(a, by.x, -(b * by.y));
      pair[1] = fmaf(a, by.y, b * by.x);
    }
    for (unsigned k = 0; k < n; ++k) {
      if (head < m.heads)
        queries[t * m.width_padded + head * m.head_dim + d + k] = pair[k] * m.query_scale;
      else if (head < m.heads + m.kv_heads) keys[m.key(head - m.heads, position, d + k)] = pair[k];
      else values[m.value(head - m.heads - m.kv_heads, position, d + k)] = pair[k];
    }
  }
}

// Attention of one token and head over all positions up to its own, 128 at a time. The positions
// alone fix the order of the sums. Blocks: heads x tokens, of attention_block threads.
template <class = void>
__global__ void attend(const step* s, shape m, const float* queries, const float* keys,
                       const float* values, float* attended) {
  const unsigned head = blockIdx.x, t = blockIdx.y, kv_head = head / (m.heads / m.kv_heads),
                 i = threadIdx.x;
  if (t >= s->count) return;
  __shared__ float query[most_head_dim], weight[attention_block], part[attention_block];
  const unsigned seen = s->position + t + 1, place = t * m.width_padded + head * m.head_dim;
  for (unsigned d = i; d < m.head_dim; d += attention_block) query[d] = queries[place + d];
  // Values: `lanes` threads take neighbouring dimensions (and those 128 further on). `groups` such
  // sets of threads share the positions.
  const unsigned lanes = m.head_dim < 96 ? (m.head_dim + 31) / 32 * 32 : attention_block;
  const unsigned groups = attention_block / lanes, group = i / lanes, lane = i % lanes;
  float most = -INFINITY, total = 0, sum[most_head_dim / attention_block] = {};
  for (unsigned begin = 0; begin < seen; begin += attention_block) {
    const unsigned count = seen - begin < attention_block ? seen - begin : attention_block;
    __syncthreads();  // the query is stored; the weights of the last round have been read
    float score = -INFINITY;
    if (i < count) {
      score = 0;
      for (unsigned d = 0; d < m.head_dim; ++d)
        score = fmaf(keys[m.key(kv_head, begin + i, d)], query[d], score);
    }
    const float before = most;
    most = fmaxf(most, across_block(score, larger()));
    const float shrink = expf(before - most), w = i < count ? expf(score - most) : 0;
    weight[i] = w;
    total = total * shrink + across_block(w, add());  // its barriers also make the weights visible
    for (unsigned k = 0; k * attention_block + lane < m.head_dim && group < groups; ++k) {
      float a = sum[k] * shrink;
      for (unsigned p = group; p < count; p += groups)
        a = fmaf(weight[p], values[m.value(kv_head, begin + p, k * attention_block + lane)], a);
      sum[k] = a;
    }
  }
  for (unsigned k = 0; k * attention_block < m.head_dim; ++k) {
    __syncthreads();
    part[i] = sum[k];
    __syncthreads();
    if (const unsigned d = k * attention_block + i; i < lanes && d < m.head_dim) {
      float a = part[i];
      for (unsigned g = 1; g < groups; ++g) a += part[g * lanes + i];
      attended[place + d] = a / total;
    }
  }
}

// Converts rows for the next product. One block for each token.
template <class E>
__global__ void split(const step* s, const float* rows, unsigned count, unsigned stride, E* columns,
                      float* factors) {
  const unsigned t = blockIdx.x;
  if (t >= s->count) return;
  split_row(rows + std::size_t{t} * stride, count, columns + t * stride,
            columns + (t + tile) * stride, factors + t);
}

// SwiGLU: g u / (1 + e^-g), split into two columns. One block for each token.
template <class E>
__global__ void gate(const step* s, shape m, const float* y, float* scratch, E* columns,
                     float* factors) {
  const unsigned t = blockIdx.x;
  if (t >= s->count) return;
  const result x(y, m.gate_up_padded, t, factors);
  float* row = scratch + std::size_t{t} * m.ffn_padded;
  for (unsigned c = threadIdx.x; c < m.ffn; c += blockDim.x) {
    const float g = x[c];
    row[c] = g * x[m.ffn + c] / (1 + expf(-g));
  }
  split_row(row, m.ffn, columns + t * m.ffn_padded, columns + (t + tile) * m.ffn_padded,
            factors + t);
}

// Writes the logits of position p to row p mod `tile`. Blocks: parts of the vocabulary x tokens.
template <class = void>
__global__ void collect(const step* s, shape m, const float* y, const float* factors,
                        float* logits) {
  const unsigned t = blockIdx.y, v = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= s->count || t < s->skip || v >= m.vocab) return;
  const std::size_t row = (s->position + t) % tile;
  logits[row * m.vocab + v] = logits[(row + tile) * m.vocab + v] =
      result(y, m.vocab_padded, t, factors)[v];
}

}  // namespace cuda::llama_kernels
SPECAGG_END
