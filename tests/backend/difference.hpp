// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "support/catch.hpp"

namespace test {

// The largest difference of two rows, or of two lists of rows.
inline double difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
  }
  return most;
}

}  // namespace test
