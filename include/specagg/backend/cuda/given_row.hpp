// SPDX-License-Identifier: Apache-2.0
// Rows in device memory that are no logits: probabilities, and drafted tokens without a row. They
// have the bits and the statuses of dense_row and one_hot_row (rows/distribution.hpp).
#pragma once
#include <specagg/backend/cuda/row.hpp>

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
  // facts.sampled.scale: what the probabilities are multiplied by.
  __device__ device_row(const raw_row<probability, Whole>& row, const row_facts& facts,
                        cuda::collective<Whole>& together)
      : row_(row.stored), together_(&together), why_(facts.why) {
    if (why_ == status::ok) scale_ = facts.sampled.scale;
  }
  __device__ std::size_t size() const { return row_.size; }
  __device__ cuda::collective<Whole>& walker() const { return *together_; }
  __device__ status why() const { return why_; }
  __device__ const device_row& normalise(bool = false) const { return *this; }
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
  cuda::collective<Whole>* together_;
  status why_;
  float scale_ = 0;
};

template <bool Whole>
class device_row<one_hot, Whole> {
 public:
  using value_type = float;
  __device__ device_row(const raw_row<one_hot, Whole>& row, const row_facts&,
                        cuda::collective<Whole>& together)
      : row_(row), together_(&together) {}
  __device__ std::size_t size() const { return row_.size; }
  __device__ token_id token() const { return row_.token; }
  __device__ cuda::collective<Whole>& walker() const { return *together_; }
  __device__ status why() const {
    return row_.token >= 0 && std::size_t(row_.token) < row_.size ? status::ok
                                                                  : status::invalid_row;
  }
  __device__ const device_row& normalise(bool = false) const { return *this; }
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
  cuda::collective<Whole>* together_;
};

// Reads a row of probabilities once. Every thread gets the facts.
template <bool Whole>
__device__ row_facts facts_of(const raw_row<probability, Whole>& row, double /*temperature*/,
                              bool /*confidence*/, collective<Whole>& together) {
  row_facts facts{};
  facts.sampled.scale = 1;
  const device_row<probability, Whole> unscaled(row, facts, together);
  const auto sums = together.template reduce<specagg::detail::add>(unscaled, [](auto x) {
    using V = decltype(x);
    return both(x, select(x < V(0), V(1), V(0)));
  });
  facts.why = specagg::detail::normaliser(sums.first, sums.second > 0, facts.sampled.scale);
  return facts;
}
// Nothing is read.
template <bool Whole>
__device__ row_facts facts_of(const raw_row<one_hot, Whole>&, double, bool, collective<Whole>&) {
  return {};
}

}  // namespace cuda
SPECAGG_END
