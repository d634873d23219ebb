// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/binomial.hpp>

#include <cmath>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// P(X = k) for k = 0..n by Pascal's rule, which only adds and multiplies.
std::vector<long double> binomial_law(int n, long double p) {
  std::vector<long double> law{1};
  for (int trial = 0; trial < n; ++trial) {
    law.push_back(0);
    for (std::size_t k = law.size() - 1; k > 0; --k) law[k] = law[k] * (1 - p) + law[k - 1] * p;
    law[0] *= 1 - p;
  }
  return law;
}

}  // namespace

TEST_CASE("binomial probabilities, tails and mean excess are those of Pascal's rule") {
  for (const int n : {1, 2, 3, 7, 20, 40, 300})
    for (const double p : {0.5, 0.25, 0.001, 0.9, 1 - 0x1p-30, 1.0 / 3, 1e-9}) {
      const double q = 1 - p;
      const auto law = binomial_law(n, p);
      long double below = 0, mean_excess = 0;
      CAPTURE(n, p);
      for (int k = 0; k <= n; ++k) {
        const long double here = law[std::size_t(k)];
        long double above = 0;  // P(X >= k), the smallest first
        for (int j = n; j >= k; --j) above += law[std::size_t(j)];
        below += here;
        mean_excess += here * std::max(0.0L, (long double)k - n * (long double)p);
        CAPTURE(k);
        CHECK(log_binomial(n, p, q, k) ==
              Approx(double(std::log(here))).epsilon(1e-13).margin(1e-13));
        CHECK(log_binomial_tail(n, p, q, k) ==
              Approx(double(std::log(k < n * p ? below : above))).epsilon(1e-13).margin(1e-13));
      }
      CHECK(binomial_mean_excess(n, p, q) == Approx(double(mean_excess)).epsilon(1e-12));
    }
}
TEST_CASE(
    "binomial tails of up to 1e9 trials are right to 12 digits, of rare, likely and certain "
    "outcomes") {
  struct known {
    double n, p, k, value;
  };
  // log P(X >= k) or log P(X <= k), with 60 digits, summed term by term (mpmath).
  for (const known& t : {known{10, 0.5, 8, -2.9061201148643039},
                         {1000, 0.5, 600, -22.715259239806746},
                         {1000, 0.5, 400, -22.715259239806746},
                         {1000, 0.00005, 2, -6.7188101944176432},
                         {1000, 0.00005, 3, -10.819300314304092},
                         {1e5, 0.3, 30900, -21.925708855670444},
                         {1e6, 1e-6, 10, -16.009946218349722},
                         {1e6, 0.999999, 999990, -16.009946218088095},
                         {1e9, 1e-12, 1, -6.908255237314971},
                         {1e9, 1e-12, 3, -22.515775290421175},
                         {1e9, 0.5, 500100000, -22.786775621823525},
                         {1e9, 0.25, 249900000, -29.593926078008233},
                         {1e9, 1e-9, 20, -43.28693910019834},
                         {20000, 0.1, 0, -2107.2103131565261},
                         {20000, 0.4, 20000, -18325.8146374831}}) {
    CAPTURE(t.n, t.p, t.k);
    CHECK(log_binomial_tail(t.n, t.p, 1 - t.p, t.k) == Approx(t.value).epsilon(1e-12));
  }
  for (const known& t : {known{10, 0.5, 0, 0.615234375},
                         {1000, 0.1, 0, 3.7815111774976897},
                         {1000, 0.00005, 0, 0.047561411771252029},
                         {1e6, 0.3, 0, 182.81826247370297},
                         {1e9, 1e-12, 0, 0.00099900049983337447},
                         {1e9, 0.25, 0, 5462.7421509877385},
                         {7, 1.0 / 7, 0, 0.33991667708911375}}) {
    CAPTURE(t.n, t.p);
    CHECK(binomial_mean_excess(t.n, t.p, 1 - t.p) == Approx(t.value).epsilon(1e-11));
  }
}
TEST_CASE("outcomes that are certain or impossible have binomial probabilities 1 and 0") {
  CHECK(log_binomial_tail(5, 1, 0, 5) == 0);
  CHECK(std::exp(log_binomial_tail(5, 1, 0, 3)) == 0);
  CHECK(std::exp(log_binomial_tail(5, 1, 0, 0)) == 0);
  CHECK(log_binomial_tail(5, 0, 1, 0) == 0);
  CHECK(std::exp(log_binomial_tail(5, 0, 1, 2)) == 0);
  CHECK(binomial_mean_excess(5, 1, 0) == 0);
}
