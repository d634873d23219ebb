// SPDX-License-Identifier: Apache-2.0
// A row of logits of which filters keep a part (backend/cuda/filter.hpp finds this part), with the
// bits of processed_row (rows/process.hpp).
#pragma once
#include <specagg/backend/cuda/given_row.hpp>

SPECAGG_BEGIN
namespace cuda {

// The facts of a filtered row. greedy and token are not used: at temperature 0 the cutoff keeps the
// token.
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
                          cuda::collective<Whole>& together)
      : row_(row), together_(&together), why_(facts.why) {
    if (why_ != status::ok) return;
    sampled_ = facts.sampled;
    confidence_ = facts.confidence;
    restriction_ = facts.restriction;
  }
  __device__ std::size_t size() const { return row_.size; }
  __device__ cuda::collective<Whole>& walker() const { return *together_; }
  __device__ float operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<float, 1>>(0, 1).v;
  }
  __device__ status why() const { return why_; }
  __device__ const filtered_row& normalise(bool = false) const { return *this; }

  struct block {
    const filtered_row& row;
    std::size_t begin;
    block_cutoff<float> cut;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      const V l = row.row_.template at<V>(begin + k, n);
      return select(cut.dropped(l, k), V(0), row.sampled_(l - V(row.sampled_.max)));
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
  cuda::collective<Whole>* together_;
  status why_;
  softmax_factors<float> sampled_, confidence_;
  cutoff<float> restriction_;
};

}  // namespace cuda
SPECAGG_END
