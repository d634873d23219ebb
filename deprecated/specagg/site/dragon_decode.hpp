// SPDX-License-Identifier: Apache-2.0
// The place of sites/dragon_decode.hpp before version 0.3.
#pragma once
#include <specagg/sites/dragon_decode.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/site/dragon_decode.hpp> is <specagg/sites/dragon_decode.hpp> since 0.3")
