// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/combine.hpp>

#include "policy/plain.hpp"

using namespace specagg;

TEST_CASE("ensemble is lambda q + (1 - lambda) p, holes or not") {
  for (const double l : {0.0, 0.25, 0.5, 0.9, 1.0})
    for (const bool holes : {false, true})
      CHECK(worst_against<2>(
                ensemble{l}, [=](auto x) { return l * x[0] + (1 - l) * x[1]; }, holes) < 1e-15);
}
TEST_CASE("mixture is sum w p of any number of models, the first weight on the first") {
  const auto due = [](auto x) { return 0.2 * x[0] + 0.5 * x[1] + 0.3 * x[2]; };
  CHECK(worst_against<3>(mixture<3>{{0.2, 0.5, 0.3}}, due, true) < 1e-15);
  CHECK(worst_against<3>(mixture<3>{{0.5, 0.2, 0.3}}, due, true) > 0.01);
  const std::array<row, 1> one{row{0.25, 0.75}};
  CHECK(law_of(mixture<1>{{1}}, one) == one[0]);
}
TEST_CASE("weights of a mixture are at least 0 and sum to 1") {
  CHECK(valid(mixture<3>{{0.2, 0.5, 0.3}}));
  CHECK_FALSE(valid(mixture<3>{{0.2, 0.5, 0.4}}));
  CHECK_FALSE(valid(mixture<2>{{-0.5, 1.5}}));
  CHECK_FALSE(valid(mixture<2>{{std::nan(""), 1}}));
  for (const double l : {-0.1, 1.1, double(NAN)}) CHECK_FALSE(valid(ensemble{l}));
}
