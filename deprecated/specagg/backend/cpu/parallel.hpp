// SPDX-License-Identifier: Apache-2.0
// The place of thread_pool.hpp before version 0.3.
#pragma once
#include <specagg/thread_pool.hpp>

SPECAGG_MOVED("specagg: <specagg/backend/cpu/parallel.hpp> is <specagg/thread_pool.hpp> since 0.3")

SPECAGG_BEGIN
namespace cpu {
// Its name before version 0.3.
using thread_pool SPECAGG_DEPRECATED("specagg::thread_pool") = specagg::thread_pool;
}  // namespace cpu
SPECAGG_END
