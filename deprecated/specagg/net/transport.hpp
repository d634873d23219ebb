// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/transport.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/transport.hpp>

SPECAGG_MOVED("specagg: <specagg/net/transport.hpp> is <specagg/sites/net/transport.hpp> since 0.3")
