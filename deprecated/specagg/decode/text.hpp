// SPDX-License-Identifier: Apache-2.0
// The place of text.hpp before version 0.3.
#pragma once
#include <specagg/text.hpp>

SPECAGG_MOVED("specagg: <specagg/decode/text.hpp> is <specagg/text.hpp> since 0.3")
