// SPDX-License-Identifier: Apache-2.0
// The joint distribution of drafted and emitted token under the Gumbel-max coupling, in closed
// form. For tests and analysis: allocates.
#pragma once
#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// Pr[y = x] = sum_i 1 / sum_j max(pi_j / pi_i, q_j / q_i), over the tokens i with mass in both
// rows. Daliri et al. 2024. With the tokens sorted by pi / q, the inner sum is (pi of i and the
// tokens after it) / pi_i + (q of the tokens before i) / q_i. Time O(V log V). Relative error 2^-50
// for V up to 2^20, if no quotient overflows or underflows (then the error is 1e-300 V, absolute).
[[nodiscard]] inline double coupled_acceptance(std::span<const double> q,
                                               std::span<const double> pi) {
  struct accurate_sum {  // Neumaier's
    double sum = 0, rest = 0;
    void add(double x) {
      const double t = sum + x;
      rest += sum >= x ? (sum - t) + x : (x - t) + sum;
      sum = t;  // x >= 0
    }
    double value() const { return sum + rest; }
  };
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < q.size(); ++i)
    if (q[i] > 0 || pi[i] > 0) order.emplace_back(pi[i] / q[i], i);
  std::sort(order.begin(), order.end());
  std::vector<double> from(order.size());  // sum of pi from this token to the last
  accurate_sum after, before, acceptance;
  for (std::size_t n = order.size(); n-- > 0;) {
    after.add(pi[order[n].second]);
    from[n] = after.value();
  }
  for (std::size_t n = 0; n < order.size(); ++n) {
    const std::size_t i = order[n].second;
    if (q[i] > 0 && pi[i] > 0) acceptance.add(1 / (from[n] / pi[i] + before.value() / q[i]));
    before.add(q[i]);
  }
  return acceptance.value();
}

// J(i, j) = Pr[y = i, x = j], V x V, row by row. Off the diagonal, with u = E_j / E_i,
//   J(i, j) = integral from q_j/q_i to pi_j/pi_i of du / (1 + u + S)^2 ,
//   S = sum_{k != i,j} max(q_k/q_i, u pi_k/pi_j) .
// The denominator is linear in u between the points where a maximum switches to its other argument,
// and each piece is integrated exactly. Time O(V^4); after_row(i) is called when row i is done. The
// sum of the diagonal is coupled_acceptance.
template <class F = std::identity>
[[nodiscard]] std::vector<double> coupled_joint_law(std::span<const double> q,
                                                    std::span<const double> pi,
                                                    F&& after_row = F()) {
  const std::size_t n = q.size();
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<double> law(n * n), points;
  for (std::size_t i = 0; i < n; (void)after_row(i++))
    for (std::size_t j = 0; j < n; ++j) {
      if (!(q[i] > 0) || !(pi[j] > 0)) continue;
      if (i == j) {
        double sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum += std::max(pi[k] / pi[i], q[k] / q[i]);
        law[i * n + j] = 1 / sum;
        continue;
      }
      const double from = q[j] / q[i], to = pi[i] > 0 ? pi[j] / pi[i] : inf;
      if (!(from < to)) continue;
      points.assign({from, to});
      for (std::size_t k = 0; k < n; ++k)
        if (k != i && k != j && pi[k] > 0)
          if (const double u = q[k] / q[i] * (pi[j] / pi[k]); u > from && u < to)
            points.push_back(u);
      std::sort(points.begin(), points.end());
      for (std::size_t b = 0; b + 1 < points.size(); ++b) {
        const double lo = points[b], hi = points[b + 1],
                     middle = hi < inf ? 0.5 * (lo + hi) : 2 * lo + 1;
        double constant = 1, slope = 1;
        for (std::size_t k = 0; k < n; ++k) {
          if (k == i || k == j) continue;
          const double fixed = q[k] / q[i], moving = pi[k] / pi[j];
          if (fixed >= middle * moving) constant += fixed;
          else slope += moving;
        }
        // J(i, j) <= min(q_i, pi_j), which is denormal here
        if (!(constant < inf && slope < inf)) continue;
        // integral of du / (a + b u)^2 = (hi - lo) / ((a + b lo) (a + b hi)). Divided twice: the
        // product may be beyond the numbers where the quotient is not
        const double at_lo = constant + slope * lo, at_hi = constant + slope * hi;
        law[i * n + j] += at_hi < inf ? (hi - lo) / at_lo / at_hi : 1 / slope / at_lo;
      }
    }
  return law;
}

SPECAGG_END
