// SPDX-License-Identifier: Apache-2.0
// The place of sites/hello.hpp before version 0.3.
#pragma once
#include <specagg/sites/hello.hpp>

SPECAGG_MOVED("specagg: <specagg/site/hello.hpp> is <specagg/sites/hello.hpp> since 0.3")
