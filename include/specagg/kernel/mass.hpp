// SPDX-License-Identifier: Apache-2.0
// Masses that filters compare: sums of the weights of tokens as whole numbers. Sums of whole
// numbers are exact. So the mass of some tokens is the same number in any order, on any number of
// threads, ranks or devices, and what a filter keeps does not depend on how it was found.
#pragma once
#include <cstdint>

#include <specagg/kernel/softmax.hpp>

SPECAGG_BEGIN

namespace detail {
// Adding this number to one of at most 1, and taking it off again, rounds to a multiple of 2^-bits.
template <class T>
SPECAGG_FUNCTION constexpr T rounder(int bits) {
  return T(1.5) * T(std::uint64_t(1) << (std::numeric_limits<T>::digits - 1)) /
         T(std::uint64_t(1) << bits);
}
}  // namespace detail

// A sum of weights. 0 <= mass < 2^63.
using mass = std::int64_t;

// The unit of masses in a row of `vocabulary` tokens (at most 2^31): 2^-44 of the weight 1, and
// beyond 2^18 tokens twice as much for each doubling. A weight, 0 <= w <= 1, becomes the nearest
// multiple of the unit, so a mass is wrong by at most half a unit for each token: 2^-27 of the
// largest weight at 2^18 tokens. A float weight of 2^-21 or more is a multiple of the unit.
//
// Vectors have no whole numbers of 64 bits, so a weight is divided into three numbers of its own
// type: multiples of 2^-14, of 2^-29, and of the unit. Sums of each over a block of 1024 tokens
// have at most 24 bits, and are exact in any order. So are sums of these over a row, in double.
template <class T>
class mass_unit {
 public:
  SPECAGG_FUNCTION explicit mass_unit(std::size_t vocabulary) {
    for (std::size_t most = std::size_t(1) << 18; most < vocabulary; most *= 2) --bits_;
    rounder_ = detail::rounder<T>(bits_);
  }
  template <class V>
  using parts = both<V, both<V, V>>;
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE parts<V> divide(V weight) const {
    const V high = (weight + V(first)) - V(first), rest = weight - high;
    const V middle = (rest + V(second)) - V(second);
    return {high, both(middle, ((rest - middle) + V(rounder_)) - V(rounder_))};
  }
  // The mass of which these are the sums of the parts.
  SPECAGG_FUNCTION mass whole(const parts<double>& sum) const {
    const double units = double(std::int64_t(1) << bits_);
    return mass(sum.first * units) + mass(sum.second.first * units) +
           mass(sum.second.second * units);
  }
  // The mass of one token with this weight.
  SPECAGG_FUNCTION SPECAGG_INLINE mass whole(T weight) const {
    constexpr double nearest = 0x1.8p52;  // rounds to a whole number
    return mass((double(weight) * double(std::int64_t(1) << bits_) + nearest) - nearest);
  }
  // The least mass that is at least this sum of weights, 0 <= sum <= vocabulary.
  SPECAGG_FUNCTION mass at_least(double sum) const {
    const double units = sum * double(std::int64_t(1) << bits_);
    const auto below = mass(units);
    return below + (double(below) < units);
  }
  // The sum of weights of this mass. One rounding.
  SPECAGG_FUNCTION double sum(mass m) const { return double(m) / double(std::int64_t(1) << bits_); }

 private:
  static constexpr T first = detail::rounder<T>(14), second = detail::rounder<T>(29);
  int bits_ = 44;
  T rounder_;
};

// The weights of tokens, as functions of their logits. Those of a softmax row, relative to its
// largest logit:
template <class T>
struct softmax_weights {
  softmax_factors<T> factors;
  SPECAGG_FUNCTION softmax_weights(T largest, double temperature)
      : factors(largest, temperature, 1) {}
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V logits) const {
    return uncontracted(factors(logits - V(factors.max)));
  }
};
// Every token that is not masked weighs 1.
struct count_of_tokens {
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V logits) const {
    return zero_where(logits <= V(-std::numeric_limits<typename V::value_type>::infinity()), V(1));
  }
};

// The mass of the tokens with logit >= lowest, by the reduce() of whoever reads the row
// (kernel/logits_in_memory.hpp). One pass.
template <class Row, class Weight, class T = typename Row::value_type>
SPECAGG_FUNCTION mass sum_mass_from(const Row& row, const mass_unit<T>& unit, const Weight& weight,
                                    T lowest) {
  return unit.whole(row.template reduce<detail::add>([&](auto l) SPECAGG_INNER {
    using V = decltype(l);
    return unit.divide(zero_where(l < V(lowest), V(weight(l))));
  }));
}

SPECAGG_END
