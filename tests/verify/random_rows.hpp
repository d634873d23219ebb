// SPDX-License-Identifier: Apache-2.0
// Rows for the tests of races. Files that begin with this header are compiled together.
#pragma once
#include <cmath>
#include <vector>

#include <specagg/rows/distribution.hpp>

#include "support/catch.hpp"

namespace {

using namespace specagg;

inline std::vector<double> random_row(std::uint32_t seed, std::size_t size, double spread = 4) {
  const random_streams noise(seed);
  std::vector<double> row(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; ++v)
    sum += row[v] = std::exp(spread * noise.uniform({stream::side, std::uint32_t(v), 0}));
  for (double& x : row) x /= sum;
  return row;
}
inline normal_form<dense_row<double>> ready(const std::vector<double>& x) {
  const auto row = normalise(dense_row<double>(x));
  REQUIRE(row.why() == status::ok);
  return row;
}

}  // namespace
