// SPDX-License-Identifier: Apache-2.0
// The place of audit/audit_policy.hpp before version 0.3.
#pragma once
#include <specagg/audit/audit_policy.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/audit/audit_rule.hpp> is <specagg/audit/audit_policy.hpp> since 0.3")
