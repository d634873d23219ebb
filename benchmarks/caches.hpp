// SPDX-License-Identifier: Apache-2.0
// How many bytes no cache holds.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace bench {

// Four times the largest cache, but from 64 MB to 1 GB. 0 if the system does not tell its caches,
// or if 1 GB is not twice the largest: then no time from memory can be measured.
constexpr std::size_t beyond(std::size_t largest) {
  constexpr std::size_t least = std::size_t(64) << 20, most = std::size_t(1) << 30;
  const std::size_t bytes = std::clamp(4 * largest, least, most);
  return largest == 0 || bytes < 2 * largest ? 0 : bytes;
}
static_assert(beyond(0) == 0 && beyond(1 << 20) == 64 << 20 && beyond(32 << 20) == 128 << 20);
static_assert(beyond(480 << 20) == 1 << 30 && beyond(std::size_t(513) << 20) == 0);

// Of this machine, or of one whose largest cache has SPECAGG_BENCH_CACHE_MB.
inline std::size_t beyond_caches() {
  if (const char* given = std::getenv("SPECAGG_BENCH_CACHE_MB"))
    return beyond(std::strtoull(given, nullptr, 10) << 20);
  std::size_t largest = 0;
  for (const auto& cache : benchmark::CPUInfo::Get().caches)
    largest = std::max(largest, std::size_t(cache.size));
  return beyond(largest);
}

}  // namespace bench
