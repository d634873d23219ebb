// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/kl_bound.hpp>

#include <cmath>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

// By bisection of d = h - p, in long doubles.
double highest(double p, double kl) {
  if (p == 0) return 0;
  if (p == 1 || -std::log(p) <= kl) return 1;
  long double low = 0, high = 1 - p;
  for (int i = 0; i < 200; ++i) {
    const long double d = (low + high) / 2, h = p + d,
                      tails = d < 1 - p ? std::log1p(-d / (1 - p)) : 0;
    (h * std::log1p(d / p) + (1 - h) * tails <= kl ? low : high) = d;
  }
  return double(p + low);
}
row due(const row& q, const row& p, double kl) {
  row pi;
  double r = 0, s = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    r += std::max(q[v] - highest(p[v], kl), 0.);
    s += std::max(p[v] - q[v], 0.);
  }
  for (std::size_t v = 0; v < q.size(); ++v)
    pi.push_back(std::min(q[v], highest(p[v], kl)) +
                 (s > 0 ? r / s * std::max(p[v] - q[v], 0.) : 0));
  return pi;
}
row law_of_floats(const kl_bound& policy, const std::array<row, 2>& rows) {
  const std::vector<float> q(rows[0].begin(), rows[0].end()), p(rows[1].begin(), rows[1].end());
  const auto a = normalise(dense_row<float>(q)), b = normalise(dense_row<float>(p));
  const row_pair both_rows(a, b);
  const auto pi = policy.bind(both_rows);
  row law;
  for (std::size_t v = 0; v < q.size(); ++v) law.push_back(double(pi(at(both_rows, v)).v));
  return law;
}
template <class T>
double worst(const std::array<row, 2>& rows, double kl) {
  const row pi = std::is_same_v<T, float> ? law_of_floats({kl}, rows) : law_of(kl_bound{kl}, rows),
            expected = due(rows[0], rows[1], kl);
  REQUIRE(pi.size() == expected.size());
  double most = 0;
  for (std::size_t v = 0; v < pi.size(); ++v) most = std::max(most, std::fabs(pi[v] - expected[v]));
  return most;
}

}  // namespace

TEST_CASE("kl-bound is its formula, the bound solved by bisection, on rows of any sizes") {
  numbers n(1);
  double doubles = 0, floats = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const std::size_t size = 1 + n.below(60);
    const bool holes = n.below(2) == 0;
    const std::array<row, 2> rows{softmax(random_logits(n, size, holes)),
                                  softmax(random_logits(n, size, holes))};
    // also bounds that differ from p by less than a float does from the next
    const double kl = std::exp(n.between(trial % 2 == 0 ? -35 : -9, 1));
    doubles = std::max(doubles, worst<double>(rows, kl));
    floats = std::max(floats, worst<float>(rows, kl));
  }
  CHECK(doubles < 1e-12);
  CHECK(floats < 1e-6);
}
TEST_CASE("kl-bound with kl 0 is p, with a large one q, and accepts more, the larger kl") {
  numbers n(2);
  for (int trial = 0; trial < 50; ++trial) {
    const std::array<row, 2> rows{softmax(random_logits(n, 40)), softmax(random_logits(n, 40))};
    const row &q = rows[0], &p = rows[1];
    const auto accepted = [&](double kl) {
      const row pi = law_of(kl_bound{kl}, rows);
      double sum = 0;
      for (std::size_t v = 0; v < q.size(); ++v) sum += std::min(q[v], pi[v]);
      return sum;
    };
    const row none = law_of(kl_bound{0}, rows), all = law_of(kl_bound{100}, rows);
    for (std::size_t v = 0; v < q.size(); ++v) {
      CHECK(none[v] == Approx(p[v]).margin(1e-14));
      CHECK(all[v] == Approx(q[v]).epsilon(1e-14));
    }
    double last = accepted(0);
    for (const double kl : {1e-10, 1e-5, 1e-3, 0.03, 0.3, 3.}) {
      CHECK(accepted(kl) >= last);
      last = accepted(kl);
    }
  }
}
TEST_CASE("kl-bound: tokens of probability 0 and 1, tiny ones, and those the target never emits") {
  const auto pi = [](const row& q, const row& p, double kl) {
    return law_of(kl_bound{kl}, std::array{q, p});
  };
  CHECK(pi({1, 0}, {0, 1}, 0.5) == row{0, 1});
  CHECK(pi({0, 1}, {0, 1}, 0.5) == row{0, 1});
  CHECK(pi({1, 0}, {1, 0}, 0) == row{1, 0});
  const double h = highest(1e-30, 0.5);
  CHECK(pi({1, 0}, {1e-30, 1}, 0.5)[0] == Approx(h).epsilon(1e-12));
  CHECK(law_of_floats({0.5}, std::array{row{1, 0}, row{1e-30, 1}})[0] == Approx(h).epsilon(1e-5));
  CHECK(pi({1, 0}, {0.7, 0.3}, 0.5) == row{1, 0});  // -ln 0.7 = 0.357
  CHECK(pi({0.5, 0.5}, {1e-310, 1}, 0.05)[0] == Approx(highest(1e-310, 0.05)).epsilon(1e-9));
}
TEST_CASE("kl-bound takes a finite bound that is not negative") {
  STATIC_REQUIRE(!reads_confidence<kl_bound>);
  CHECK((valid(kl_bound{}) && valid(kl_bound{2})));
  for (const double bad : {-1e-9, double(NAN), inf}) CHECK_FALSE(valid(kl_bound{bad}));
}
