// SPDX-License-Identifier: Apache-2.0
// How many bytes no cache holds.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>

namespace bench {

// Four times the largest cache that a core reaches, and at least 64 MB; 0 if the system does not
// tell its caches. Then no time from memory can be measured: a server's cache may have 480 MB.
inline std::size_t beyond_caches() {
  std::size_t largest = 0;
  for (const auto& cache : benchmark::CPUInfo::Get().caches)
    largest = std::max(largest, std::size_t(cache.size));
  return largest == 0 ? 0 : std::max(std::size_t(64) << 20, 4 * largest);
}

}  // namespace bench
