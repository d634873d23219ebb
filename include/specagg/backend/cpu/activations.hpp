// SPDX-License-Identifier: Apache-2.0
// The activations, which are multiplied with the weights: one row of numbers a token. Float weights
// are multiplied with the numbers themselves, quantised weights with the numbers rounded to 8 bits
// (16 bits if 8 would lose much).
#pragma once
#include <specagg/kernel/simd.hpp>  // before Eigen: otherwise g++ 12 warns about its intrinsics

#include <Eigen/Core>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <specagg/backend/cpu/dots.hpp>
#include <specagg/backend/cpu/tensor.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>

SPECAGG_BEGIN
namespace cpu {

// n rows of activations, one token each. Each row starts 64-byte aligned, and rows are
// `outerStride()` floats apart. The kernels read rows up to padded(cols); the owner must keep zeros
// after cols.
using activations = Eigen::Map<Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                               Eigen::Unaligned, Eigen::OuterStride<>>;

// Memory for activations, initially zero. The system gives a page when it is first written, so a
// long context costs memory only when it is used. (Eigen's own memory is not used: its allocator
// differs between instruction sets.)
class activation_buffer {
 public:
  activation_buffer(std::size_t rows, std::size_t cols)
      : cols_(cols), memory_(std::calloc(rows * padded(cols) + 16, sizeof(float)), std::free) {
    if (!memory_) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = static_cast<float*>(memory_.get()) + (64 - address % 64) % 64 / sizeof(float);
  }
  // The first `rows` rows, as the kernels take them.
  activations top(std::size_t rows) {
    return {data(), Eigen::Index(rows), Eigen::Index(cols_),
            Eigen::OuterStride<>(Eigen::Index(padded(cols_)))};
  }
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  std::size_t cols_;
  std::unique_ptr<void, void (*)(void*)> memory_;
  float* data_;
};

// to[i] = from[i], which may be the same memory. Every NaN becomes the same NaN: which operand's
// NaN a sum returns, and the sign of a new NaN, depend on the machine and the compiler.
inline void copy_with_one_nan(const float* from, std::size_t n, float* to) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto x = lanes::load(from + i);
    select(x == x, x, lanes(nan)).store(to + i);
  }
  for (; i < n; ++i) to[i] = from[i] == from[i] ? from[i] : nan;
}

// Activations of n tokens as whole numbers of 8 bits, in blocks of 32 columns: block b of token t
// is scale[b n + t] k, where the numbers k, -127..127, are numbers[(b n + t) 32 ...].
struct rounded_part {
  const std::int8_t* numbers = nullptr;  // [blocks][n][32]
  const float* scale = nullptr;          // [blocks][n]
  // [blocks][n]: 8 and 128 times the sum of the block's numbers, whole numbers, and scale * sum
  const float *sum_8 = nullptr, *sum_128 = nullptr, *scaled_sum = nullptr;
};
// x rounded: the first part has every block. A few blocks have one very large number among small
// ones, which would be rounded away; the second part has the rounding errors of the first part for
// such blocks. There the tokens with a second part of a block stand next to each other: the i-th of
// block b is at b n + i, and is token second_tokens[b n + i], ascending.
struct rounded_activations {
  std::size_t tokens = 0;  // n
  rounded_part first, second;
  const std::uint32_t* second_tokens = nullptr;
  // block b is in the second part of `tokens` tokens, at least one
  struct shared_block {
    std::uint32_t b, tokens;
  };
  std::span<const shared_block> second_blocks;  // ascending
};

namespace detail {

// Rounds 32 numbers to nearest, ties to even: |x - scale k| <= (1/2 + 2^-15) scale, scale = largest
// / 127. `largest` is the largest |x|, above 2^-100. Writes the rounding errors to a and b.
SPECAGG_LANE void round_lanes(lanes& a, lanes& b, float largest, std::int8_t* numbers, float& scale,
                              float& sum) {
  scale = largest / 127;
  // adding 1.5 2^23 rounds to a whole number
  const lanes inverse = 127 / largest, rounder = 0x1.8p23f;
  const lanes j = uncontracted(a * inverse) + rounder - rounder,
              k = uncontracted(b * inverse) + rounder - rounder;
  float whole[quantised_block];
  j.store(whole);
  k.store(whole + 16);
  store_bytes(whole, numbers);
  store_bytes(whole + 16, numbers + 16);
  sum = reduce_add(j + k);
  a = fma(-j, lanes(scale), a);
  b = fma(-k, lanes(scale), b);
}

// Rounds one block. True if it has a second part: its largest number is more than 12 times its
// mean. A block without a number above 2^-100 becomes zeros. If the sum of all |x| is not finite,
// the scale is NaN, and so is every product.
[[gnu::flatten]] inline bool round_block(const float* x, std::int8_t* first, float& scale,
                                         float& sum, std::int8_t* second, float& second_scale,
                                         float& second_sum) {
  lanes a = lanes::load(x), b = lanes::load(x + 16);
  const auto largest = [&] { return reduce_max(max(abs(a), abs(b))); };
  // 0, or NaN
  const float most = largest(), all = reduce_add(abs(a) + abs(b)), nothing = all - all;
  if (nothing != 0 || !(most > 0x1p-100f)) {
    std::fill_n(first, quantised_block, std::int8_t{0});
    scale = nothing;
    sum = 0;
    return false;
  }
  round_lanes(a, b, most, first, scale, sum);
  if (!(most > all * (12.f / quantised_block))) return false;
  const float lost = largest();
  if (!(lost > 0x1p-100f)) return false;
  round_lanes(a, b, lost, second, second_scale, second_sum);
  return true;
}

}  // namespace detail

// Memory for rounded activations: up to `tokens` rows of up to `cols` columns.
class rounding_buffer {
 public:
  rounding_buffer(std::size_t tokens, std::size_t cols)
      : second_tokens_(tokens * cols / quantised_block),
        second_counts_(cols / quantised_block),
        second_blocks_(cols / quantised_block) {
    for (auto& p : parts_) {
      p.numbers.resize(tokens * cols);
      p.scale.resize(second_tokens_.size());
      p.sum_8.resize(second_tokens_.size());
      p.sum_128.resize(second_tokens_.size());
      p.scaled_sum.resize(second_tokens_.size());
    }
  }

  // Rounds the blocks [begin, end) of all rows of x. Different blocks may be rounded by different
  // threads.
  void round(const activations& x, std::size_t begin, std::size_t end) {
    const auto n = std::size_t(x.rows()), stride = std::size_t(x.outerStride());
    auto& [first, second] = parts_;
    for (auto b = begin; b < end; ++b) {
      auto j = b * n;
      for (std::size_t t = 0; t < n; ++t) {
        const auto i = b * n + t;
        float sum, second_sum;
        const bool has_second = detail::round_block(
            x.data() + t * stride + b * quantised_block, first.numbers.data() + i * quantised_block,
            first.scale[i], sum, second.numbers.data() + j * quantised_block, second.scale[j],
            second_sum);
        first.set_sums(i, sum);
        if (!has_second) continue;
        second.set_sums(j, second_sum);
        second_tokens_[j++] = std::uint32_t(t);
      }
      second_counts_[b] = std::uint32_t(j - b * n);
    }
  }
  // The rounded activations of n rows of `blocks` blocks, once round() has rounded all of them.
  // Valid until the next round().
  rounded_activations rows(std::size_t n, std::size_t blocks) {
    std::size_t count = 0;
    for (std::uint32_t b = 0; b < blocks; ++b)
      if (second_counts_[b] > 0) second_blocks_[count++] = {b, second_counts_[b]};
    const auto view = [](const part& p) {
      return rounded_part{p.numbers.data(), p.scale.data(), p.sum_8.data(), p.sum_128.data(),
                          p.scaled_sum.data()};
    };
    return {n, view(parts_[0]), view(parts_[1]), second_tokens_.data(),
            std::span(second_blocks_).first(count)};
  }

 private:
  struct part {
    std::vector<std::int8_t> numbers;
    std::vector<float> scale, sum_8, sum_128, scaled_sum;
    void set_sums(std::size_t i, float sum) {
      sum_8[i] = 8 * sum;
      sum_128[i] = 128 * sum;
      scaled_sum[i] = scale[i] * sum;
    }
  };
  part parts_[2];
  std::vector<std::uint32_t> second_tokens_, second_counts_;
  std::vector<rounded_activations::shared_block> second_blocks_;
};

}  // namespace cpu
SPECAGG_END
