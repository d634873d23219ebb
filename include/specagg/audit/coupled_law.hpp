// SPDX-License-Identifier: Apache-2.0
// The joint law of draft and output under shared noise, in closed form. For tests and analysis: allocates.
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// Pr[y = x]: sum_i 1 / sum_j max(pi_j / pi_i, q_j / q_i), over the tokens with mass in both. Daliri et al. 2024.
inline double coupled_acceptance(std::span<const double> q, std::span<const double> pi) {
  double acceptance = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (!(q[i] > 0) || !(pi[i] > 0)) continue;
    double sum = 0;
    for (std::size_t j = 0; j < q.size(); ++j) sum += std::max(pi[j] / pi[i], q[j] / q[i]);
    acceptance += 1 / sum;
  }
  return acceptance;
}

// J(i, j) = Pr[y = i, x = j], V x V, row by row. Off the diagonal, with u = E_j / E_i,
//   J(i, j) = integral from q_j/q_i to pi_j/pi_i of du / (1 + u + sum_{k != i,j} max(q_k/q_i, u pi_k/pi_j))^2 :
// the denominator is linear in u between the points where a maximum changes sides, and each piece integrates exactly.
inline std::vector<double> coupled_joint_law(std::span<const double> q, std::span<const double> pi) {
  const std::size_t n = q.size();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> law(n * n), points;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      if (!(q[i] > 0) || !(pi[j] > 0)) continue;
      if (i == j) {
        double sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum += std::max(pi[k] / pi[i], q[k] / q[i]);
        law[i * n + j] = 1 / sum;
        continue;
      }
      const double from = q[j] / q[i], to = pi[i] > 0 ? pi[j] / pi[i] : infinity;
      if (!(from < to)) continue;
      points.assign({from, to});
      for (std::size_t k = 0; k < n; ++k)
        if (k != i && k != j && pi[k] > 0)
          if (const double u = q[k] / q[i] * (pi[j] / pi[k]); u > from && u < to) points.push_back(u);
      std::sort(points.begin(), points.end());
      for (std::size_t b = 0; b + 1 < points.size(); ++b) {
        const double lo = points[b], hi = points[b + 1], middle = hi < infinity ? 0.5 * (lo + hi) : 2 * lo + 1;
        double constant = 1, slope = 1;
        for (std::size_t k = 0; k < n; ++k) {
          if (k == i || k == j) continue;
          const double fixed = q[k] / q[i], moving = pi[k] / pi[j];
          if (fixed >= middle * moving) constant += fixed;
          else slope += moving;
        }
        // integral of du / (a + b u)^2 = (hi - lo) / ((a + b lo) (a + b hi))
        const double at_lo = constant + slope * lo;
        law[i * n + j] += hi < infinity ? (hi - lo) / (at_lo * (constant + slope * hi)) : 1 / (slope * at_lo);
      }
    }
  return law;
}

SPECAGG_END
