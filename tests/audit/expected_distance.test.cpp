// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/expected_distance.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;

// E (X / n - p)+ for a binomial X of n trials with probability x, summed over all k.
double exact_excess(double n, double p, double x) {
  double sum = 0;
  for (double k = std::floor(n * p) + 1; k <= n; ++k)
    sum += (k / n - p) * std::exp(log_binomial(n, x, 1 - x, k));
  return sum;
}
double expected_distance(double n, const row& law, const row& sampler) {
  double sum = 0;
  for (std::size_t i = 0; i < law.size(); ++i) sum += exact_excess(n, law[i], sampler[i]);
  return sum;
}
double total_variation(const row& a, const row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::max(a[i] - b[i], 0.0);
  return sum;
}
// The law with noise of size `step`, at total variation d where that is possible.
row disturbed(const row& law, double d, numbers& random, std::size_t period) {
  row off(law.size());
  for (std::size_t i = 0; i < law.size(); ++i)
    off[i] = law[i] * (period == 0 ? random.between(-1, 1) : i % period == 0 ? 1 : -1);
  const double mean = std::accumulate(off.begin(), off.end(), 0.0);
  row sampler(law.size());
  double low = 0, high = 1e3;
  for (int i = 0; i < 60; ++i) {
    const double scale = (low + high) / 2;
    double sum = 0;
    for (std::size_t v = 0; v < law.size(); ++v)
      sum += sampler[v] = std::max(law[v] + scale * (off[v] - mean * law[v]), 0.0);
    for (double& x : sampler) x /= sum;
    (total_variation(law, sampler) < d ? low : high) = scale;
  }
  return sampler;
}

}  // namespace

TEST_CASE("the mean excess of an outcome has the slope and at least the bend that are stated") {
  for (const double n : {20., 300., 5000.})
    for (const double p : {0.0002, 0.003, 1.0 / 7, 0.25, 0.5, 0.7, 0.95}) {
      const detail::mean_excess u(n, p);
      CAPTURE(n, p);
      CHECK(u.value == Approx(exact_excess(n, p, p)).epsilon(1e-10));
      if (!u.bends) continue;
      const double h = 1e-5 * p;
      CHECK(
          u.slope ==
          Approx((exact_excess(n, p, p + h) - exact_excess(n, p, p - h)) / (2 * h)).epsilon(1e-6));
      for (std::size_t left = 0; left < 2; ++left) {
        double x = p;
        for (std::size_t i = 0; i < u.ends.size(); ++i) {
          const double length = u.length[left][i];
          for (const double part : {0.01, 0.3, 0.7, 0.99}) {
            const double at = left != 0 ? x - part * length : x + part * length;
            const double step = std::min({1e-3 * length, at, 1 - at});
            if (step <= 0) continue;
            const double bend = (exact_excess(n, p, at + step) + exact_excess(n, p, at - step) -
                                 2 * exact_excess(n, p, at)) /
                                (step * step);
            CHECK(bend >= u.bend[left][i] * (1 - 1e-3) - 1e-3);
          }
          x = left != 0 ? x - length : x + length;
        }
      }
    }
}
TEST_CASE(
    "the fall of an outcome's mean excess below its lines is bounded, and not by much more than it "
    "is") {
  double loosest = 1;
  for (const double n : {50., 1000.})
    for (const double p : {0.001, 0.0123, 0.1, 0.4, 0.8}) {
      const detail::mean_excess u(n, p);
      row exact;
      for (int i = 0; i <= 500; ++i) exact.push_back(exact_excess(n, p, i / 500.0));
      for (double x = p / 50; x < std::min(4 * p, 1.0); x += p / 50)
        exact.push_back(exact_excess(n, p, x));
      for (const double mu : {0.4, 0.5, 0.58})
        for (const double lambda : {0.1, 0.2, 0.4, 0.8}) {
          double fall = 0;
          const auto look = [&](double x, double value) {
            fall = std::max(fall, mu * (x - p) + lambda * std::fabs(x - p) / 2 - (value - u.value));
          };
          for (int i = 0; i <= 500; ++i) look(i / 500.0, exact[std::size_t(i)]);
          std::size_t i = 501;
          for (double x = p / 50; x < std::min(4 * p, 1.0); x += p / 50) look(x, exact[i++]);
          CAPTURE(n, p, mu, lambda, u.value);
          const double bound = u.largest_fall(lambda, mu);
          CHECK(bound >= fall - 1e-12);
          if (bound < u.value) loosest = std::max(loosest, bound / fall);
        }
    }
  std::printf("falls are bounded up to a factor of %.2f\n", loosest);
  CHECK(loosest < 2);
}
TEST_CASE(
    "samplers at the distance that is given have the gap in their expected distance, for any "
    "bias") {
  numbers random(3);
  row steep(60), uneven(50);
  for (std::size_t i = 0; i < steep.size(); ++i) steep[i] = std::pow(0.9, double(i));
  for (double& x : uneven) x = random.between(0.2, 1);
  for (row law : {row(80, 1. / 80), steep, uneven}) {
    const double sum = std::accumulate(law.begin(), law.end(), 0.0);
    for (double& x : law) x /= sum;
    for (const double n : {60., 300., 3000.}) {
      const double at_law = expected_distance(n, law, law);
      for (const double gap : {0.002, 0.02, 0.1}) {
        const double d = distance_with_gap(law, n, gap);
        CHECK(d <= gap + at_law + 1e-12);  // Jensen's
        for (const std::size_t period : {0u, 0u, 0u, 2u, 3u, 5u}) {
          const row sampler = disturbed(law, d, random, period);
          if (total_variation(law, sampler) < d * (1 - 1e-9)) continue;  // no such sampler
          CAPTURE(n, gap, d, period);
          CHECK(expected_distance(n, law, sampler) - at_law >= gap * (1 - 1e-6));
        }
      }
    }
  }
  // A flat law of many outcomes is what this is for; half the outcomes more, half less is the worst
  // there.
  const row flat(400, 1. / 400);
  const double n = 8000, gap = 0.005, d = distance_with_gap(flat, n, gap);
  CHECK(d < 0.6 * (gap + expected_distance(n, flat, flat)));
  const row closer = disturbed(flat, 0.6 * d, random, 2);
  CHECK(expected_distance(n, flat, closer) - expected_distance(n, flat, flat) < gap);
}
