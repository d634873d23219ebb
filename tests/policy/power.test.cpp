// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/power.hpp>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

// (sum w x^rho)^(1/rho), and its limit at 0, in long double.
template <std::size_t N>
double plain(const std::array<double, N>& w, double rho, const std::array<double, N>& x) {
  long double sum = 0;
  for (std::size_t k = 0; k < N; ++k) {
    if (w[k] == 0) continue;
    if (x[k] == 0 && rho <= 0) return 0;
    sum += w[k] *
           (rho == 0 ? std::log((long double)x[k]) : std::pow((long double)x[k], (long double)rho));
  }
  return double(rho == 0 ? std::exp(sum) : std::pow(sum, 1 / (long double)rho));
}

}  // namespace

TEST_CASE("power is norm((sum w p^rho)^(1/rho)), holes or not") {
  for (const double rho : {1.0, 2.0, 0.5, 0.3, -0.5, -1.0, -3.0, 7.0, 0.0})
    for (const bool holes : {false, true}) {
      const auto two = [=](auto x) { return plain<2>({0.3, 0.7}, rho, x); };
      CHECK(worst_against<2>(power{0.3, rho}, two, holes) < 1e-13);
      const auto three = [=](auto x) { return plain<3>({0.2, 0.5, 0.3}, rho, x); };
      CHECK(worst_against<3>(power_mean<3>{{0.2, 0.5, 0.3}, rho}, three, holes) < 1e-13);
    }
}
TEST_CASE("rho = 1 is the ensemble, rho = 0 geometric, rho = -1 the harmonic mean") {
  const auto linear = [](auto x) { return 0.3 * x[0] + 0.7 * x[1]; };
  const auto product = [](auto x) { return std::pow(x[0], 0.3) * std::pow(x[1], 0.7); };
  const auto harmonic = [](auto x) { return x[0] * x[1] > 0 ? 1 / (0.3 / x[0] + 0.7 / x[1]) : 0; };
  CHECK(worst_against<2>(power{0.3, 1}, linear, true) < 1e-14);
  CHECK(worst_against<2>(power{0.3, 0}, product, true) < 1e-14);
  CHECK(worst_against<2>(power{0.3, -1}, harmonic, true) < 1e-14);
}
TEST_CASE("the power mean goes over into the geometric one as rho -> 0, in doubles and in floats") {
  numbers n(3);
  for (int trial = 0; trial < 50; ++trial) {
    const std::array<row, 3> rows{softmax(random_logits(n, 30)), softmax(random_logits(n, 30)),
                                  softmax(random_logits(n, 30))};
    for (const double rho : {0.124, 0.126, 1e-2, 1e-4, 1e-6, 1e-9, 1e-12, 1e-300})
      for (const double sign : {1.0, -1.0}) {
        const power_mean<3> policy{{0.2, 0.5, 0.3}, sign * rho};
        row due(30);
        // below 1e-9 long double loses it, and the limit is as good
        for (std::size_t v = 0; v < 30; ++v)
          due[v] = plain<3>(policy.weight, rho < 1e-9 ? 0 : sign * rho,
                            {rows[0][v], rows[1][v], rows[2][v]});
        due = norm(due);
        const row law = law_of(policy, rows), in_floats = law_of<float>(policy, rows);
        REQUIRE((law.size() == 30 && in_floats.size() == 30));
        for (std::size_t v = 0; v < 30; ++v) {
          CHECK(law[v] == Approx(due[v]).epsilon(1e-9).margin(0));
          CHECK(in_floats[v] == Approx(due[v]).epsilon(2e-6).margin(0));
        }
      }
  }
}
TEST_CASE("large rho is max, large -rho is min: no power over- or underflows") {
  numbers n(4);
  for (int trial = 0; trial < 50; ++trial) {
    const std::array<row, 2> rows{softmax(random_logits(n, 30)), softmax(random_logits(n, 30))};
    for (const double rho : {1e5, -1e5, 1e9, -1e9}) {
      row due(30);
      for (std::size_t v = 0; v < 30; ++v)
        due[v] = rho > 0 ? std::max(rows[0][v], rows[1][v]) : std::min(rows[0][v], rows[1][v]);
      const row law = law_of(power{0.3, rho}, rows);
      REQUIRE(law.size() == 30);
      for (std::size_t v = 0; v < 30; ++v)
        CHECK(law[v] == Approx(norm(due)[v]).epsilon(5 / std::fabs(rho)));
    }
  }
}
TEST_CASE(
    "a row of weight 0 counts for nothing, not even where it is far larger, or lacks the token") {
  const row q{0.999999, 1e-6, 0}, p{1e-9, 0.5, 0.5 - 1e-9};
  for (const double rho : {-50.0, -1.0, -0.01, 0.0, 0.01, 1.0, 50.0}) {
    const row law = target_law(power{0, rho}, q, p), other = target_law(power{1, rho}, q, p);
    REQUIRE((law.size() == 3 && other.size() == 3));
    for (std::size_t v = 0; v < 3; ++v) {
      CHECK(law[v] == Approx(p[v]).epsilon(1e-12).margin(0));
      CHECK(other[v] == Approx(q[v]).epsilon(1e-12).margin(0));
    }
  }
}
TEST_CASE("rows that share no token have a power mean for rho > 0 only") {
  const row q{1, 0}, p{0, 1};
  for (const double rho : {0.0, -0.01, -2.0}) {
    status why = status::ok;
    CHECK(target_law(power{0.5, rho}, q, p, &why).empty());
    CHECK(why == status::undefined_target);
  }
  // 0.5^(1/rho) is below the smallest double from rho = 1 / 1075 down
  for (const double rho : {1e-6, 0.0009}) {
    status why = status::ok;
    CHECK(target_law(power{0.5, rho}, q, p, &why).empty());
    CHECK(why == status::undefined_target);
    row law = target_law(power{0.5, rho}, row{0.75, 0.25, 0}, row{0, 0.25, 0.75});
    CHECK(law == row{0, 1, 0});
  }
  CHECK(target_law(power{0.5, 0.002}, q, p) == row{0.5, 0.5});
  for (const double rho : {0.5, 2.0}) {  // 0.25^(1/rho) to 0.75^(1/rho)
    const double a = std::pow(0.25, 1 / rho), b = std::pow(0.75, 1 / rho);
    CHECK(target_law(power{0.25, rho}, q, p)[0] == Approx(a / (a + b)).epsilon(1e-14));
  }
}
TEST_CASE("parameters of a power mean: convex weights, a finite rho") {
  CHECK(valid(power{0.3, -7}));
  CHECK_FALSE(valid(power{1.1, 1}));
  CHECK_FALSE(valid(power{0.5, inf}));
  CHECK_FALSE(valid(power{0.5, std::nan("")}));
  CHECK_FALSE(valid(power_mean<2>{{0.5, 0.6}, 1}));
}
