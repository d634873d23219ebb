// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/grpc/options.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/grpc/options.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/net/grpc/options.hpp> is <specagg/sites/net/grpc/options.hpp> since 0.3")
