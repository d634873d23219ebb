// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/exact_law.hpp>

int main() {
  const digits_from_target policy{{0, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.375, 0.375};
  const std::vector<double> pi = specagg::target_law(policy, q, p);
  return pi == std::vector<double>{0.25, 0.375, 0.375} ? 0 : 1;
}
