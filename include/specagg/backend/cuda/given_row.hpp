// SPDX-License-Identifier: Apache-2.0
// Rows in device memory that are not logits: probabilities, and drafted tokens without a row. They
// have the bits and the statuses of dense_row and one_hot_row (rows/distribution.hpp).
#pragma once
#include <specagg/backend/cuda/row_sums.hpp>

SPECAGG_BEGIN
namespace cuda {

// The element of a row of probabilities: a float in memory. The row is scaled to sum 1, and the
// temperature is not used: it was sampled from as it is.
struct probability {
  float value;
};
// In place of a draft's element: there are no rows. A token was drafted with probability 1
// (n-grams, greedy drafts).
struct one_hot {};

namespace detail {

template <bool Whole>
struct raw_row<probability, Whole> {
  raw_row<float, Whole> stored;  // without a mask
};
template <bool Whole>
struct raw_row<one_hot, Whole> {
  token_id token;  // outside the vocabulary: the row is invalid
  std::size_t size;
};

template <bool Whole>
class device_row<probability, Whole> {
 public:
  using value_type = float;
  // facts.sampled.scale: the factor of the probabilities.
  __device__ device_row(const raw_row<probability, Whole>& row, const row_facts& facts,
                        collective<Whole>& together)
      : row_(row.stored), together_(&together), why_(facts.why) {
    if (why_ == status::ok) scale_ = facts.sampled.scale;
  }
  __device__ std::size_t size() const { return row_.size; }
  __device__ collective<Whole>& walker() const { return *together_; }
  __device__ status why() const { return why_; }
  __device__ float operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<float, 1>>(0, 1).v;
  }

  struct block {
    const device_row& row;
    std::size_t begin;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      return uncontracted(row.row_.template at<V>(begin + k, n) * V(row.scale_));
    }
    template <class V>
    __device__ V confidence(std::size_t k, int n) const {
      return operator()<V>(k, n);
    }
  };
  __device__ block open(std::size_t begin, std::size_t) const { return {*this, begin}; }

 private:
  raw_row<float, Whole> row_;
  collective<Whole>* together_;
  status why_;
  float scale_ = 0;
};

template <bool Whole>
class device_row<one_hot, Whole> {
 public:
  using value_type = float;
  __device__ device_row(const raw_row<one_hot, Whole>& row, const row_facts&,
                        collective<Whole>& together)
      : row_(row), together_(&together) {}
  __device__ std::size_t size() const { return row_.size; }
  __device__ token_id token() const { return row_.token; }
  __device__ collective<Whole>& walker() const { return *together_; }
  __device__ status why() const {
    return row_.token >= 0 && std::size_t(row_.token) < row_.size ? status::ok
                                                                  : status::invalid_row;
  }
  __device__ float operator[](std::size_t v) const { return v == std::size_t(row_.token); }

  struct block {
    float at;  // the token in this block; a whole number
    template <class V>
    __device__ V operator()(std::size_t k, int) const {
      return select(V::iota(float(k)) == V(at), V(1), V(0));
    }
    template <class V>
    __device__ V confidence(std::size_t k, int n) const {
      return operator()<V>(k, n);
    }
  };
  __device__ block open(std::size_t begin, std::size_t) const {
    return {float(double(row_.token) - double(begin))};
  }

 private:
  raw_row<one_hot, Whole> row_;
  collective<Whole>* together_;
};

// sum_block_of() and facts_of(), as for a row of logits. A block of probabilities has their sum,
// and in place of the largest logit whether a probability is negative (1 or 0).
template <bool Whole>
__device__ void sum_block_of(const raw_row<probability, Whole>& row, unsigned b, float, float,
                             bool /*confidence*/, block_sum<float>* out, auto /*maxima*/) {
  using V = vec<float, 4>;
  using R = reducer<add, V>;
  const std::size_t begin = b * block_size,
                    left = begin < row.stored.size ? row.stored.size - begin : 0,
                    count = left < block_size ? left : block_size;
  V sum(0), lowest(0);
#pragma unroll 4
  for (std::size_t k = 4 * (threadIdx.x % 16); k < count; k += 64) {
    const int n = lanes_at<Whole>(count, k);
    const V x = R::masked(row.stored.template at<V>(begin + k, n), n);
    sum = sum + x;
    lowest = min(x, lowest);
  }
  const float most = float(across_group<larger>(-lowest, whole_warp));
  const double total = across_group<add>(sum, whole_warp);
  if (count > 0 && threadIdx.x % 16 == 0) out[b] = {most > 0 ? 1.f : 0.f, total};
}
template <bool Whole>
__device__ row_facts facts_of(const raw_row<probability, Whole>& row, double /*temperature*/,
                              bool /*confidence*/, const block_sum<float>* blocks) {
  both<double> sums{0, 0};
  for (std::size_t b = threadIdx.x % 32; b < block_count(row.stored.size); b += 32)
    sums = {sums.first + blocks[b].sum, sums.second + double(blocks[b].max)};
  sums = across_warp<add>(sums);
  row_facts facts{};
  facts.why = normaliser(sums.first, sums.second > 0, facts.sampled.scale);
  return facts;
}
// For a token without a row, which reads nothing.
template <bool Whole>
__device__ void sum_block_of(const raw_row<one_hot, Whole>&, unsigned, float, float, bool,
                             block_sum<float>*, auto) {}
template <bool Whole>
__device__ row_facts facts_of(const raw_row<one_hot, Whole>&, double, bool,
                              const block_sum<float>*) {
  return {};
}

}  // namespace detail
}  // namespace cuda
SPECAGG_END
