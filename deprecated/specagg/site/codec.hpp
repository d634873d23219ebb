// SPDX-License-Identifier: Apache-2.0
// The place of sites/codec.hpp before version 0.3.
#pragma once
#include <specagg/sites/codec.hpp>

SPECAGG_MOVED("specagg: <specagg/site/codec.hpp> is <specagg/sites/codec.hpp> since 0.3")
