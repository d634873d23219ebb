// SPDX-License-Identifier: Apache-2.0
// What the tests of combiners share: rows, and a law to hold against formulas written out in plain
// doubles.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

namespace {

using row = std::vector<double>;
constexpr double inf = std::numeric_limits<double>::infinity();

inline row norm(row w) {
  double sum = 0;
  for (const double x : w) sum += x;
  for (double& x : w) x /= sum;
  return w;
}
// Logits of some spread; every fifth token or so, at random, is masked if `holes`.
inline row random_logits(numbers& n, std::size_t size, bool holes = false) {
  row l(size);
  for (double& x : l) x = holes && n.below(5) == 0 ? -inf : n.between(-4, 4);
  l[n.below(size)] = 1;  // something is left
  return l;
}
inline row softmax(row l) {
  const double top = *std::max_element(l.begin(), l.end());
  for (double& x : l) x = std::exp(x - top);
  return norm(l);
}

inline bool near(const row& a, const row& b) {
  bool is = a.size() == b.size();
  for (std::size_t v = 0; is && v < a.size(); ++v) is = std::fabs(a[v] - b[v]) < 1e-12;
  return is;
}

// The law of N rows; empty if it is undefined.
template <class T = double, class Policy, std::size_t N>
row law_of(const Policy& policy, const std::array<row, N>& rows) {
  if constexpr (N == 2 && std::is_same_v<T, double>) {
    return specagg::target_law(policy, rows[0], rows[1]);
  } else {
    std::array<std::vector<T>, N> x;
    using ready_row = specagg::normal_form<specagg::dense_row<T>>;
    std::array<ready_row, N> ready;
    for (std::size_t k = 0; k < N; ++k) {
      x[k].assign(rows[k].begin(), rows[k].end());
      ready[k] = specagg::normalise(specagg::dense_row<T>(x[k]));
      if (ready[k].why() != specagg::status::ok) FAIL("a row");
    }
    const specagg::model_rows<ready_row, N> all(ready);
    const auto pi = policy.bind(all);
    row law;
    for (std::size_t v = 0; v < all.size(); ++v) law.push_back(double(pi(at(all, v)).v));
    return std::any_of(law.begin(), law.end(), [](double p) { return !(p < inf); }) ? row() : law;
  }
}

// The law is norm(F(row 0 [v], row 1 [v], ...)) for random rows of many sizes, with holes or not.
template <std::size_t N, class Policy, class F>
double worst_against(const Policy& policy, F f, bool holes, std::uint64_t seed = 1) {
  numbers n(seed);
  double worst = 0;
  for (std::size_t trial = 0; trial < 200; ++trial) {
    std::array<row, N> rows;
    const std::size_t size = 1 + n.below(40);
    for (row& r : rows) r = softmax(random_logits(n, size, holes));
    row due(size);
    double total = 0;
    for (std::size_t v = 0; v < size; ++v) {
      std::array<double, N> x;
      for (std::size_t k = 0; k < N; ++k) x[k] = rows[k][v];
      total += due[v] = f(x);
    }
    const row law = law_of(policy, rows);
    if (!(total > 0 && total < inf)) {
      if (!law.empty()) return inf;  // it should have been undefined
      continue;
    }
    if (law.size() != size) return inf;
    for (std::size_t v = 0; v < size; ++v)
      worst = std::max(worst, std::fabs(law[v] - due[v] / total));
  }
  return worst;
}

}  // namespace
