// SPDX-License-Identifier: Apache-2.0
// The place of sites/simulation.hpp before version 0.3.
#pragma once
#include <specagg/sites/simulation.hpp>

SPECAGG_MOVED("specagg: <specagg/site/simulation.hpp> is <specagg/sites/simulation.hpp> since 0.3")
