// SPDX-License-Identifier: Apache-2.0
// Log-sum-exp and the elements of a softmax, computed from the logits: one read of the row, and no
// probabilities stored.
#pragma once
#include <span>

#include <specagg/kernel/math.hpp>
#include <specagg/kernel/reduce.hpp>

SPECAGG_BEGIN

// Which tokens of a row are kept: those up to (logit, id) in the order "larger logit first, then
// lower id". Top-k, top-p, min-p and greedy decoding all keep such a prefix, so one pair describes
// them all. The default keeps all tokens.
template <class T>
struct cutoff {
  T logit = -std::numeric_limits<T>::infinity();
  // the highest kept id among those with exactly this logit
  std::size_t last = static_cast<std::size_t>(-1);

  // What it keeps, by the logit and the id of a token.
  SPECAGG_FUNCTION bool keeps_all() const { return logit == -std::numeric_limits<T>::infinity(); }
  bool keeps(T l, std::size_t id) const { return l > logit || (l == logit && id <= last); }
};

// The elements of one softmax row: e^(x / temperature) / total for x = l - max <= 0. With total = 1
// they are weights. This is the exponential of math.hpp with two savings. Its coefficients are
// already divided by total, so an element costs no further product. And the low part of 1 /
// temperature is left out, because its rounding error is about as large as that of x. An element is
// 0 where it is below about 2^least_exponent. So none is subnormal, and a host that flushes
// subnormals gives the same result. NaN for NaN.
template <class T>
struct softmax_factors {
  T max = 0, scale = 0;

  softmax_factors() = default;
  SPECAGG_FUNCTION softmax_factors(T largest, double temperature, double total)
      : max(largest),
        scale(exp_scale<T>::of_temperature(temperature).high),
        lowest(C::rounder + least_exponent<T> + 1) {
    c[0] = T(1 / total);
    divide(total, std::make_integer_sequence<int, size - 1>());
    lowest += T(exponent_of(vec<double, 1>(total)).v - exponent_of(vec<double, 1>(1)).v);
  }
  // Whether it was made of a temperature: not a default.
  SPECAGG_FUNCTION bool known() const { return scale != 0; }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V x) const {
    // doubles: not inlined, as exp and log of math.hpp
    if constexpr (sizeof(T) == 8) return outlined(x);
    else return element(x);
  }

 private:
  using C = detail::coefficients<T>;
  static constexpr int size = 1 + detail::exp2_table<T>::size;
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V element(V x) const {
    const V t = fma(x, V(scale), V(C::rounder)), n = t - V(C::rounder);
    const V r = fma(x, V(scale), -n);
    return zero_where(
        t < V(lowest),
        times_exp2(
            detail::polynomial<size>(r, [this](auto i) SPECAGG_INNER { return c[i]; }), n, t));
  }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_OUTLINE V outlined(V x) const {
    return element(x);
  }
  template <int... I>
  SPECAGG_FUNCTION void divide(double total, std::integer_sequence<int, I...>) {
    ((c[I + 1] = T(double(detail::exp2_table<T>()(std::integral_constant<int, I>())) / total)),
     ...);
  }
  T lowest = 0, c[std::size_t(size)] = {};
};

namespace detail {

// 16 logits as vec; or `lanes` of them, and -inf for the others.
template <class V, class S>
SPECAGG_FUNCTION SPECAGG_INLINE V load_logits(const S* logits, int lanes) {
  constexpr auto masked = -std::numeric_limits<typename V::value_type>::infinity();
  return lanes == V::lanes ? V::load(logits) : V::load_partial(logits, lanes, masked);
}

}  // namespace detail

// One block of logits, read as probabilities. S is the type that stores them: float, double, bf16
// or f16.
template <class S>
struct softmax_block {
  using T = computed<S>;
  const S* logits;
  softmax_factors<T> factors;
  // cutoff relative to this block: last is a lane index, -1 (no tie kept) ... block_size (all kept)
  T cut, last;
  bool filtered;

  SPECAGG_FUNCTION softmax_block(const S* row, std::size_t begin, std::size_t count,
                                 const softmax_factors<T>& f, const cutoff<T>& c)
      : logits(row + begin), factors(f), cut(c.logit), filtered(!c.keeps_all()) {
    last = c.last < begin ? T(-1) : T(c.last - begin < count ? c.last - begin : count);
  }
  // Tokens k..k+15 of the block. Elements from `lanes` on are 0.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
    const V l = logits_at<V>(k, lanes);
    // most vectors of a filtered row keep no token: no exponential
    if (filtered && !any(!(l < V(cut)))) return V(0);
    const V e = factors(l - V(factors.max));
    return uncontracted(filtered ? select(dropped(l, k), V(0), e) : e);
  }
  // The logits of these tokens, -inf from `lanes` on; and which of them the cutoff drops.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V logits_at(std::size_t k, int lanes) const {
    return detail::load_logits<V>(logits + k, lanes);
  }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE typename V::mask_type dropped(
      V l, std::size_t k) const {  // a NaN is not dropped: it must be found
    return (l < V(cut)) | ((l == V(cut)) & (V::iota(0) + V(k) > V(last)));
  }
};

// max: the largest kept logit. total: the sum of e^((l - max) / temperature) over the kept tokens
// of a row; NaN if any logit is NaN or +inf, or none is finite.
template <class T>
struct softmax_sum {
  T max;
  double total;
};

// Bound of the relative error of `total`, and so of the absolute error of its logarithm. Roundings
// of T: those of the sum, 4 for an exponential, and those of l - max and of 1 / temperature. The
// last two are multiplied by (max - l) / temperature. The average of this factor over the row is
// the entropy less ln(total), so at most ln(size). Roundings of doubles: 20 for adding a block.
template <class T>
constexpr double softmax_error(std::size_t size) {
  double log_size = 0.7;
  for (std::size_t n = size; n > 1; n /= 2) log_size += 0.7;  // ln 2, rounded up
  return (26 + 2 * log_size) * double(std::numeric_limits<T>::epsilon() / 2) +
         20 * double(block_count(size)) * 0x1p-53;
}

namespace detail {

// Adds one block to `sum`. `part`: the sum of the block's weights relative to the largest logit up
// to and including this block. `top`: the largest logit of the block itself.
template <class T>
SPECAGG_FUNCTION SPECAGG_INLINE void add_block(softmax_sum<T>& sum, T top, double part,
                                               double temperature) {
  if (top > sum.max) {
    using V = vec<double, 1>;  // a vec's product is never fused into a sum, on a device either
    sum.total =
        uncontracted(V(sum.total) * V(exp((double(sum.max) - double(top)) / temperature))).v;
    sum.max = top;
  }
  sum.total += part;
}

// The sum of the weights of a block relative to max_before, and the block's largest logit. The sum
// is right if no logit of the block is larger than max_before.
template <bool Filtered, class S, class T = computed<S>>
SPECAGG_FLATTEN both<double, T> sum_block(const softmax_block<S>& block, std::size_t count,
                                          T max_before) {
  using V = vec<T, 16>;
  V largest(-std::numeric_limits<T>::infinity());
  const double sum = specagg::reduce_block<add>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
    const V l = block.template logits_at<V>(k, lanes);
    largest = max(l, largest);
    const V e = block.factors(l - V(max_before));
    if constexpr (Filtered) return select(block.dropped(l, k), V(0), e);
    else return e;
  });
  return {sum, reduce_max(largest)};
}

}  // namespace detail

// The exponentials of each block are taken relative to the largest logit up to and including it.
// This is nearly always the largest logit before the block, so one read of the block is enough: it
// gives the sum relative to that logit, and the block's maximum, which tells whether the sum must
// be computed again. (In random rows this happens for about ln(V / 1024) blocks.)
template <class S, class T = computed<S>>
softmax_sum<T> sum_exponentials(const S* logits, std::size_t size, double temperature,
                                const cutoff<T>& cut = {}) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const softmax_factors<T> factors(0, temperature, 1);
  softmax_sum<T> sum{-infinity, 0};
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    const softmax_block<S> block(logits, begin, count, factors, cut);
    const auto pass = [&](T largest) {
      // all are masked so far: NaN must still be found
      const T max = largest == -infinity ? T(0) : largest;
      return block.filtered ? detail::sum_block<true>(block, count, max)
                            : detail::sum_block<false>(block, count, max);
    };
    auto [part, top] = pass(sum.max);
    if (top > sum.max) part = pass(top).first;
    detail::add_block(sum, top, part, temperature);
  }
  if (sum.max == -infinity) sum.total = std::numeric_limits<double>::quiet_NaN();
  return sum;
}

// ln sum_v e^(l(v) / temperature) of a row of V logits (float, double, bf16 or f16), for the
// temperatures of softmax_row (others: maybe NaN). One pass. The error is at most
// softmax_error<T>(V) + 2^-52 |max / temperature|, T the type that computes (double for doubles,
// else float). A logit may be -inf: a masked token. NaN where a logit is NaN or +inf, where all are
// -inf, and for no logits.
template <Contiguous Logits>
double log_sum_exp(const Logits& logits, double temperature = 1) noexcept {
  const std::span all(logits);
  const auto sum = sum_exponentials(all.data(), all.size(), temperature);
  return double(sum.max) / temperature + log(sum.total);
}
template <class S>
SPECAGG_DEPRECATED("log_sum_exp(std::span(logits, size), temperature)")
double log_sum_exp(const S* logits, std::size_t size, double temperature = 1) noexcept {
  return log_sum_exp(std::span(logits, size), temperature);
}

SPECAGG_END
