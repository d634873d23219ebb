// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/lossy.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

std::vector<double> random_row(std::uint64_t seed, std::size_t size, double spread) {
  const random_streams noise(seed);
  std::vector<double> row(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; ++v)
    sum += row[v] = std::exp(spread * noise.uniform({stream::side, std::uint32_t(v), 0}));
  for (double& x : row) x /= sum;
  return row;
}
// The c = 1 / beta with sum (c p - q)+ = R, by sorting the ratios.
double exact_c(const std::vector<double>& q, const std::vector<double>& p, double alpha) {
  double r = 0;
  std::vector<std::pair<double, std::size_t>> ratios;
  for (std::size_t v = 0; v < q.size(); ++v) {
    r += std::max(0.0, q[v] - p[v] / (1 - alpha));
    if (p[v] > 0) ratios.push_back({q[v] / p[v], v});
  }
  std::sort(ratios.begin(), ratios.end());
  double pa = 0, qa = 0;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    pa += p[ratios[i].second];
    qa += q[ratios[i].second];
    const double c = (r + qa) / pa;
    if (i + 1 == ratios.size() || c <= ratios[i + 1].first) return c;
  }
  return 1;
}

// KL(p || pi), in nats.
double divergence(const std::vector<double>& p, const std::vector<double>& pi) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v)
    if (p[v] > 0) sum += p[v] * std::log(p[v] / pi[v]) - p[v] + pi[v];
  return sum;
}
// Whether a law accepts what the law with the exact root accepts, and has its KL but for 4e-6.
bool as_good(const std::vector<double>& law, const std::vector<double>& due,
             const std::vector<double>& q, const std::vector<double>& p) {
  double sum = 0, overlap = 0, due_overlap = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    sum += law[v];
    overlap += std::min(law[v], q[v]);
    due_overlap += std::min(due[v], q[v]);
  }
  const double least = divergence(p, due), kl = divergence(p, law);
  return std::fabs(sum - 1) < 1e-13 && std::fabs(overlap - due_overlap) < 1e-13 &&
         kl <= least * (1 + 4e-6) + 1e-15 && kl >= least * (1 - 1e-9) - 1e-15;
}

}  // namespace

TEST_CASE("exact beta agrees with sorting: acceptance and law are exact, the KL is within 4e-6") {
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    for (const double alpha : {0.0, 0.1, 0.5, 0.9}) {
      const auto q = random_row(2 * seed, 50 + 7 * seed, 6),
                 p = random_row(2 * seed + 1, 50 + 7 * seed, 6);
      const double c = exact_c(q, p, alpha);
      const auto law = target_law(lossy{alpha}, q, p),
                 due = target_law(lossy{alpha, std::max(1 / c, 1 - alpha)}, q, p);
      REQUIRE(due.size() == q.size());
      CHECK(as_good(law, due, q, p));
    }
}
TEST_CASE(
    "alpha = 0 with beta 1 is the target itself, q <= p / (1 - alpha) everywhere is the draft") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.25, 0.5};
  CHECK(target_law(lossy{0, 1}, q, p) == p);
  CHECK(target_law(lossy{0.5}, q, p) == q);
}
TEST_CASE("no residual where mass was rejected hands it to p") {
  // beta = 5: p / 5 is nowhere above q, S = 0 < R
  const std::vector<double> q{0.5, 0.5}, p{0.25, 0.75};
  const auto law = target_law(lossy{0.1, 5}, q, p);
  const double kept = 0.25 / 0.9, rejected = 0.5 - kept;
  CHECK(law[0] == Approx(kept + rejected * 0.25).epsilon(1e-15));
  CHECK(law[1] == Approx(0.5 + rejected * 0.75).epsilon(1e-15));
}
TEST_CASE("the formula printed in the papers is no law where this one is") {
  const std::vector<double> q{0.9, 0.1}, p{0.1, 0.9};
  const double a = 0.2, b = 1;
  double printed = 0, ours = 0;
  const auto law = target_law(lossy{a, b}, q, p);
  for (std::size_t v = 0; v < 2; ++v) {
    printed += std::max(std::min(q[v], p[v] / (1 - a)), p[v] / b);
    ours += law[v];
  }
  CHECK(printed > 1.02);
  CHECK(ours == Approx(1).epsilon(1e-15));
}
TEST_CASE("the search for beta where each step passes one token only") {
  // p = 2^-(i + 2) and q = p 2^-i at token i > 0. Of token 0 little is rejected: 9 and 14 steps.
  std::vector<double> q(40), p(40);
  q[0] = p[0] = 1;
  for (int i = 1; i < 40; ++i) {
    p[0] -= p[std::size_t(i)] = std::ldexp(1.0, -i - 2);
    q[0] -= q[std::size_t(i)] = std::ldexp(1.0, -2 * i - 2);
  }
  for (const double rejected : {1e-6, 1e-9}) {
    const double alpha = 1 - p[0] / (q[0] - rejected), c = exact_c(q, p, alpha);
    const auto law = target_law(lossy{alpha}, q, p), due = target_law(lossy{alpha, 1 / c}, q, p);
    CHECK(as_good(law, due, q, p));
  }
}
TEST_CASE("hostile rows end the search for beta") {
  // Ratios p/q spread over 2^-40 .. 2^40 in both rows, and rows that share no token.
  std::vector<double> q(80), p(80);
  for (int i = 0; i < 80; ++i) {
    q[std::size_t(i)] = std::ldexp(1.0, -i / 2 - 1);
    p[std::size_t(79 - i)] = std::ldexp(1.0, -i / 2 - 1);
  }
  const double sum = std::accumulate(q.begin(), q.end(), 0.0);
  for (double& x : q) x /= sum;
  for (double& x : p) x /= sum;
  for (const double alpha : {0.0, 0.3, 0.999999}) {
    const auto law = target_law(lossy{alpha}, q, p);
    CHECK(std::accumulate(law.begin(), law.end(), 0.0) == Approx(1).epsilon(1e-13));
    const std::vector<double> left{1, 0, 0}, right{0, 0.5, 0.5};
    CHECK(target_law(lossy{alpha}, left, right) == right);
  }
}
