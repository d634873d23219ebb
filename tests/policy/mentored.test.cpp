// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/mentored.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;

row random_row(numbers& n, std::size_t size) {
  row x(size);
  double sum = 0;
  for (double& v : x) sum += v = std::exp(n.between(-3, 3));
  for (double& v : x) v /= sum;
  return x;
}
double divergence(const row& p, const row& pi) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += p[v] > 0 ? p[v] * std::log(p[v] / pi[v]) : 0;
  return sum;
}

}  // namespace

TEST_CASE("mentored decoding of two tokens spends its budget as the closed form says") {
  const row q{0.75, 0.25}, p{0.25, 0.75};
  for (const double x : {0.25, 0.3, 0.5, 0.7}) {  // pi = (x, 1 - x), between p and q
    const row pi = target_law(mentored{divergence(p, {x, 1 - x})}, q, p);
    CHECK(pi[0] == Approx(x).margin(1e-12));
    CHECK(pi[1] == Approx(1 - x).margin(1e-12));
  }
}
TEST_CASE("a budget that is nearly nothing is kept to 2e-15, and pi is a law") {
  numbers n(5);
  for (int trial = 0; trial < 60; ++trial) {
    const row q = random_row(n, 2 + n.below(60)), p = random_row(n, q.size());
    for (const double kl : {1e-18, 1e-15, 1e-12, 1e-9}) {
      const row pi = target_law(mentored{kl}, q, p);
      REQUIRE(pi.size() == q.size());
      CHECK(divergence(p, pi) < kl + 2e-15);
    }
  }
}
TEST_CASE("without a budget mentored decoding is lossless, also where the rows are nearly equal") {
  numbers n(3);
  for (int trial = 0; trial < 200; ++trial) {
    const row p = random_row(n, 2 + n.below(60));
    row q = random_row(n, p.size());
    if (trial % 2 == 0)  // a divergence below the rounding of its sum
      for (std::size_t v = 0; v < q.size(); ++v) q[v] = p[v] + 1e-9 * (q[v] - p[v]);
    const row pi = target_law(mentored{0}, q, p);
    for (std::size_t v = 0; v < p.size(); ++v) CHECK(std::fabs(pi[v] - p[v]) < 1e-15);
  }
}
TEST_CASE(
    "mentored decoding spends all of its budget, or needs less and is the draft. More budget "
    "accepts more") {
  numbers n(1);
  for (int trial = 0; trial < 40; ++trial) {
    const std::size_t size = 2 + n.below(60);
    const row q = random_row(n, size), p = random_row(n, size);
    double before = 0;
    for (const double kl : {1e-3, 0.03, 0.3, 1.0, 5.0}) {
      const row pi = target_law(mentored{kl}, q, p);
      REQUIRE(pi.size() == size);
      double accepted = 0, from_draft = 0;
      for (std::size_t v = 0; v < size; ++v) {
        accepted += std::min(q[v], pi[v]);
        from_draft = std::max(from_draft, std::fabs(pi[v] - q[v]));
      }
      if (divergence(p, q) <= kl) CHECK(from_draft < 1e-15);
      else CHECK(divergence(p, pi) == Approx(kl).epsilon(1e-9));
      CHECK(accepted >= before - 1e-12);
      before = accepted;
    }
  }
}
TEST_CASE("mentored decoding clips the ratio q / p to an interval: the optimum of its paper") {
  numbers n(2);
  for (int trial = 0; trial < 40; ++trial) {
    const std::size_t size = 2 + n.below(60);
    const row q = random_row(n, size), p = random_row(n, size),
              pi = target_law(mentored{0.1}, q, p);
    double low = 1, high = 1;
    for (std::size_t v = 0; v < size; ++v) {
      low = std::min(low, pi[v] / p[v]);
      high = std::max(high, pi[v] / p[v]);
    }
    for (std::size_t v = 0; v < size; ++v)
      CHECK(pi[v] / p[v] == Approx(std::clamp(q[v] / p[v], low, high)).epsilon(lossy::enough));
  }
}
TEST_CASE("a draft that never proposes a token of the target cannot be followed for any budget") {
  const row q{1, 0, 0}, p{0.5, 0.25, 0.25};
  const row pi = target_law(mentored{100}, q, p);
  CHECK(divergence(p, pi) <= 100);
  CHECK((pi[1] > 0 && pi[2] > 0));
  CHECK(pi[0] > 0.99);
}
TEST_CASE("mentored decoding of floats is right to 1e-6, for small budgets, too") {
  numbers n(6);
  double worst = 0;
  for (int trial = 0; trial < 25; ++trial) {
    const std::size_t size = 2 + n.below(38);
    const row x = random_row(n, size), y = random_row(n, size);
    const std::vector<float> q(x.begin(), x.end()), p(y.begin(), y.end());
    for (const double kl : {1e-8, 1e-6, 1e-5, 1e-3, 0.1}) {
      const row pi = target_law(mentored{kl}, q, p), due = target_law(mentored{kl}, x, y);
      REQUIRE(pi.size() == size);
      for (std::size_t v = 0; v < size; ++v) worst = std::max(worst, std::fabs(pi[v] - due[v]));
    }
  }
  CHECK(worst < 1e-6);
}
TEST_CASE("mentored decoding is at its bound where p is tiny") {
  for (const double x : {1e-12, 1e-16, 1e-20, 1e-100, 1e-300}) {
    // KL(p || pi) = -ln(1 - pi(0)), but for a part of x
    CHECK(target_law(mentored{0.05}, row{0.5, 0.5}, row{x, 1})[0] ==
          Approx(-std::expm1(-0.05)).epsilon(1e-9));
    CHECK(target_law(mentored{0.6}, row{0.5, 0.5}, row{x, 1})[0] ==
          Approx(-std::expm1(-0.6)).epsilon(1e-9));
  }
}
TEST_CASE("a budget is at least 0") {
  CHECK((valid(mentored{0}) && valid(mentored{infinity})));
  CHECK_FALSE((valid(mentored{-1e-9}) || valid(mentored{double(NAN)})));
}
