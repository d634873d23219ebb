// SPDX-License-Identifier: Apache-2.0
// Sums of exponentials, block by block. The sum of a block of 1024 logits depends on that block
// alone. So blocks may be summed in any order, by other threads, on other devices or hosts, and the
// sum of the row has the same bits. docs/mathematics.md ("Sums of exponentials") has the formulas:
// units, weights, blocks and the error bound.
#pragma once
#include <cstdint>
#include <limits>

#include <specagg/kernel/math.hpp>
#include <specagg/kernel/reduce.hpp>

SPECAGG_BEGIN

// The sum of a row. max: the largest kept logit. total: the sum of e^((l - max) / temperature) over
// the kept tokens of a row; NaN if any logit is NaN or +inf, or none is finite.
template <class T>
struct softmax_sum {
  T max;
  double total;
};

// The sum of one block of a row. max: its largest logit (-inf: no logit is finite). sum: the sum of
// its weights, in the unit of the largest logit (unit_of_sum, below). NaN if a logit is NaN or
// +inf.
template <class T>
struct block_sum {
  T max;
  double sum;
};

namespace detail {

// The unit of a block's sum: 2^(index step). It follows from n of the block's largest weight, which
// is 2^n up to a factor below 1.5. For floats the unit is at most 2^80 times the largest weight.
// Weights below 2^-125 units count as 0: they are less than 2^-44 of the largest weight. Units are
// so far apart that nearly all blocks of a row have the same unit.
template <class T>
struct unit_of_sum {
  using whole = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  static constexpr whole step = sizeof(T) == 4 ? 192 : 1536, below = sizeof(T) == 4 ? 80 : 640;
  // For a larger |n| the weights are not exact enough: then the row is summed relative to its
  // largest logit.
  static constexpr whole most = whole(1) << (sizeof(T) == 4 ? 20 : 40), limit = 2 * most;
  whole index = 0;

  SPECAGG_FUNCTION T exponent() const { return T(index * step); }
  // Whether this is the unit of a block whose largest weight has this n; or one of a higher unit.
  SPECAGG_FUNCTION bool fits(T n) const {
    return reached_by(n) && n <= T((index + 1) * step - below);
  }
  SPECAGG_FUNCTION bool reached_by(T n) const { return n > T(index * step - below); }
  // n: a whole number if |n| <= limit. Others, and NaN, get the first or the last unit.
  SPECAGG_FUNCTION static unit_of_sum of(T n) {
    constexpr whole units = limit / step + 1;  // below 0
    const whole within = !(n > T(-limit)) ? -limit : n > T(limit) ? limit : whole(n);
    return {(within + below - 1 + units * step) / step - units};
  }
};

// e^(x / temperature) = y 2^n in a unit. The unit changes n alone. So y has the same bits in every
// unit, and so have sums, unless a weight becomes 0, which it does if n is 126 or more below the
// unit's exponent (floats).
template <class T>
struct weight_in_unit {
  using C = coefficients<T>;
  T scale;   // log2(e) / temperature
  T anchor;  // x scale + anchor is rounded to n - the unit's exponent - 1 + the bias of exponents
  T lowest;  // an x whose weight is 0: lower ones are raised to it
  SPECAGG_FUNCTION weight_in_unit(T scale_of_x, unit_of_sum<T> unit)
      : scale(scale_of_x),
        anchor(C::rounder - 1 - unit.exponent()),
        lowest(lowest_in(scale_of_x, unit)) {
    constexpr T least = std::numeric_limits<T>::lowest();
    if (lowest < least) lowest = least;
  }
  // Divides nothing. per_scale: 1 / scale_of_x with a relative error of at most epsilon. That of
  // lowest is then at most 3/2 epsilon, and |n| <= limit + 2 step, so that lowest * scale is less
  // than 1/2 from the whole number that it stands for. Its weight is 0, and all have the same bits.
  SPECAGG_FUNCTION weight_in_unit(T scale_of_x, T per_scale, unit_of_sum<T> unit)
      : scale(scale_of_x),
        anchor(C::rounder - 1 - unit.exponent()),
        lowest((unit.exponent() + std::numeric_limits<T>::min_exponent - 1) * per_scale) {
    constexpr T least = std::numeric_limits<T>::lowest();
    if (lowest < least) lowest = least;
  }
  // -inf if no number has weight 0.
  SPECAGG_FUNCTION static T lowest_in(T scale, unit_of_sum<T> unit) {
    return (unit.exponent() + std::numeric_limits<T>::min_exponent - 1) / scale;
  }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V x) const {
    // doubles: not inlined, as exp and log of math.hpp
    if constexpr (sizeof(T) == 8) return outlined(x);
    else return weight(x);
  }
  // operator()(x) before the product of y and 2^n, which is exact.
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE detail::exact_product<V> product(V x) const {
    x = raised(V(lowest), x);
    const V t = fma(x, V(scale), V(anchor)), r = fma(x, V(scale), V(anchor) - t);
    // Twice y, times half of 2^n: no product is subnormal. 2^n is exactly 0 for the lowest n.
    const auto twice = [](auto i) { return 2 * exp2_table<T>()(i); };
    return {fma(r, polynomial<exp2_table<T>::size>(r, twice), V(2)), shift_to_exponent(t)};
  }
  // n of a logit: needed for the largest logit of a block.
  SPECAGG_FUNCTION static T exponent(T x, T scale) {
    using V = vec<T, 1>;
    return (fma(V(x), V(scale), V(C::rounder)) - V(C::rounder)).v;
  }

 private:
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V weight(V x) const {
    const auto e = product(x);
    return e.a * e.b;
  }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_OUTLINE V outlined(V x) const {
    return weight(x);
  }
};

// Whether a row with this largest logit must be summed relative to it (`shift`): its weights are
// beyond all units, or at a very high temperature -inf could not be told from the lowest number.
template <class T>
SPECAGG_FUNCTION bool needs_shift(T max, T scale) {
  constexpr T infinity = std::numeric_limits<T>::infinity(), most = T(unit_of_sum<T>::most);
  const T n = (vec<T, 1>(max) * vec<T, 1>(scale)).v;
  if (!(max > -infinity)) return false;
  if (!(n >= -most && n <= most)) return true;
  const auto unit = unit_of_sum<T>::of(weight_in_unit<T>::exponent(max, scale));
  return !(weight_in_unit<T>::lowest_in(scale, unit) > -infinity);
}
// The weight of a logit as the row's sum counts it, in the row's unit, that of its largest logit.
// max and scale are the row's. A weight of a lower unit may be 0 in this one: it is less than 2^-44
// of the largest weight.
template <class T>
struct weight_in_row {
  T shift;
  weight_in_unit<T> weight;
  SPECAGG_FUNCTION weight_in_row(T max, T scale)
      : shift(detail::needs_shift(max, scale) ? max : T(0)),
        weight(scale, unit_of_sum<T>::of(weight_in_unit<T>::exponent(max - shift, scale))) {}
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V l) const {
    return weight(l - V(shift));
  }
};
// The sum of a row from the sums of its blocks in the highest unit and in the unit below (in lower
// units each weight is less than 2^-190 of the row's largest). x_max: the largest logit less
// `shift`. Its weight is computed like the weights of the blocks, so that a token that has all the
// mass has exactly 1.
template <class T>
SPECAGG_FUNCTION double total_of_units(double highest, double below, unit_of_sum<T> unit, T x_max,
                                       T scale) {
  using V = vec<double, 1>;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr T infinity = std::numeric_limits<T>::infinity();
  if (!(x_max > -infinity)) return nan;  // no finite logit; at high temperatures -inf has a weight
  constexpr double half_step = sizeof(T) == 4 ? 0x1p-96 : 0x1p-768;
  const double lower = uncontracted(V(below) * V(half_step) * V(half_step)).v;
  const double largest = double(weight_in_unit<T>(scale, unit)(vec<T, 1>(x_max)).v);
  return (V(highest + lower) / V(largest)).v;
}

// Adds up the blocks of a row, which come in ascending order.
template <class T>
class sum_of_units {
 public:
  using unit = unit_of_sum<T>;
  explicit sum_of_units(std::size_t blocks)
      : blocks_(blocks), highest_(blocks), below_(blocks), unit_(unit::of(max_)) {}
  void add(std::size_t b, unit u, const block_sum<T>& x) {
    if (x.max > max_) max_ = x.max;
    if (u.index > unit_.index) {
      below_ = u.index == unit_.index + 1 ? highest_ : lanes(blocks_);
      highest_ = lanes(blocks_);
      unit_ = u;
    }
    if (u.index == unit_.index) highest_.add(b, x.sum);
    else if (u.index + 1 == unit_.index) below_.add(b, x.sum);
    nothing_ += x.sum * 0;
  }
  T max() const { return max_; }
  unit highest() const { return unit_; }  // of the blocks so far
  softmax_sum<T> total(T scale, T shift) {
    return {max_, total_of_units(highest_.total(), below_.total(), unit_, max_ - shift, scale) +
                      nothing_};
  }

 private:
  using lanes = lanes_of_blocks<detail::add, double>;
  T max_ = -std::numeric_limits<T>::infinity();
  std::size_t blocks_;
  lanes highest_, below_;
  unit unit_;
  double nothing_ = 0;  // NaN if any block's sum is NaN, even a block that does not count
};

}  // namespace detail

SPECAGG_END
