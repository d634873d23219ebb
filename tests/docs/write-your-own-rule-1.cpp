// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/exact_law.hpp>

int main() {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};  // TV = 0.375
  return specagg::target_law(distant{0.3}, q, p) == p &&
                 specagg::target_law(distant{0.4}, q, p) == q
             ? 0
             : 1;
}
