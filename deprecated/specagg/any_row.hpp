// SPDX-License-Identifier: Apache-2.0
// The place of rows/any_row.hpp before version 0.3.
#pragma once
#include <specagg/rows/any_row.hpp>

SPECAGG_MOVED("specagg: <specagg/any_row.hpp> is <specagg/rows/any_row.hpp> since 0.3")
