// SPDX-License-Identifier: Apache-2.0
// The sums of the blocks of rows in device memory, which the first kernel writes, and the facts of
// a row from these sums.
#pragma once
#include <specagg/backend/cuda/row.hpp>

SPECAGG_BEGIN
namespace cuda::detail {

// block_count() in 32 bits.
__device__ inline unsigned blocks_in(std::size_t size) {
  return (unsigned(size) + unsigned(block_size) - 1) / unsigned(block_size);
}
// a / b from an approximation y of 1 / b whose relative error is at most 2^-6. These are the steps
// that nvcc takes for a / b. It adds a hundred instructions for numbers and quotients that are
// subnormal, infinite or NaN; here they are not.
__device__ inline double quotient_of(double a, double b, double y) {
  using D = vec<double, 1>;
  D x(y);
  const D minus_b(-b), e = fma(x, minus_b, D(1));
  x = fma(x, fma(e, e, e), x);
  x = fma(x, fma(x, minus_b, D(1)), x);
  const D q = uncontracted(D(a) * x);
  return fma(x, fma(q, minus_b, D(a)), q).v;
}
// exp_scale<float>::of_temperature(temperature).high, of a usable temperature.
__device__ inline float scale_at(double temperature) {
#if SPECAGG_PTX
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(temperature));
  y = __hiloint2double(__double2hiint(y), 1);
  return float(quotient_of(coefficients<double>::log2e, temperature, y));
#else
  return exp_scale<float>::of_temperature(temperature).high;
#endif
}
// How a row is summed: at its temperature, or at 1 if that is too low (greedy). per_sampled: 1 /
// sampled, with a relative error of at most epsilon, as a product (weight_in_unit).
struct row_scales {
  bool valid, greedy;
  float sampled, confidence, per_sampled;
  __device__ explicit row_scales(double temperature)
      : valid(temperature >= 0 && temperature < least_refused_temperature<float>),
        greedy(!softmax_row<float>::usable(temperature)),
        sampled(scale_at(greedy ? 1 : temperature)),
        confidence(exp_scale<float>::of_temperature(1).high),
        per_sampled(float((greedy ? 1 : temperature) * 0x1.62e42fefa39efp-1 /* ln 2 */)) {}
};

// Adds up the blocks of a row (sum_of_units of kernel/exponentials.hpp) with the threads of a warp.
// The largest logit is known before.
class warp_sum {
 public:
  using unit = unit_of_sum<float>;
  __device__ warp_sum(float largest, float scale, float shift)
      : max_(largest), scale_(scale), shift_(shift), highest_(of(largest)) {}
  // Block b with b mod 32 = the number of this thread; in ascending order. Only the two highest
  // units count.
  __device__ void add(const block_sum<float>& x) {
    const float n = weight_in_unit<float>::exponent(x.max - shift_, scale_);
    const bool highest = highest_.reached_by(n),
               below = !highest && unit{highest_.index - 1}.reached_by(n);
    sums_.first += highest ? x.sum : 0;
    sums_.second += below ? x.sum : 0;
    invalid_ |= !(x.sum < std::numeric_limits<double>::infinity());
  }
  // Every thread gets it.
  __device__ softmax_sum<float> total() const {
    const auto all = across_warp<detail::add>(sums_);
    const double total =
        total_of_units<float>(all.first, all.second, highest_, max_ - shift_, scale_);
    return {max_, __any_sync(~0u, invalid_) ? std::numeric_limits<double>::quiet_NaN() : total};
  }

 private:
  __device__ unit of(float x) const {
    return unit::of(weight_in_unit<float>::exponent(x - shift_, scale_));
  }
  float max_, scale_, shift_;
  unit highest_;
  both<double> sums_{0, 0};  // in the highest unit, and in the one below
  bool invalid_ = false;     // also of a block that does not count
};

// The blocks of a row whose number mod 32 is the number of this thread in its warp. All are loaded
// at once.
class blocks_of_lane {
 public:
  // count: at least 1.
  __device__ blocks_of_lane(std::size_t count, const auto& blocks) {
    const unsigned last = unsigned(count) - 1;
#pragma unroll
    for (unsigned i = 0; i < most; ++i) {
      const unsigned b = threadIdx.x % 32 + 32 * i;
      x_[i] = blocks[b < last ? b : last];  // no test before a load: all are in flight
      if (b > last) x_[i].max = -std::numeric_limits<float>::infinity();  // adds nothing
    }
  }
  // The largest logit of the row, and the row's sum.
  __device__ float largest() const {
    float largest = x_[0].max;
#pragma unroll
    for (unsigned i = 1; i < most; ++i) largest = x_[i].max > largest ? x_[i].max : largest;
    return largest_of_warp(largest);
  }
  __device__ softmax_sum<float> sum(float largest, float scale, float shift) const {
    warp_sum sum(largest, scale, shift);
    add_to(sum);
    return sum.total();
  }
  __device__ void add_to(warp_sum& sum) const {
#pragma unroll
    for (unsigned i = 0; i < most; ++i) sum.add(x_[i]);
  }

 private:
  static constexpr unsigned most = most_blocks / 32;
  block_sum<float> x_[most];
};
// The sum of a row from the sums of its blocks. A row beyond all units is read again. Not inlined:
// some rows have two sums.
template <class S, bool Whole>
SPECAGG_OUTLINE __device__ softmax_sum<float> sum_of_blocks(raw_row<S, Whole> row,
                                                            const block_sum<float>* blocks,
                                                            float scale) {
#if SPECAGG_PTX
  __builtin_assume(__isGlobal(row.logits));
  __builtin_assume(__isGlobal(blocks));
#endif
  const unsigned count = unsigned(block_count(row.size)), lane = threadIdx.x % 32;
  const blocks_of_lane own(count, blocks);
  const float largest = own.largest();
  const bool again = needs_shift(largest, scale);
  const float shift = again ? largest : 0;
  warp_sum sum(largest, scale, shift);
  if (!again) own.add_to(sum);
#pragma unroll 1
  for (unsigned first = 0; again && first < count; first += 2) {  // 16 threads for each of two
    const unsigned b = first + lane / 16, begin = b * unsigned(block_size) + 4 * (lane % 16);
    const auto four = [&](int i) {
      const std::size_t v = begin + 64 * unsigned(i);
      return row.four_at(v, lanes_at<Whole>(row.size, v)).template as<vec<float, 4>>() -
             vec<float, 4>(shift);
    };
    const float top = b < count ? blocks[b].max : shift;
    const double x = sum_of_fours<1>(top - shift, scale, 1 / scale, four, whole_warp);
    // the two blocks' sums are added by the threads whose number mod 32 they have
    const int from = int(16 * (lane % 2));
    const block_sum<float> its{__shfl_sync(~0u, top, from), __shfl_sync(~0u, x, from)};
    if (first + lane % 2 < count && (first + lane % 2) % 32 == lane) sum.add(its);
  }
  return sum.total();
}

// Which of 32 logits are at least `lowest` > -inf. Bit 4 a + b: that of token first + step a + b.
// All are loaded at once. Not inlined: 150 instructions.
template <class S, bool Whole>
SPECAGG_OUTLINE __device__ unsigned reaching(raw_row<S, Whole> row, unsigned first, unsigned step,
                                             float lowest) {
#if SPECAGG_PTX
  __builtin_assume(__isGlobal(row.logits));
#endif
  const unsigned size = unsigned(row.size), left = first < size ? size - first : 0;
  quad<S> fours[8];
  row.load(fours, first, step, left);
  unsigned reach = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) reach |= unsigned(number(fours[i / 4][i % 4]) >= lowest) << i;
  return reach;
}
// The first token with the logit `largest`, the largest of the row. Only the first block with this
// logit is read.
template <class S, bool Whole>
__device__ std::size_t first_largest(raw_row<S, Whole> row, const block_sum<float>* blocks,
                                     float largest) {
#if SPECAGG_PTX
  __builtin_assume(__isGlobal(blocks));
#endif
  const unsigned count = unsigned(block_count(row.size)), lane = threadIdx.x % 32;
  unsigned b = lane;
#pragma unroll 1
  while (b < count && blocks[b].max != largest) b += 32;
  const unsigned begin = least_of_warp(b) * unsigned(block_size) + 4 * lane,
                 reach = reaching(row, begin, 128, largest), i = unsigned(__ffs(int(reach))) - 1;
  return least_of_warp(reach ? begin + 128 * (i / 4) + i % 4 : unsigned(row.size) - 1);
}

// Sums block b of a row, with 16 threads: out[b] at its temperature, and out[block_count(size) + b]
// at 1, if that is another temperature and `confidence` asks for it. scale: of its temperature.
// Both halves of a warp call it, also where the second has no block. maxima: null, or gets the
// largest logit of each of the row's parts, of which a block has 16, one for each thread.
template <class S, bool Whole, class Maxima>
__device__ void sum_block_of(raw_row<S, Whole> row, unsigned b, float scale, float per_scale,
                             bool confidence, block_sum<float>* out, Maxima maxima) {
#if SPECAGG_PTX
  __builtin_assume(__isGlobal(row.logits));
  __builtin_assume(__isGlobal(out));
#endif
  const unsigned blocks = blocks_in(row.size);
  if (b - threadIdx.x / 16 % 2 >= blocks) return;
  const bool writes = b < blocks && threadIdx.x % 16 == 0;
  const block_in_registers<S> block(row, b);
  const float largest = block.largest(whole_warp, [&](const auto& own) {
    if constexpr (std::is_same_v<Maxima, float*>)
      if (b < blocks) maxima[16 * b + threadIdx.x % 16] = own();
  });
  const float at_1 = exp_scale<float>::of_temperature(1).high;
  const int sums = confidence && scale != at_1 ? 2 : 1;
#pragma unroll 1
  for (int i = 0; i < sums; ++i) {  // a loop: twice the sum would be twice the code
    const auto sum = block.sum(largest, scale, per_scale, whole_warp);
    if (writes) out[b] = sum;
    scale = at_1, per_scale = 1 / at_1;
    out += blocks;
  }
}
// Not inlined: a row has several, and seven divisions each.
SPECAGG_OUTLINE __device__ softmax_factors<float> factors_of(float largest, double temperature,
                                                             double total) {
  return {largest, temperature, total};
}
// The facts of a row from its sums, sum_at(scale, whether the scale is that of temperature 1), and
// its first token with the largest logit, first(that logit).
__device__ row_facts facts_from(double temperature, bool confidence, const auto& sum_at,
                                const auto& first) {
  row_facts facts{};
  const row_scales scales(temperature);
  facts.greedy = scales.greedy;
  if (!scales.valid) {
    facts.why = status::invalid_parameter;
    return facts;
  }
  softmax_sum<float> sum{};
#pragma unroll 1
  for (int i = 0; i <= confidence; ++i) {  // a loop: as above
    if (i == 0 || scales.sampled != scales.confidence)
      sum = sum_at(i == 0 ? scales.sampled : scales.confidence, i == 1);
    if (!(sum.total > 0)) {
      facts.why = status::invalid_row;
      return facts;
    }
    if (i == 0 && scales.greedy) continue;
    (i == 0 ? facts.sampled : facts.confidence) =
        factors_of(sum.max, i == 0 ? temperature : 1, sum.total);
  }
  if (scales.greedy) facts.token = first(sum.max);
  return facts;
}
// The facts of a row whose blocks were summed. Called by the threads of a warp; every thread gets
// the facts. Not inlined: a verifier needs its registers itself.
template <class S, bool Whole>
SPECAGG_OUTLINE __device__ row_facts facts_of(const raw_row<S, Whole>& row, double temperature,
                                              bool confidence, const block_sum<float>* blocks) {
  row_facts found = facts_from(
      temperature, confidence,
      [&](float scale, bool at_1) {
        return sum_of_blocks(row, at_1 ? blocks + block_count(row.size) : blocks, scale);
      },
      [&](float largest) { return first_largest(row, blocks, largest); });
  if (!needs_shift(found.sampled.max, found.sampled.scale)) found.blocks = blocks;
  return found;
}

}  // namespace cuda::detail
SPECAGG_END
