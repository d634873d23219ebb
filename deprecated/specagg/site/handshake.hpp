// SPDX-License-Identifier: Apache-2.0
// The place of sites/handshake.hpp before version 0.3.
#pragma once
#include <specagg/sites/handshake.hpp>

SPECAGG_MOVED("specagg: <specagg/site/handshake.hpp> is <specagg/sites/handshake.hpp> since 0.3")
