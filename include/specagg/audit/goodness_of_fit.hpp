// SPDX-License-Identifier: Apache-2.0
// A planned test of counts against a law. The caller chooses the rate of false alarms, and the
// result states how small a bias the test detects. Both are bounds for every law and every number
// of observations. docs/mathematics.md proves them. For tests and analysis: uses the C library's
// mathematics.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include <specagg/audit/binomial.hpp>
#include <specagg/audit/expected_distance.hpp>

SPECAGG_BEGIN

// How often a correct sampler fails an audit, unless the caller chooses.
inline constexpr double usual_false_alarm = 1e-6;

// The result of a test.
struct [[nodiscard]] fit {
  double distance = 0;           // total variation between the observed frequencies and the law
  double expected_distance = 0;  // of a correct sampler
  double p_value = 1;            // for a correct sampler P(p_value <= a) <= a, for every a
  bool passed = true;            // p_value > false_alarm
  // A sampler whose law is at least this far from the law (total variation) fails with probability
  // at least 0.999, with any law. Infinite without observations; above 1 the test promises
  // nothing.
  double detectable = std::numeric_limits<double>::infinity();
};

namespace detail {

// For n independent observations of a law whose most likely outcome has probability 1 - v, and for
// either sign: P(+-(distance - E distance) >= s) <= exp(-x) for s > 0 and x = deviation_exponent(n,
// v, s), and likewise for x > 0 and s = deviation(n, v, x). The better of McDiarmid's and
// Bernstein's (Freedman's) inequality.
inline double deviation_exponent(double n, double v, double s) {
  return s > 0 ? n * s * s / std::min(0.5, 2 * v + 2 * s / 3) : 0;
}
inline double deviation(double n, double v, double x) {
  const double a = x / (3 * n);
  return std::min(std::sqrt(x / (2 * n)), a + std::sqrt(a * a + 2 * v * x / n));
}

}  // namespace detail

// counts[i] is the number of observations of the outcome with probability law[i]; the law sums to
// 1. Two tests, each with half of false_alarm: the distance as a whole, which finds every bias
// beyond `detectable`; and the exact binomial tail of each outcome, with equal shares, which finds
// a single outcome that is seen too often or too rarely much earlier. An outcome of probability 0
// that is seen has p-value 0.
inline fit goodness_of_fit(std::span<const double> counts, std::span<const double> law,
                           double false_alarm) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  fit result;
  if (!(n > 0)) return result;
  double most_likely = 0;
  double least_tail = 0;  // logarithm
  double tails = 0;       // two of each outcome
  bool impossible = false;
  for (std::size_t i = 0; i < law.size(); ++i) {
    const double p = law[i], q = 1 - p;
    result.distance += std::max(counts[i] / n - p, 0.0);
    if (p > 0) {
      result.expected_distance += binomial_mean_excess(n, p, q) / n;
      most_likely = std::max(most_likely, p);
      least_tail = std::min(least_tail, log_binomial_tail(n, p, q, counts[i]));
      tails += 2;
    } else {
      impossible = impossible || counts[i] > 0;
    }
  }
  const double v = 1 - most_likely;
  const double whole = detail::deviation_exponent(n, v, result.distance - result.expected_distance);
  const double of_outcomes = -least_tail - std::log(tails);
  result.p_value = impossible ? 0 : std::min(2 * std::exp(-std::max(whole, of_outcomes)), 1.0);
  result.passed = result.p_value > false_alarm;
  using detail::deviation;
  const double threshold = result.expected_distance + deviation(n, v, std::log(2 / false_alarm));
  // falls to the distance d of docs/mathematics.md; every value on the way is one
  for (int i = 0; i < 60; ++i)
    result.detectable = threshold + deviation(n, v + result.detectable, std::log(1000));
  const double gap = result.detectable - result.expected_distance;
  if (result.expected_distance > gap) result.detectable = distance_with_gap(law, n, gap);
  return result;
}

SPECAGG_END
