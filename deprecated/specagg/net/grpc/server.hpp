// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/grpc/server.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/grpc/server.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/net/grpc/server.hpp> is <specagg/sites/net/grpc/server.hpp> since 0.3")
