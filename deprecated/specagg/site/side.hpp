// SPDX-License-Identifier: Apache-2.0
// The place of plan/side.hpp before version 0.3.
#pragma once
#include <specagg/plan/side.hpp>

SPECAGG_MOVED("specagg: <specagg/site/side.hpp> is <specagg/plan/side.hpp> since 0.3")
