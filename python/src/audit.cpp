// SPDX-License-Identifier: Apache-2.0
// The exact audit of a policy under a verifier. Not for each instruction set: nobody waits for it.
#include <string>

#include <specagg/audit/audit_policy.hpp>

#include "any.hpp"

engine::audit engine::audited(const policy& chosen, verifier how) {
  const any_policy policy = make(chosen);
  policy_audit found;
  const auto with = [&](const auto& verifier) { found = audit_policy(policy, verifier); };
  switch (how) {
    case verifier::token: with(token_verifier{}); break;
    case verifier::block: with(block_verifier{}); break;
    case verifier::match: with(match_verifier{}); break;
    case verifier::coupled: with(coupled_verifier{coupled_noise(0)}); break;
  }
  return {found.worst.error, found.pairs, found.undefined + found.no_law, found.passed()};
}
