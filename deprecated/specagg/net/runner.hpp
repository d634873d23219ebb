// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/runner.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/runner.hpp>

SPECAGG_MOVED("specagg: <specagg/net/runner.hpp> is <specagg/sites/net/runner.hpp> since 0.3")
