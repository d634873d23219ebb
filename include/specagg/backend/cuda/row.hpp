// SPDX-License-Identifier: Apache-2.0
// Rows of logits in device memory, as Rows (rows/distribution.hpp) that all threads of a block read
// together.
#pragma once
#include <specagg/backend/cuda/collective.hpp>

SPECAGG_BEGIN
namespace cuda {

namespace detail {

// Asks for the line of memory at `at`, which must exist. Nothing waits for it.
__device__ inline void prefetch_line(const char* at) {
#if SPECAGG_PTX
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#elif !defined(__NVCC__)
  (void)__ldg(at);  // tests/cuda/emulator looks whether there is such memory
#endif
}

}  // namespace detail

// The result of one read of a row.
struct row_facts {
  softmax_factors<float> sampled, confidence;
  std::size_t token;  // at temperature 0: the token with probability 1
  bool greedy;
  status why;
};

// A row as it is stored in memory. mask: one bit per token, 1 = may be emitted; or null. A Whole
// row has no mask, starts at a multiple of four elements, and has a multiple of four tokens.
template <class S, bool Whole>
struct raw_row {
  const S* logits;
  const std::uint32_t* mask;
  std::size_t size;

  // Tokens v .. v + 3, of which n >= 1 exist; or v alone.
  template <class V>
  __device__ V at(std::size_t v, int n) const {
    constexpr float masked = -std::numeric_limits<float>::infinity();
    float x[V::lanes];
    if (V::lanes == 4 &&
        (Whole ||
         (n == 4 && reinterpret_cast<std::uintptr_t>(logits + v) % (4 * sizeof(S)) == 0))) {
      struct alignas(4 * sizeof(S)) quad {
        S x[4];
      };
      const quad four = *reinterpret_cast<const quad*>(logits + v);  // one load of 16 (or 8) bytes
      for (int i = 0; i < V::lanes; ++i) x[i] = specagg::detail::number(four.x[i]);
    } else {
      for (int i = 0; i < V::lanes; ++i)
        x[i] = i < n ? specagg::detail::number(logits[v + std::size_t(i)]) : masked;
    }
    if (!Whole && mask)
      for (int i = 0; i < V::lanes; ++i) {
        const std::size_t t = v + std::size_t(i);
        if (i < n && !(mask[t / 32] >> t % 32 & 1)) x[i] = masked;
      }
    return V::load(x);
  }
  // Prefetches one sixteenth of a block of 1024: the part of this lane (0..15).
  __device__ void prefetch(std::size_t begin, std::size_t lane) const {
    for (std::size_t line = 128 * lane; line < block_size * sizeof(S); line += 128 * 16)
      if (begin + line / sizeof(S) < size)
        detail::prefetch_line(reinterpret_cast<const char*>(logits + begin) + line);
  }
};

// Reads a row once (at temperature 0 one block of it twice). confidence: its view at temperature 1
// is wanted too. That needs a second read if the temperature is neither 1 nor 0. The leader gets
// the facts.
template <class S, bool Whole>
__device__ row_facts facts_of(const raw_row<S, Whole>& row, double temperature, bool confidence,
                              collective<Whole>& together) {
  row_facts facts{};
  if (!(temperature >= 0) || !(temperature < std::numeric_limits<float>::max())) {
    facts.why = status::invalid_parameter;
    return facts;
  }
  struct opened {
    const raw_row<S, Whole>& row;
    __device__ vec<float, 4> operator()(std::size_t begin, std::size_t k, int n) const {
      return row.template at<vec<float, 4>>(begin + k, n);
    }
    __device__ void prefetch(std::size_t begin, std::size_t lane) const {
      row.prefetch(begin, lane);
    }
  };
  const opened open{row};
  facts.greedy = !softmax_row<float>::usable(temperature);
  const auto sum = together.sum_exponentials(row.size, facts.greedy ? 1 : temperature, open);
  if (!(sum.total > 0)) facts.why = status::invalid_row;
  if (facts.greedy) facts.token = together.first_largest(row.size, open);
  else if (together.leads()) facts.sampled = {sum.max, temperature, sum.total};
  if (!confidence) return facts;
  if (facts.greedy || temperature == 1) {
    if (together.leads()) facts.confidence = {sum.max, 1, sum.total};
  } else {
    together.synchronise();  // the leader has read what the next sum overwrites
    const auto at_temperature_1 = together.sum_exponentials(row.size, 1, open);
    if (!(at_temperature_1.total > 0)) facts.why = status::invalid_row;
    if (together.leads()) facts.confidence = {at_temperature_1.max, 1, at_temperature_1.total};
  }
  return facts;
}

// softmax(logits / temperature) with a mask, normalised: its facts are known. Temperature 0:
// probability 1 on the largest logit, lowest id.
template <class S, bool Whole>
class device_row {
 public:
  using value_type = float;
  __device__ device_row(const raw_row<S, Whole>& row, const row_facts& facts,
                        cuda::collective<Whole>& together)
      : row_(row), together_(&together), why_(facts.why) {
    if (why_ != status::ok) return;
    sampled_ = facts.sampled;
    confidence_ = facts.confidence;
    token_ = facts.token;
    greedy_ = float(facts.greedy);
  }
  __device__ std::size_t size() const { return row_.size; }
  __device__ cuda::collective<Whole>& walker() const { return *together_; }
  __device__ float operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<float, 1>>(0, 1).v;
  }
  __device__ status why() const { return why_; }
  __device__ const device_row& normalise(bool = false) const { return *this; }

  struct block {
    const device_row& row;
    std::size_t begin;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      // Computes both, without a branch, so that several loads are in flight at once.
      const V x = row.sampled_(row.row_.template at<V>(begin + k, n) - V(row.sampled_.max));
      const V one =
          select(V::iota(float(k)) == V(float(double(row.token_) - double(begin))), V(1), V(0));
      return select(V(row.greedy_) == V(1), one, x);
    }
    template <class V>
    __device__ V confidence(std::size_t k, int n) const {
      return row.confidence_(row.row_.template at<V>(begin + k, n) - V(row.confidence_.max));
    }
  };
  __device__ block open(std::size_t begin, std::size_t) const { return {*this, begin}; }

 private:
  raw_row<S, Whole> row_;
  cuda::collective<Whole>* together_;
  status why_;
  softmax_factors<float> sampled_, confidence_;
  std::size_t token_ = 0;
  float greedy_ = 0;
};

}  // namespace cuda
SPECAGG_END
