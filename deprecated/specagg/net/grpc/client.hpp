// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/grpc/client.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/grpc/client.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/net/grpc/client.hpp> is <specagg/sites/net/grpc/client.hpp> since 0.3")
