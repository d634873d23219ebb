// SPDX-License-Identifier: Apache-2.0
// The place of sites/message.hpp before version 0.3.
#pragma once
#include <specagg/sites/message.hpp>

SPECAGG_MOVED("specagg: <specagg/site/message.hpp> is <specagg/sites/message.hpp> since 0.3")
