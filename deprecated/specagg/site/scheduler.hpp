// SPDX-License-Identifier: Apache-2.0
// The place of sites/scheduler.hpp before version 0.3.
#pragma once
#include <specagg/sites/scheduler.hpp>

SPECAGG_MOVED("specagg: <specagg/site/scheduler.hpp> is <specagg/sites/scheduler.hpp> since 0.3")
