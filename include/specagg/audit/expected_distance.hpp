// SPDX-License-Identifier: Apache-2.0
// How much further from the law than a correct sampler's are the frequencies of a biased one? For
// tests and analysis: uses the C library's mathematics.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

#include <specagg/audit/binomial.hpp>

SPECAGG_BEGIN

namespace detail {

// u(x) = E (X / n - p)+ for a binomial X of n trials with probability x, where p is the law's. u is
// convex; this is its value at x = p, and where n p >= 1 and n (1 - p) >= 2 also its slope there
// and, on pieces to the right (0) and to the left (1), lower bounds of its second derivative.
struct mean_excess {
  // of the pieces, in standard deviations of X / n
  static constexpr std::array ends{0.25, 0.5, 0.75, 1.0, 1.5, 2.0};
  using pieces = std::array<double, ends.size()>;
  double value = 0;
  double slope = 0;
  std::array<pieces, 2> length{}, bend{};
  bool bends = false;

  // With c the first integer above n p and f = c - n p, n u is the mean of (k - n p)+, a function
  // of k whose first differences are 0 below c - 1, f at c - 1 and 1 from c on. So (derivatives of
  // Bernstein polynomials) u'(x) = P(Y >= c) + f P(Y = c - 1), u''(x) = (n - 1) (f P(Z = c - 2) +
  // (1 - f) P(Z = c - 1)), where Y has n - 1 trials and Z has n - 2. Each P(Z = k) rises in x and
  // then falls, so on a piece it is least at an end.
  mean_excess(double n, double p) {
    if (!(p > 0)) return;
    const double q = 1 - p;
    value = binomial_mean_excess(n, p, q) / n;
    bends = n * p >= 1 && n * q >= 2;
    if (!bends) return;
    const double c = std::floor(n * p) + 1;
    const double f = c - n * p;
    slope = std::exp(log_binomial_tail(n - 1, p, q, c)) +
            f * std::exp(log_binomial(n - 1, p, q, c - 1));
    const auto of_z = [&](double x) {
      return std::array{std::exp(log_binomial(n - 2, x, 1 - x, c - 2)),
                        std::exp(log_binomial(n - 2, x, 1 - x, c - 1))};
    };
    for (std::size_t left = 0; left < 2; ++left) {
      double x = p;
      auto before = of_z(x);
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const double off = ends[i] * std::sqrt(p * q / n);
        const double next = left != 0 ? std::max(p - off, 0.0) : std::min(p + off, 1.0);
        const auto after = of_z(next);
        length[left][i] = std::fabs(next - x);
        bend[left][i] =
            (n - 1) * (f * std::min(before[0], after[0]) + (1 - f) * std::min(before[1], after[1]));
        x = next;
        before = after;
      }
    }
  }

  // An upper bound of how far u(x) - u(p) - mu (x - p) - lambda |x - p| / 2 falls below 0, for 0 <=
  // lambda / 2 <= mu and lambda / 2 <= 1 - mu. As u(x) >= (x - p)+ by Jensen's inequality, it falls
  // by u(p) at most.
  double largest_fall(double lambda, double mu) const {
    if (!bends) return value;
    double largest = 0;
    for (std::size_t left = 0; left < 2; ++left) {
      // how fast it falls from p on
      double steepness = lambda / 2 + (left != 0 ? slope - mu : mu - slope);
      double fall = 0;
      for (std::size_t i = 0; i < ends.size() && steepness > 0; ++i) {
        const double size = length[left][i], b = bend[left][i];
        if (b * size >= steepness) {
          fall += steepness * steepness / (2 * b);
          steepness = 0;
        } else {
          fall += steepness * size - b * size * size / 2;
          steepness -= b * size;
        }
      }
      if (steepness > 0) return value;  // it falls further than the pieces go
      largest = std::max(largest, fall);
    }
    return std::min(largest, value);
  }
};

}  // namespace detail

// A total variation such that every sampler at least so far from the law has an expected distance
// (fit::distance, of n observations) that is larger than a correct sampler's by at least `gap`.
// With x the sampler's probabilities and p the law's, the difference is sum_i u_i(x_i) - u_i(p_i)
// >= lambda TV(x, p) - sum_i u_i.largest_fall(lambda, mu) for every lambda and mu, as sum_i (x_i
// - p_i) = 0 and sum_i |x_i - p_i| / 2 = TV. mu is the mean slope, lambda the best of 40; lambda 1
// and mu 1/2 are Jensen's bound, gap + expected_distance.
[[nodiscard]] inline double distance_with_gap(std::span<const double> law, double n, double gap) {
  double slopes = 0, weight = 0, expected_distance = 0;
  for (const double p : law) {
    const detail::mean_excess u(n, p);
    expected_distance += u.value;
    if (u.bends) {
      slopes += p * u.slope;
      weight += p;
    }
  }
  double least = gap + expected_distance;
  if (!(weight > 0)) return least;
  const double mu = slopes / weight;
  std::array<double, 40> falls{};
  const auto lambda = [&](std::size_t i) {
    return 2 * std::min(mu, 1 - mu) * double(i + 1) / double(falls.size());
  };
  for (const double p : law) {
    if (!(p > 0)) continue;
    const detail::mean_excess u(n, p);
    for (std::size_t i = 0; i < falls.size(); ++i) falls[i] += u.largest_fall(lambda(i), mu);
  }
  for (std::size_t i = 0; i < falls.size(); ++i)
    least = std::min(least, (gap + falls[i]) / lambda(i));
  return least;
}

SPECAGG_END
