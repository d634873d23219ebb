// SPDX-License-Identifier: Apache-2.0
// A row of logits of which filters keep a part (backend/cuda/filter.hpp finds this part), with the
// bits of processed_row (rows/process.hpp).
#pragma once
#include <specagg/backend/cuda/given_row.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// The facts of a filtered row. token is not used: at temperature 0 the cutoff keeps the token.
struct filtered_facts : row_facts {
  cutoff<float> restriction;
};

// softmax(logits / temperature) of the tokens that the filters keep, normalised: its facts are
// known.
template <class S, bool Whole>
class filtered_row {
 public:
  using value_type = float;
  __device__ filtered_row(const raw_row<S, Whole>& row, const filtered_facts& facts,
                          collective<Whole>& together)
      : row_(row),
        together_(&together),
        why_(facts.why),
        greedy_(facts.greedy && why_ != status::invalid_parameter) {
    if (why_ != status::ok) return;
    sampled_ = facts.sampled;
    confidence_ = facts.confidence;
    restriction_ = facts.restriction;
  }
  __device__ std::size_t size() const { return row_.size; }
  __device__ collective<Whole>& walker() const { return *together_; }
  __device__ float operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<float, 1>>(0, 1).v;
  }
  __device__ status why() const { return why_; }
  __device__ bool greedy() const { return greedy_; }
  __device__ auto weight() const { return weight_in_row<float>(sampled_.max, sampled_.scale); }

  struct block {
    const filtered_row& row;
    std::size_t begin;
    block_cutoff<float> cut;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      return weight<V>(k, n, [this](V l) { return row.sampled_(l - V(row.sampled_.max)); });
    }
    template <class V, class F>
    __device__ V weight(std::size_t k, int n, const F& f) const {
      const V l = row.row_.template at<V>(begin + k, n);
      return select(cut.dropped(l, k), V(0), f(l));
    }
    template <class V>
    __device__ V confidence(std::size_t k, int n) const {
      return row.confidence_(row.row_.template at<V>(begin + k, n) - V(row.confidence_.max));
    }
  };
  __device__ block open(std::size_t begin, std::size_t count) const {
    return {*this, begin, block_cutoff<float>(begin, count, restriction_)};
  }

 private:
  raw_row<S, Whole> row_;
  collective<Whole>* together_;
  status why_;
  softmax_factors<float> sampled_, confidence_;
  cutoff<float> restriction_;
  bool greedy_;
};

}  // namespace cuda::detail
SPECAGG_END
