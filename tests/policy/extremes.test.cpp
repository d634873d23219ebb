// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/extremes.hpp>

#include "policy/plain.hpp"

using namespace specagg;

TEST_CASE(
    "min is the normalised smallest probability, max the largest, of two and of three models") {
  for (const bool holes : {false, true}) {
    CHECK(
        worst_against<2>(minimum<>{}, [](auto x) { return std::min(x[0], x[1]); }, holes) < 1e-15);
    CHECK(
        worst_against<2>(maximum<>{}, [](auto x) { return std::max(x[0], x[1]); }, holes) < 1e-15);
    CHECK(worst_against<3>(
              minimum<3>{}, [](auto x) { return std::min({x[0], x[1], x[2]}); }, holes) < 1e-15);
    CHECK(worst_against<3>(
              maximum<3>{}, [](auto x) { return std::max({x[0], x[1], x[2]}); }, holes) < 1e-15);
  }
}
TEST_CASE("min of rows that share no token is an undefined_target, max of them halves both") {
  // Not {0.5, 0.5, 0, 0}: g++ 12.2 with AVX-512 compiles that initialiser to four times 0.5.
  const row q{0.625, 0.375, 0, 0}, p{0, 0, 0.25, 0.75};
  status why = status::ok;
  CHECK(target_law(minimum<>{}, q, p, &why).empty());
  CHECK(why == status::undefined_target);
  CHECK(target_law(maximum<>{}, q, p) == row{0.3125, 0.1875, 0.125, 0.375});
}
TEST_CASE("min keeps what all rows share, however little it is") {
  const row q{1 - 1e-12, 1e-12, 0}, p{0, 1e-12, 1 - 1e-12};
  CHECK(target_law(minimum<>{}, q, p) == row{0, 1, 0});
}
TEST_CASE("min and max read sampled rows") {
  const row l{2, 0, 1}, m{0, 1, 0.5};
  const softmax_row<double> q(l, 0.5), p(m, 0.5);
  const row qt = softmax({4, 0, 2}), pt = softmax({0, 2, 1});
  row low(3), high(3);
  for (std::size_t v = 0; v < 3; ++v) {
    low[v] = std::min(qt[v], pt[v]);
    high[v] = std::max(qt[v], pt[v]);
  }
  const row least = target_law(minimum<>{}, q, p), most = target_law(maximum<>{}, q, p);
  for (std::size_t v = 0; v < 3; ++v) {
    CHECK(least[v] == Approx(norm(low)[v]).epsilon(1e-13));
    CHECK(most[v] == Approx(norm(high)[v]).epsilon(1e-13));
  }
}
