// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/coupled_law.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using row = std::vector<double>;

namespace {

// The double sum as it is written, in long double.
double written_out(const row& q, const row& pi) {
  using L = long double;
  L all = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (!(q[i] > 0) || !(pi[i] > 0)) continue;
    L sum = 0;
    for (std::size_t j = 0; j < q.size(); ++j)
      sum += std::max(L(pi[j]) / L(pi[i]), L(q[j]) / L(q[i]));
    all += 1 / sum;
  }
  return double(all);
}
// Probabilities of any spread, some of them 0.
row random_row(numbers& n, std::size_t size, double spread) {
  row x(size);
  double sum = 0;
  for (double& w : x) sum += w = n.below(5) == 0 ? 0 : std::exp(spread * n.bell());
  x[n.below(size)] += 1;
  sum += 1;
  for (double& w : x) w /= sum;
  return x;
}

}  // namespace

TEST_CASE(
    "the coupled acceptance by sorting is the double sum to a relative 2^-50, zeros and ties among "
    "the tokens") {
  numbers n(1);
  double worst = 0;
  const auto check = [&](const row& q, const row& pi) {
    const double due = written_out(q, pi), error = std::fabs(coupled_acceptance(q, pi) - due);
    if (due > 0) worst = std::max(worst, error / due);
    else CHECK(error == 0);
  };
  for (int trial = 0; trial < 1500; ++trial) {
    const std::size_t size = trial < 1400 ? 1 + n.below(40) : 1000 + n.below(1000);
    const row q = random_row(n, size, n.below(2) ? 1 : 12),
              p = random_row(n, size, n.below(2) ? 1 : 12);
    check(q, p);
    check(q, q);
    row mixed(size), chosen(size);  // many equal ratios
    double sum = 0;
    for (std::size_t v = 0; v < size; ++v) {
      mixed[v] = 0.25 * q[v] + 0.75 * p[v];
      sum += chosen[v] = v % 3 ? q[v] : 2 * q[v];
    }
    check(q, mixed);
    if (sum > 0) {
      for (double& x : chosen) x /= sum;
      check(q, chosen);
    }
  }
  std::printf("coupled acceptance: largest relative error 2^%.1f\n", std::log2(worst));
  CHECK(worst < 0x1p-50);
}
TEST_CASE(
    "the coupled acceptance of rows without a common token is 0, of equal ones 1 at any size") {
  CHECK(coupled_acceptance(row{1, 0}, row{0, 1}) == 0);
  CHECK(coupled_acceptance(row{0.5, 0.5, 0}, row{0, 0, 1}) == 0);
  CHECK(coupled_acceptance(row{1}, row{1}) == 1);
  for (const std::size_t size : {3u, 1000u, 151936u}) {
    const row flat(size, 1 / double(size));
    CHECK(std::fabs(coupled_acceptance(flat, flat) - 1) < 0x1p-50);
  }
  const row q{0.5, 5e-324, 0.5}, pi{1e-310, 0.5, 0.5};  // quotients overflow
  CHECK(coupled_acceptance(q, pi) == Approx(written_out(q, pi)).epsilon(1e-14));
}
TEST_CASE(
    "the diagonal of the joint law sums to the acceptance, its columns to pi, at any size of the "
    "probabilities") {
  numbers n(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t size = 1 + n.below(9);
    const row q = random_row(n, size, 200), pi = random_row(n, size, 200);  // denormal ones, too
    std::size_t rows = 0;
    const row joint = coupled_joint_law(q, pi, [&](std::size_t i) { CHECK(i == rows++); });
    CHECK(rows == size);
    double diagonal = 0;
    for (std::size_t j = 0; j < size; ++j) {
      double column = 0;
      for (std::size_t i = 0; i < size; ++i) column += joint[i * size + j];
      CHECK(std::fabs(column - pi[j]) < 1e-12);
      diagonal += joint[j * size + j];
    }
    CHECK(std::fabs(diagonal - coupled_acceptance(q, pi)) < 1e-14);
  }
}
TEST_CASE(
    "the joint law loses no mass where quotients of probabilities are near the largest number") {
  const auto whole = [](const row& q, const row& pi) {
    const std::size_t size = q.size();
    const row joint = coupled_joint_law(q, pi);
    for (std::size_t j = 0; j < size; ++j) {
      double column = 0, line = 0;
      for (std::size_t i = 0; i < size; ++i) {
        column += joint[i * size + j];
        line += joint[j * size + i];
      }
      CHECK(std::fabs(column - pi[j]) < 1e-12);
      CHECK(std::fabs(line - q[j]) < 1e-12);
    }
  };
  whole({0.2, 0.8, 0}, {2.3e-308, 0, 1});
  numbers n(4);
  for (int trial = 0; trial < 2000; ++trial) {  // 1e-309 to 1: one of them is denormal at most
    row q(2 + n.below(5)), pi(q.size());
    const auto tiny = [&] { return std::pow(10, -309 * n.between(0, 1)); };
    double rest_q = 1, rest_pi = 1;
    for (std::size_t v = 1; v < q.size(); ++v) {
      rest_q -= q[v] = n.below(3) == 0 ? 0 : tiny() / double(q.size());
      rest_pi -= pi[v] = n.below(3) == 0 ? 0 : tiny() / double(q.size());
    }
    q[0] = rest_q;
    pi[n.below(q.size())] += rest_pi;
    whole(q, pi);
  }
}
TEST_CASE("a denormal probability leaves the joint law finite") {
  // pi[0] / pi[2] is infinite
  const row q{0.5, 0.5, 0}, pi{0.5, 0.5, 5e-324}, joint = coupled_joint_law(q, pi);
  for (const double x : joint) CHECK((x >= 0 && x <= 1));
  CHECK(joint[0] == Approx(0.5));
  CHECK(joint[4] == Approx(0.5));
}
