// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/acceptance.hpp>

#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/policy/cascade.hpp>
#include <specagg/policy/combine.hpp>
#include <specagg/policy/lossy.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

double total_variation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += std::fabs(a[v] - b[v]) / 2;
  return sum;
}
std::vector<double> random_row(numbers& n, std::size_t size) {
  std::vector<double> row(size);
  double sum = 0;
  for (double& x : row) sum += x = std::exp(2 * n.bell());
  for (double& x : row) x /= sum;
  return row;
}
// Tokens of a round in which draft k is accepted with probability a[k], by adding up every outcome.
double enumerated(const std::vector<double>& a, bool bonus) {
  double sum = 0, reached = 1;
  for (std::size_t k = 0; k < a.size(); ++k) {
    sum += reached * (1 - a[k]) * double(k + 1);
    reached *= a[k];
  }
  return sum + reached * double(a.size() + (bonus ? 1 : 0));
}

}  // namespace

TEST_CASE("geometric_sum is (1 - a^n) / (1 - a), and n at a = 1") {
  static_assert(plan::geometric_sum(0.5, 3) == 1.75 && plan::geometric_sum(1, 7) == 7 &&
                plan::geometric_sum(0, 4) == 1);
  static_assert(plan::geometric_sum(0.5, 0) == 0 && plan::integer_power(0.5, 3) == 0.125 &&
                plan::integer_power(0, 0) == 1);
  for (const double a : {0.0, 0.1, 0.5, 0.9, 0.999999})
    for (const std::size_t n : {std::size_t(1), std::size_t(5), std::size_t(64)}) {
      CHECK(plan::integer_power(a, n) == Approx(std::pow(a, double(n))).epsilon(1e-14));
      CHECK(plan::geometric_sum(a, n) ==
            Approx((1 - std::pow(a, double(n))) / (1 - a)).epsilon(1e-9));
    }
}
TEST_CASE("expected tokens add up over every outcome of a round, with and without bonus") {
  numbers n(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> a(n.below(9));
    for (double& x : a) x = n.uniform();
    const std::vector<double> constant(a.size(), n.uniform());
    for (const bool bonus : {false, true}) {
      CHECK(plan::expected_tokens(a, bonus) == Approx(enumerated(a, bonus)).margin(1e-13));
      if (!constant.empty())
        CHECK(plan::expected_tokens(constant[0], constant.size(), bonus) ==
              Approx(enumerated(constant, bonus)).margin(1e-13));
    }
  }
}
TEST_CASE(
    "the estimate from the rows of one draft is the list's value where the ratios are the "
    "acceptances") {
  const std::vector<draft_acceptance> rows{{0.9, 0.9}, {0.5, 0.5}, {0.25, 0.25}};
  const std::vector<double> a{0.9, 0.5, 0.25};
  CHECK(plan::expected_tokens(std::span<const draft_acceptance>(rows)) ==
        Approx(plan::expected_tokens(a)).epsilon(1e-15));
}
TEST_CASE(
    "an ensemble accepts drafts of q with 1 - (1-lambda) TV >= lambda, of p with 1 - lambda TV >= "
    "1 - lambda") {
  numbers n(2);
  for (int i = 0; i < 300; ++i) {
    const auto q = random_row(n, 5), p = random_row(n, 5);
    const double lambda = n.uniform();
    const auto pi = target_law(ensemble{lambda}, q, p);
    const auto a = plan::ensemble_acceptance(lambda, total_variation(q, p));
    CHECK(a.q == Approx(plan::acceptance(total_variation(q, pi))).epsilon(1e-12));
    CHECK(a.p == Approx(plan::acceptance(total_variation(p, pi))).epsilon(1e-12));
    CHECK((a.q >= lambda && a.p >= 1 - lambda));
  }
}
TEST_CASE(
    "P_reject + TV(pi, p) = TV(q, p) for lossy with beta exact and 1, mixtures and deferral, not "
    "for beta 1 - alpha") {
  numbers n(3);
  double off = 0;
  for (int i = 0; i < 300; ++i) {
    const auto q = random_row(n, 6), p = random_row(n, 6);
    const double alpha = 0.9 * n.uniform(), tv = total_variation(q, p);
    const auto distance = [&](const auto& policy) {
      const auto pi = target_law(policy, q, p);
      const double a = 1 - total_variation(q, pi);
      return total_variation(pi, p) - plan::distance_to_target(tv, a);
    };
    CHECK(std::fabs(distance(lossy{alpha})) < 1e-12);
    CHECK(std::fabs(distance(lossy{alpha, 1})) < 1e-12);
    CHECK(std::fabs(distance(ensemble{alpha})) < 1e-12);
    CHECK(std::fabs(distance(opt{alpha - 0.5})) < 1e-12);
    CHECK(distance(lossy{alpha, 1 - alpha}) > -1e-12);
    off = std::max(off, distance(lossy{alpha, 1 - alpha}));
  }
  CHECK(off > 0.01);
}
TEST_CASE("the Gumbel-max coupling accepts at least (1 - TV) / (1 + TV)") {
  numbers n(4);
  for (int i = 0; i < 300; ++i) {
    const auto q = random_row(n, 4), p = random_row(n, 4);
    double match = 0;
    for (std::size_t a = 0; a < 4; ++a) {
      double sum = 0;
      for (std::size_t b = 0; b < 4; ++b) sum += std::max(p[b] / p[a], q[b] / q[a]);
      match += 1 / sum;
    }
    CHECK(match >= plan::least_coupled_acceptance(total_variation(q, p)) - 1e-12);
  }
}
