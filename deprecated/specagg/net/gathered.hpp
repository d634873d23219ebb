// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/gathered.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/gathered.hpp>

SPECAGG_MOVED("specagg: <specagg/net/gathered.hpp> is <specagg/sites/net/gathered.hpp> since 0.3")
