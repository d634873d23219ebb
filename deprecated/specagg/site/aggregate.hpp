// SPDX-License-Identifier: Apache-2.0
// The place of sites/aggregate.hpp before version 0.3.
#pragma once
#include <specagg/sites/aggregate.hpp>

SPECAGG_MOVED("specagg: <specagg/site/aggregate.hpp> is <specagg/sites/aggregate.hpp> since 0.3")
