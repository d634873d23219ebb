// SPDX-License-Identifier: Apache-2.0
// Log-sum-exp and the elements of a softmax, computed from the logits: one read of the row, and no
// probabilities stored.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include <specagg/kernel/exponentials.hpp>

SPECAGG_BEGIN

// Which tokens of a row are kept: those up to (logit, id) in the order "larger logit first, then
// lower id". Top-k, top-p, min-p and greedy decoding all keep such a prefix, so one pair describes
// them all. The default keeps all tokens.
template <class T>
struct cutoff {
  T logit = -std::numeric_limits<T>::infinity();
  // the highest kept id among those with exactly this logit
  std::size_t last = static_cast<std::size_t>(-1);

  // Whether the cutoff keeps all tokens, or a token with this logit and id.
  SPECAGG_FUNCTION bool keeps_all() const { return logit == -std::numeric_limits<T>::infinity(); }
  SPECAGG_FUNCTION bool keeps(T l, std::size_t id) const {
    return l > logit || (l == logit && id <= last);
  }
};

// The elements of one softmax row: e^(x / temperature) / total for x = l - max <= 0. With total = 1
// they are weights. This is the exponential of math.hpp with two savings. Its coefficients are
// already divided by total, so an element costs no further product. And the low part of 1 /
// temperature is left out, because its rounding error is about as large as that of x. An element is
// 0 where it is below about 2^least_exponent. No element is subnormal, and a host that flushes
// subnormals gives the same bits. NaN for NaN.
template <class T>
struct softmax_factors {
  T max = 0, scale = 0;

  softmax_factors() = default;
  SPECAGG_FUNCTION softmax_factors(T largest, double temperature, double total)
      : max(largest), scale(exp_scale<T>::of_temperature(temperature).high) {
    // An element is y 2^n, 2^k <= total < 2^(k + 1). It is computed as (y 2^(k + 2)) 2^(n - k - 2):
    // neither factor is subnormal, and the second is exactly 0 for the lowest n.
    using D = vec<double, 1>;
    const T k = T(exponent_of(D(total)).v - exponent_of(D(1)).v);
    anchor = C::rounder - 2 - k;
    lowest = (least_exponent<T> + k) / scale;
    const double quarter = mantissa_of(D(total)).v / 4;
    c[0] = T(1 / quarter);
    divide(quarter, std::make_integer_sequence<int, size - 1>());
  }
  // Whether the factors were made from a temperature, not by default.
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
    x = raised(V(lowest), x);
    const V t = fma(x, V(scale), V(anchor)), r = fma(x, V(scale), V(anchor) - t);
    return detail::polynomial<size>(r, [this](auto i) SPECAGG_INNER { return c[i]; }) *
           shift_to_exponent(t);
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
  T anchor = 0;  // rounds x scale to n, and adds -k - 2 and the bias of exponents
  T lowest = 0;  // an x whose element is 0: lower ones are raised to it
  T c[std::size_t(size)] = {};
};

namespace detail {

// Asks for the memory that a pass over a row reads 2 KB later, so many cache lines. A processor by
// itself does not look beyond a page of 4 KB. The address need not be valid.
template <std::size_t... Line>
SPECAGG_FUNCTION SPECAGG_INLINE void read_ahead([[maybe_unused]] const void* at,
                                                std::index_sequence<Line...>) {
#ifndef __CUDA_ARCH__
  (__builtin_prefetch(static_cast<const char*>(at) + 2048 + 64 * Line), ...);
#endif
}
// 16 logits as vec; or `lanes` of them, and -inf for the others.
template <class V, class S>
SPECAGG_FUNCTION SPECAGG_INLINE V load_logits(const S* logits, int lanes) {
  constexpr auto masked = -std::numeric_limits<typename V::value_type>::infinity();
  return lanes == V::lanes ? V::load(logits) : V::load_partial(logits, lanes, masked);
}
// 64 logits of a row from `first` on, -inf beyond its end. Four members, not an array: they stay in
// registers.
template <class S>
struct group_of_logits {
  using T = computed<S>;
  using V = vec<T, 16>;
  V a, b, c, d;
  SPECAGG_INLINE group_of_logits(const S* row, std::size_t first, std::size_t size) {
    const auto load = [&](std::size_t v) SPECAGG_INNER {
      return v >= size ? V(-std::numeric_limits<T>::infinity())
                       : load_logits<V>(row + v, size - v < 16 ? int(size - v) : 16);
    };
    if (size - first >= 64) {
      a = load_logits<V>(row + first, 16);
      b = load_logits<V>(row + first + 16, 16);
      c = load_logits<V>(row + first + 32, 16);
      d = load_logits<V>(row + first + 48, 16);
      read_ahead(row + first, std::make_index_sequence<sizeof(S)>());
    } else {
      a = load(first);
      b = load(first + 16);
      c = load(first + 32);
      d = load(first + 48);
    }
  }
  SPECAGG_INLINE V largest() const { return max(max(a, b), max(c, d)); }
  // Bit i: whether logit i is at least `bound` > -inf.
  SPECAGG_INLINE std::uint64_t from(T bound) const {
    const V at(bound);
    return std::uint64_t(bits(a >= at)) | std::uint64_t(bits(b >= at)) << 16 |
           std::uint64_t(bits(c >= at)) << 32 | std::uint64_t(bits(d >= at)) << 48;
  }
  SPECAGG_INLINE bool any_from(T bound) const { return any(largest() >= V(bound)); }
  // In which lanes one is NaN or +inf.
  SPECAGG_INLINE auto bad() const {
    const V inf(std::numeric_limits<T>::infinity());
    return !((a < inf) & (b < inf) & (c < inf) & (d < inf));
  }
};

}  // namespace detail

// A cutoff in one block of the row: it knows tokens by their place in the block.
template <class T>
struct block_cutoff {
  T cut, last;  // last kept tie: -1 (no tie) ... the number of tokens (all ties)

  SPECAGG_FUNCTION block_cutoff(std::size_t begin, std::size_t count, const cutoff<T>& c)
      : cut(c.logit),
        last(c.last < begin ? T(-1) : T(c.last - begin < count ? c.last - begin : count)) {}
  // Which of the tokens at k, k + 1, ... with these logits the cutoff drops. It drops no NaN: a NaN
  // must be found.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE typename V::mask_type dropped(V l, std::size_t k) const {
    return (l < V(cut)) | ((l == V(cut)) & (V::iota(0) + V(k) > V(last)));
  }
};

// One block of logits, read as probabilities. S is the type that stores them: float, double, bf16
// or f16.
template <class S>
struct softmax_block : block_cutoff<computed<S>> {
  using T = computed<S>;
  const S* logits;
  softmax_factors<T> factors;
  bool filtered;

  SPECAGG_FUNCTION softmax_block(const S* row, std::size_t begin, std::size_t count,
                                 const softmax_factors<T>& f, const cutoff<T>& c)
      : block_cutoff<T>(begin, count, c),
        logits(row + begin),
        factors(f),
        filtered(!c.keeps_all()) {}
  // Tokens k..k+15 of the block. Elements from `lanes` on are 0.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
    return weight<V>(k, lanes, [this](V l) SPECAGG_INNER { return factors(l - V(factors.max)); });
  }
  // f of their logits, a weight. 0 for tokens that are not kept, and from `lanes` on if f(-inf) is.
  template <class V, class F>
  SPECAGG_FUNCTION SPECAGG_INLINE V weight(std::size_t k, int lanes, const F& f) const {
    const V l = logits_at<V>(k, lanes);
    // most vectors of a filtered row keep no token: no exponential
    if (filtered && !any(!(l < V(this->cut)))) return V(0);
    const V e = f(l);
    return uncontracted(filtered ? select(this->dropped(l, k), V(0), e) : e);
  }
  // The logits of these tokens, -inf from `lanes` on.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V logits_at(std::size_t k, int lanes) const {
    detail::read_ahead(logits + k, std::make_index_sequence<1>());
    return detail::load_logits<V>(logits + k, lanes);
  }
};

// Bound of the relative error of a softmax_sum's total, and so of the absolute error of its
// logarithm. Roundings of T: 22 of the sum, 4 of an exponential, 4 of the exponential of `max`, and
// the rounding of 1 / temperature times (max - l) / temperature. The average of this factor over
// the row is the entropy less ln(total), so at most ln(size). Roundings of doubles: one for each
// block, and a few.
template <class T>
constexpr double softmax_error(std::size_t size) {
  double log_size = 0.7;
  for (std::size_t n = size; n > 1; n /= 2) log_size += 0.7;  // ln 2, rounded up
  return (30 + log_size) * double(std::numeric_limits<T>::epsilon() / 2) +
         double(block_count(size) + 8) * 0x1p-53;
}

// Memory for the sums of a row's blocks in the row's unit (weight_in_row), and whether they are
// there. A pass over the row leaves them if it can. memory: block_count(V) doubles; if it has
// fewer, nothing is written.
struct row_sums {
  std::span<double> memory = {};
  bool known = false;
};

// The largest logit of each part of a row, as a pass over the row leaves it. A part has every 16th
// token of a block, of the 256th block after it, and so on. Nothing is known while size is 0.
template <class T>
struct part_maxima {
  static constexpr std::size_t blocks = 256;
  std::size_t size = 0;  // parts
  std::array<T, 16 * blocks> of;

  part_maxima() {}  // `of` is not set
  // Blocks come in ascending order. largest: lane i is for the tokens i, i + 16, ... of the block.
  template <class V>
  SPECAGG_INLINE void add(std::size_t block, V largest) {
    T* const at = of.data() + block % blocks * 16;
    if (block >= blocks) largest = max(largest, V::load(at));
    else size = 16 * (block + 1);
    largest.store(at);
  }
  // Whether a token of this block may have such a logit.
  SPECAGG_INLINE bool may_reach(std::size_t block, T logit) const {
    using V = vec<T, 16>;
    return size == 0 || any(V::load(of.data() + block % blocks * 16) >= V(logit));
  }
};

namespace detail {

// The weights of a block in a unit. General: the cutoff may drop tokens, and `shift` is subtracted
// from every logit. largest: gets the largest logit of each lane.
template <bool General, class S, class T = computed<S>>
SPECAGG_FLATTEN block_sum<T> sum_block(const softmax_block<S>& block, std::size_t count,
                                       const weight_in_unit<T>& weight, T shift,
                                       vec<T, 16>& largest) {
  using V = vec<T, 16>;
  V top(-std::numeric_limits<T>::infinity());
  const double sum = specagg::reduce_block<add>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
    const V l = block.template logits_at<V>(k, lanes);
    top = max(l, top);
    if constexpr (General) return select(block.dropped(l, k), V(0), weight(l - V(shift)));
    else if constexpr (fma_is_fast && sizeof(T) == 4) return weight.product(l);
    else return weight(l);
  });
  largest = top;
  return {reduce_max(top), sum};
}

// The sum of a block in its own unit, relative to e^(shift / temperature). The block is first
// summed in `last`, the unit of the block before it. If the block needs another unit, it is summed
// again in its own, unless this unit is two or more below `highest`, the highest unit so far: then
// the block does not count, and only a NaN in its sum is of use.
template <class S, class T = computed<S>>
std::pair<unit_of_sum<T>, block_sum<T>> sum_in_own_unit(const softmax_block<S>& block,
                                                        std::size_t count, T scale, T shift,
                                                        unit_of_sum<T>& last,
                                                        unit_of_sum<T> highest,
                                                        vec<T, 16>& largest) {
  using unit = unit_of_sum<T>;
  const auto pass = [&](unit u) {
    const weight_in_unit<T> weight(scale, u);
    return block.filtered || shift != 0
               ? detail::sum_block<true>(block, count, weight, shift, largest)
               : detail::sum_block<false>(block, count, weight, shift, largest);
  };
  const block_sum<T> found = pass(last);
  const T n = weight_in_unit<T>::exponent(found.max - shift, scale);
  if (last.fits(n)) return {last, found};
  const unit own = unit::of(n);
  if (!(n >= T(-unit::limit) && n <= T(unit::limit)) || own.index + 1 < highest.index)
    return {own, found};
  return {last = own, pass(own)};
}
// The sum of a row, relative to e^(shift / temperature): one pass. `kept` gets the sums of blocks
// if they all have one unit, as nearly always, but for blocks without a finite logit.
template <class S, class T = computed<S>>
softmax_sum<T> sum_shifted(const S* logits, std::size_t size, T scale, T shift,
                           const cutoff<T>& cut, row_sums& kept, part_maxima<T>* maxima) {
  sum_of_units<T> sum(block_count(size));
  unit_of_sum<T> last;
  kept.known = kept.memory.size() >= block_count(size);
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    const softmax_block<S> block(logits, begin, count, {}, cut);
    vec<T, 16> largest;
    const auto [unit, found] =
        detail::sum_in_own_unit(block, count, scale, shift, last, sum.highest(), largest);
    if (maxima) maxima->add(begin / block_size, largest);
    const bool first = !(sum.max() > -std::numeric_limits<T>::infinity());
    const auto highest = sum.highest();
    sum.add(begin / block_size, unit, found);
    const bool counts = found.max > -std::numeric_limits<T>::infinity();
    if (counts && !first && unit.index != highest.index) kept.known = false;
    if (kept.known) kept.memory[begin / block_size] = counts ? found.sum : 0;
  }
  return sum.total(scale, shift);
}

}  // namespace detail

// One pass over the logits, and a second pass over each block that counts and whose unit differs
// from that of the block before (nearly no block; at temperatures of 1e-3 some). All passes again
// if the largest |logit| / temperature is above 7e5 (doubles: 7e11).
template <class S, class T = computed<S>>
softmax_sum<T> sum_exponentials(const S* logits, std::size_t size, double temperature,
                                const cutoff<T>& cut, row_sums& kept,
                                part_maxima<T>* maxima = nullptr) {
  const T scale = exp_scale<T>::of_temperature(temperature).high;
  const auto sum = detail::sum_shifted(logits, size, scale, T(0), cut, kept, maxima);
  return detail::needs_shift(sum.max, scale)
             ? detail::sum_shifted(logits, size, scale, sum.max, cut, kept, maxima)
             : sum;
}
template <class S, class T = computed<S>>
softmax_sum<T> sum_exponentials(const S* logits, std::size_t size, double temperature,
                                const cutoff<T>& cut = {}) {
  row_sums none;
  return specagg::sum_exponentials(logits, size, temperature, cut, none);
}

// ln sum_v e^(l(v) / temperature) of a row of V logits (float, double, bf16 or f16), for the
// temperatures of softmax_row (others: maybe NaN). One pass. The error is at most
// softmax_error<T>(V) + 2^-52 |max / temperature|, T the type of the computation (double for
// doubles, else float). A logit may be -inf: a masked token. The result is NaN if a logit is NaN or
// +inf, if all are -inf, and for no logits.
template <Contiguous Logits>
double log_sum_exp(const Logits& logits, double temperature = 1) noexcept {
  const std::span all(logits);
  const auto sum = sum_exponentials(all.data(), all.size(), temperature);
  return double(sum.max) / temperature + log(sum.total);
}

SPECAGG_END
