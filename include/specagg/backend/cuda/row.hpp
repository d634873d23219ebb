// SPDX-License-Identifier: Apache-2.0
// Rows of logits in device memory, as Rows (rows/row.hpp) that all threads of a block read
// together.
#pragma once
#include <specagg/backend/cuda/collective.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// The facts of a row after it was read.
struct row_facts {
  softmax_factors<float> sampled, confidence;
  std::size_t token;  // at temperature 0: the token with probability 1
  // the sums of the row's blocks at its temperature, that of block b at [b]; null if these are not
  // in device memory, or relative to the largest logit
  const block_sum<float>* blocks;
  bool greedy;
  status why;
};

// Four stored logits, which one load reads. They are stored as 32-bit words: nvcc would give each
// 16-bit value its own register.
template <class S>
struct alignas(4 * sizeof(S)) [[gnu::may_alias]] quad {
  std::uint32_t words[sizeof(S)];
  __device__ S operator[](int i) const {
    if constexpr (sizeof(S) == 4) return bit_cast<S>(words[i]);
    else return S{std::uint16_t(words[i / 2] >> i % 2 * 16)};
  }
  __device__ void set(int i, S x) {
    if constexpr (sizeof(S) == 4) words[i] = bit_cast<std::uint32_t>(x);
    else
      words[i / 2] = (words[i / 2] & 0xffff0000u >> i % 2 * 16) | std::uint32_t(x.bits)
                                                                      << i % 2 * 16;
  }
  // A copy of the words whose values the compiler does not know. Otherwise the compiler would keep
  // the numbers that it made of the words before in registers, two for each word.
  __device__ quad again() const {
    quad four = *this;
#if SPECAGG_PTX
    if constexpr (sizeof(S) == 2)
      for (std::uint32_t& word : four.words) asm volatile("" : "+r"(word));
#endif
    return four;
  }
  __device__ static S masked_logit() {
    if constexpr (std::is_same_v<S, float>) return -std::numeric_limits<float>::infinity();
    else return S{std::uint16_t(std::is_same_v<S, f16> ? 0xfc00u : 0xff80u)};
  }
  // The same logits, masked where bit i of `allowed` is 0.
  __device__ quad of(std::uint32_t allowed) const {
    quad four = *this;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!(allowed >> i & 1)) four.set(i, masked_logit());
    return four;
  }
  template <class V>
  __device__ V as() const {
    float y[V::lanes];
    for (int i = 0; i < V::lanes; ++i) y[i] = number((*this)[i]);
    return V::load(y);
  }
};

// A row as it is stored in memory. mask: one bit per token, 1 = may be emitted; or null. A Whole
// row has no mask, starts at a multiple of four elements, and has a multiple of four tokens.
template <class S, bool Whole>
struct raw_row {
  using quad = detail::quad<S>;
  const S* logits;
  const std::uint32_t* mask;
  std::size_t size;

  // Tokens v .. v + 3, of which n exist (the others: -inf); v is a multiple of four.
  __device__ quad four_at(std::size_t v, int n) const {
    if (Whole) {
      if (n > 0) return *reinterpret_cast<const quad*>(logits + v);
    } else if (n == 4 && reinterpret_cast<std::uintptr_t>(logits + v) % (4 * sizeof(S)) == 0) {
      return without_masked(*reinterpret_cast<const quad*>(logits + v), v, n);
    }
    quad four{};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      four.set(i, i < n ? logits[v + std::size_t(i)] : quad::masked_logit());
    return Whole ? four : without_masked(four, v, n);
  }
  // fours[i] = the four tokens from v + step i on. Those below v + left exist. All are loaded at
  // once: tests come before the first load or after the last one.
  template <unsigned N>
  __device__ void load(quad (&fours)[N], std::size_t v, unsigned step, unsigned left) const {
    const bool all = left >= step * (N - 1) + 4;
    if (all && (Whole || reinterpret_cast<std::uintptr_t>(logits + v) % sizeof(quad) == 0)) {
#pragma unroll
      for (unsigned i = 0; i < N; ++i)
        fours[i] = *reinterpret_cast<const quad*>(logits + v + step * i);
    } else {
#pragma unroll
      for (unsigned i = 0; i < N; ++i) {
        if constexpr (Whole) {
          fours[i] = four_at(v + step * i, step * i < left ? 4 : 0);
        } else {
#pragma unroll
          for (unsigned j = 0; j < 4; ++j)
            fours[i].set(int(j),
                         step * i + j < left ? logits[v + step * i + j] : quad::masked_logit());
        }
      }
    }
    if constexpr (!Whole) {
      if (!mask) return;
      std::uint32_t words[N];
#pragma unroll
      for (unsigned i = 0; i < N; ++i) words[i] = step * i < left ? mask[(v + step * i) / 32] : 0;
#pragma unroll
      for (unsigned i = 0; i < N; ++i) fours[i] = fours[i].of(words[i] >> (v + step * i) % 32);
    }
  }
  // The numbers of four_at(v, n) if V has four lanes; else the number of token v.
  template <class V>
  __device__ V at(std::size_t v, int n) const {
    if constexpr (V::lanes == 4) return four_at(v, n).template as<V>();
    else return V(kept(v) ? number(logits[v]) : masked);
  }

 private:
  static constexpr float masked = -std::numeric_limits<float>::infinity();
  __device__ bool kept(std::size_t v) const {
    return Whole || !mask || (mask[v / 32] >> v % 32 & 1);
  }
  __device__ quad without_masked(quad four, std::size_t v, int n) const {
    return !mask || n == 0 ? four : four.of(mask[v / 32] >> v % 32);
  }
};

// The larger of each of two pairs of 16-bit logits, in one instruction. As fmaxf, it ignores NaN.
template <class S>
__device__ std::uint32_t larger_of_pairs(std::uint32_t a, std::uint32_t b) {
#if SPECAGG_PTX
  if constexpr (std::is_same_v<S, f16>) asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  else asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
#else
  const auto larger = [&](int shift) {
    const S x{std::uint16_t(a >> shift)}, y{std::uint16_t(b >> shift)};
    const float most = fmaxf(number(x), number(y));
    return std::uint32_t(most == number(x) ? x.bits : y.bits) << shift;
  };
  return larger(0) | larger(16);
#endif
}

// The sum of a block, of whose logits a thread has four(0) .. four(15). largest: of the block.
// per_scale: 1 / scale. Unroll: so many of the fours at once.
template <int Unroll>
__device__ double sum_of_fours(float largest, float scale, float per_scale, const auto& four,
                               unsigned among) {
  using V = vec<float, 4>;
  using weight = weight_in_unit<float>;
  using unit = unit_of_sum<float>;
  // nothing is finite: NaN must still be found
  const bool none = largest == -std::numeric_limits<float>::infinity();
  const weight w(scale, per_scale, none ? unit() : unit::of(weight::exponent(largest, scale)));
  V sum(0);
#pragma unroll Unroll
  for (int i = 0; i < 16; ++i) {
    const auto x = w.product(four(i));
    sum = fma(x.a, x.b, sum);
  }
  return across_group<add>(sum, among);
}

// A block of a row, 64 logits in each of 16 threads. Thread t has four of every 64: lanes 4 (t mod
// 4) .. + 3 of accumulator t / 4.
template <class S>
class block_in_registers {
 public:
  template <bool Whole>
  __device__ block_in_registers(const raw_row<S, Whole>& row, std::size_t b) {
    const unsigned first = unsigned(b) * unsigned(block_size) + 4 * (threadIdx.x % 16),
                   size = unsigned(row.size);
    row.load(l_, first, 64, first < size ? size - first : 0);
  }
  // `among`, here and below: the threads of the warp that call it together. note(the largest logit
  // of this thread).
  template <class Note>
  __device__ float largest(unsigned among, const Note& note) const {
    if constexpr (sizeof(S) == 2) {
      constexpr std::uint32_t none = std::is_same_v<S, f16> ? 0xfc00fc00u : 0xff80ff80u;
      std::uint32_t top[2] = {none, none};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 2; ++j) top[j] = larger_of_pairs<S>(top[j], l_[i].words[j]);
      std::uint32_t pair = larger_of_pairs<S>(top[0], top[1]);
      const auto larger = [](std::uint32_t two) {
        return fmaxf(number(S{std::uint16_t(two)}), number(S{std::uint16_t(two >> 16)}));
      };
      note([&] { return larger(pair); });
#pragma unroll
      for (int d = 8; d > 0; d /= 2)
        pair = larger_of_pairs<S>(pair, __shfl_xor_sync(among, pair, d));
      return larger(pair);
    } else {
      constexpr float none = -std::numeric_limits<float>::infinity();
      float top[4] = {none, none, none, none};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) top[j] = fmaxf(top[j], number(l_[i][j]));
      float most = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
      note([&] { return most; });
#pragma unroll
      for (int d = 8; d > 0; d /= 2) most = fmaxf(most, other(most, d, among));
      return most;
    }
  }
  __device__ float largest(unsigned among = own_group()) const {
    return largest(among, [](const auto&) {});
  }
  // per_scale: 1 / scale.
  __device__ block_sum<float> sum(float largest, float scale, float per_scale,
                                  unsigned among) const {
    const auto four = [&](int i) { return l_[i].again().template as<vec<float, 4>>(); };
    return {largest, sum_of_fours<16>(largest, scale, per_scale, four, among)};
  }
  // Relative to e^(shift / temperature).
  __device__ double sum_relative(float largest, float scale, float shift) const {
    using V = vec<float, 4>;
    const auto four = [&](int i) { return l_[i].again().template as<V>() - V(shift); };
    return sum_of_fours<16>(largest - shift, scale, 1 / scale, four, own_group());
  }

 private:
  quad<S> l_[16];
};

// Not inlined: two divisions, and several draws of a kernel.
SPECAGG_OUTLINE __device__ weight_in_row<float> weight_of_row(float max, float scale) {
  return {max, scale};
}

// softmax(logits / temperature) with a mask, normalised: its facts are known, in memory that the
// threads share. Temperature 0: probability 1 on the largest logit, lowest id.
template <class S, bool Whole, class Together = collective<Whole>>
class device_row {
 public:
  using value_type = float;
  __device__ device_row(const raw_row<S, Whole>& row, const row_facts& facts, Together& together)
      : row_(row), together_(&together), facts_(&facts) {}
  __device__ std::size_t size() const { return row_.size; }
  __device__ Together& walker() const { return *together_; }
  // f(the row's logits).
  __device__ void each_row(const auto& f) const { f(row_); }
  __device__ float operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<float, 1>>(0, 1).v;
  }
  __device__ status why() const { return facts().why; }
  __device__ bool greedy() const { return facts().greedy && why() != status::invalid_parameter; }
  __device__ auto weight() const {
    return weight_of_row(facts().sampled.max, facts().sampled.scale);
  }
  // Sets `sum` to the sum of the weights in block b; or returns false, where that of the first
  // kernel is in another unit.
  __device__ bool sum_of_block(unsigned b, double& sum) const {
    if (facts().greedy) {
      sum = b == unsigned(facts().token) / unsigned(block_size);
      return true;
    }
    if (!facts().blocks) return false;
    const block_sum<float> x = facts().blocks[b];
    const bool counts = x.max > -std::numeric_limits<float>::infinity();
    sum = counts ? x.sum : 0;
    const auto n = [this](float l) {
      return weight_in_unit<float>::exponent(l, facts().sampled.scale);
    };
    return !counts || unit_of_sum<float>::of(n(facts().sampled.max)).reached_by(n(x.max));
  }

  struct block {
    raw_row<S, Whole> row;
    const row_facts& facts;
    std::size_t begin;
    template <class V>
    __device__ V operator()(std::size_t k, int n) const {
      return weight<V>(k, n, [this](V l) { return facts.sampled(l - V(facts.sampled.max)); });
    }
    template <class V, class F>
    __device__ V weight(std::size_t k, int n, const F& f) const {
      // Computes both, without a branch, so that several loads are in flight at once.
      const V x = f(row.template at<V>(begin + k, n));
      const V one =
          select(V::iota(float(k)) == V(float(double(facts.token) - double(begin))), V(1), V(0));
      return select(V(float(facts.greedy)) == V(1), one, x);
    }
    template <class V>
    __device__ V confidence(std::size_t k, int n) const {
      return facts.confidence(row.template at<V>(begin + k, n) - V(facts.confidence.max));
    }
  };
  __device__ block open(std::size_t begin, std::size_t) const { return {row_, facts(), begin}; }

 private:
  __device__ const row_facts& facts() const { return *facts_; }
  raw_row<S, Whole> row_;
  Together* together_;
  const row_facts* facts_;
};

}  // namespace cuda::detail
SPECAGG_END
