// SPDX-License-Identifier: Apache-2.0
// Probabilities of a binomial count X of n trials, in logarithms: right for rare outcomes of 1e9
// trials, and far below the smallest double. For tests and analysis: uses the C library's
// mathematics.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include <specagg/config.hpp>

SPECAGG_BEGIN

namespace detail {

// log(x!) less Stirling's log(sqrt(2 pi x) (x/e)^x), for an integer x > 0. Error 1e-14.
inline double stirling_error(double x) {
  if (x < 16)
    return std::lgamma(x + 1) - (x + 0.5) * std::log(x) + x - 0.5 * std::log(2 * std::numbers::pi);
  const double s = 1 / (x * x);
  return (1. / 12 - s * (1. / 360 - s * (1. / 1260 - s * (1. / 1680 - s / 1188)))) / x;
}
// x log(x / m) - x + m for x = m + off.
inline double deviance(double m, double off) {
  const double e = off / m;
  return m * ((1 + e) * std::log1p(e) - e);
}

}  // namespace detail

// log P(X = k) for k in 0..n, where each trial has probability p; q = 1 - p is given too, for a p
// near 1. The error is about 1e-14 of the result plus 1e-16 |k - n p|, for n up to 1e15. (Loader's
// form: the large parts, log n! and the like, would cancel.)
inline double log_binomial(double n, double p, double q, double k) {
  if (k == 0) return p < 0.5 ? n * std::log1p(-p) : n * std::log(q);
  if (k == n) return q < 0.5 ? n * std::log1p(-q) : n * std::log(p);
  if (!(p > 0 && q > 0)) return -std::numeric_limits<double>::infinity();
  using detail::deviance, detail::stirling_error;
  const double off = k - n * p;
  return stirling_error(n) - stirling_error(k) - stirling_error(n - k) - deviance(n * p, off) -
         deviance(n * q, -off) + 0.5 * std::log(n / (2 * std::numbers::pi * k * (n - k)));
}

// log of the tail that k lies in: log P(X >= k) if k >= n p, log P(X <= k) otherwise. The terms of
// the tail are summed from k outwards until they no longer matter, which takes some 9 standard
// deviations at most.
inline double log_binomial_tail(double n, double p, double q, double k) {
  if (k < n * p) {
    std::swap(p, q);
    k = n - k;
  }
  double term = 1, sum = 1;
  for (double j = k; j < n && term > sum * 1e-17; ++j) {
    term *= (n - j) * p / ((j + 1) * q);
    sum += term;
  }
  return std::min(log_binomial(n, p, q, k) + std::log(sum), 0.0);
}

// E (X - n p)+, half the mean absolute deviation (de Moivre): k q P(X = k) with k the first integer
// above n p.
inline double binomial_mean_excess(double n, double p, double q) {
  const double k = std::floor(n * p) + 1;
  return k <= n ? k * q * std::exp(log_binomial(n, p, q, k)) : 0;
}

SPECAGG_END
