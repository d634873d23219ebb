// SPDX-License-Identifier: Apache-2.0
// The place of specagg.hpp before version 0.3.
#pragma once
#include <specagg/specagg.hpp>

SPECAGG_MOVED("specagg: <specagg/core.hpp> is <specagg/specagg.hpp> since 0.3")
