// SPDX-License-Identifier: Apache-2.0
// The place of sites/dssd.hpp before version 0.3.
#pragma once
#include <specagg/sites/dssd.hpp>

SPECAGG_MOVED("specagg: <specagg/site/dssd.hpp> is <specagg/sites/dssd.hpp> since 0.3")
