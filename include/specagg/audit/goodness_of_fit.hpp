// SPDX-License-Identifier: Apache-2.0
// A planned test of counts against a law. The caller chooses the rate of false alarms, and the result states how small
// a bias the test detects. For tests and analysis: allocates, and uses the C library's mathematics.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// P(chi-square with `freedom` degrees of freedom > x): the regularised upper incomplete gamma function Q(freedom/2,
// x/2).
inline double chi_square_tail(double x, double freedom) {
  const double a = freedom / 2, z = x / 2;
  if (!(z > 0)) return 1;
  const double front = std::exp(std::fma(a, std::log(z), -z) - std::lgamma(a));
  if (z < a + 1) {  // series of the lower function
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-17; ++n) sum += term *= z / n;
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;  // continued fraction (Lentz)
  for (int i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2, d = 1 / (an * d + b), c = b + an / c;
    const double step = c * d;
    h *= step;
    if (std::fabs(step - 1) < 1e-16) break;
  }
  return front * h;
}

struct fit {
  double chi_square = 0, freedom = 0, p_value = 1;
  double detectable = 0;  // a law further than this in total variation is rejected with probability at least 0.999
  bool passed = true;     // p_value >= false_alarm, and no outcome of probability 0 was seen
};

// counts[i] is the number of observations of the outcome with probability law[i]; the law sums to 1. Outcomes with an
// expected count below 5 are put together. If an outcome of probability 0 was seen, the test fails. `detectable`
// follows from the expectation of chi-square, which is >= 4 n TV^2, and from the normal approximation of the
// non-central distribution.
inline fit goodness_of_fit(std::span<const double> counts, std::span<const double> law, double false_alarm) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  fit result;
  double rare_seen = 0, rare_due = 0, cells = 0;
  const auto cell = [&](double seen, double due) { result.chi_square += (seen - due) * (seen - due) / due, ++cells; };
  for (std::size_t i = 0; i < law.size(); ++i) {
    const double due = n * law[i];
    if (!(due > 0)) result.passed = result.passed && counts[i] == 0;
    else if (due < 5) rare_seen += counts[i], rare_due += due;
    else cell(counts[i], due);
  }
  if (rare_due > 0) cell(rare_seen, std::max(rare_due, 1e-300));
  result.freedom = std::max(cells - 1, 1.0);
  result.p_value = chi_square_tail(result.chi_square, result.freedom);
  result.passed = result.passed && result.p_value >= false_alarm;
  double critical = result.freedom;
  while (chi_square_tail(critical, result.freedom) > false_alarm) critical += std::sqrt(result.freedom) / 16;
  double shift = 0;  // the smallest non-centrality with the wanted power
  while (result.freedom + shift - critical < 3.09 * std::sqrt(2 * (result.freedom + 2 * shift))) shift += 0.25;
  result.detectable = std::sqrt(shift / n) / 2;
  return result;
}

SPECAGG_END
