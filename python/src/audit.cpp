// SPDX-License-Identifier: Apache-2.0
// The exact audit of a policy under a verifier. Not for each instruction set: nobody waits for it.
#include <string>

#include <specagg/audit/audit_policy.hpp>

#include "any.hpp"

engine::audit engine::audited(const policy& chosen, std::size_t verifier) {
  const any_policy policy = make(chosen);
  policy_audit found;
  with_verifier(verifier, 0, 0, [&](const auto& how) { found = audit_policy(policy, how); });
  return {found.worst.error, found.pairs, found.undefined + found.no_law, found.passed()};
}
