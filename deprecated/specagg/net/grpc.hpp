// SPDX-License-Identifier: Apache-2.0
// The place of sites/net/grpc.hpp before version 0.3.
#pragma once
#include <specagg/sites/net/grpc.hpp>

SPECAGG_MOVED("specagg: <specagg/net/grpc.hpp> is <specagg/sites/net/grpc.hpp> since 0.3")
