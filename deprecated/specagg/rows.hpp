// SPDX-License-Identifier: Apache-2.0
// The place of rows/rows.hpp before version 0.3.
#pragma once
#include <specagg/rows/rows.hpp>

SPECAGG_MOVED("specagg: <specagg/rows.hpp> is <specagg/rows/rows.hpp> since 0.3")
