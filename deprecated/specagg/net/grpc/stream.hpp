// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/grpc/stream.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/grpc/stream.hpp>

SPECAGG_MOVED(
    "specagg: <specagg/net/grpc/stream.hpp> is <specagg/sites/net/grpc/stream.hpp> since 0.3")
