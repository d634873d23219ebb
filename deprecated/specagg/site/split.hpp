// SPDX-License-Identifier: Apache-2.0
// The place of sites/split.hpp before version 0.3.
#pragma once
#include <specagg/sites/split.hpp>

SPECAGG_MOVED("specagg: <specagg/site/split.hpp> is <specagg/sites/split.hpp> since 0.3")
