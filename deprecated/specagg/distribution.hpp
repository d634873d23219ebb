// SPDX-License-Identifier: Apache-2.0
// The place of rows/distribution.hpp before version 0.3.
#pragma once
#include <specagg/rows/distribution.hpp>

SPECAGG_MOVED("specagg: <specagg/distribution.hpp> is <specagg/rows/distribution.hpp> since 0.3")
