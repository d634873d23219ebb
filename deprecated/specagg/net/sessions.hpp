// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/sessions.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/sessions.hpp>

SPECAGG_MOVED("specagg: <specagg/net/sessions.hpp> is <specagg/sites/net/sessions.hpp> since 0.3")
