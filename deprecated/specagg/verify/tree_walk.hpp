// SPDX-License-Identifier: Apache-2.0
// The place of verify/detail/tree_walk.hpp before version 0.3.
#pragma once
#include <specagg/verify/detail/tree_walk.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/verify/tree_walk.hpp> is <specagg/verify/detail/tree_walk.hpp> since 0.3")
