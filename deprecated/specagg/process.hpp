// SPDX-License-Identifier: Apache-2.0
// The place of rows/process.hpp before version 0.3.
#pragma once
#include <specagg/rows/process.hpp>

SPECAGG_MOVED("specagg: <specagg/process.hpp> is <specagg/rows/process.hpp> since 0.3")
