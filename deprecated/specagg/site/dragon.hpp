// SPDX-License-Identifier: Apache-2.0
// The place of sites/dragon.hpp before version 0.3.
#pragma once
#include <specagg/sites/dragon.hpp>

SPECAGG_MOVED("specagg: <specagg/site/dragon.hpp> is <specagg/sites/dragon.hpp> since 0.3")
