// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/audit_policy.hpp>

int main() {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};
  return specagg::target_law(token_v3{0.4}, q, p) ==
                 specagg::target_law(specagg::token_v3{0.4}, q, p)
             ? 0
             : 1;
}
