// SPDX-License-Identifier: Apache-2.0
// Counts allocations of a test program, and their bytes. One of its files defines
// SPECAGG_COUNT_ALLOCATIONS before it includes this.
#pragma once
#include <cstdlib>
#include <new>

extern std::size_t allocations, allocated_bytes;

#ifdef SPECAGG_COUNT_ALLOCATIONS
std::size_t allocations = 0, allocated_bytes = 0;
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SPECAGG_ALLOCATIONS_OF_TSAN  // which has operators of its own: nothing is counted
#endif
#endif
#ifndef SPECAGG_ALLOCATIONS_OF_TSAN
// Not inlined: g++ takes the pair for a mismatch where it sees both.
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  allocated_bytes += n;
  if (void* p = std::malloc(n)) return p;
  std::abort();
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return std::malloc(n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
#endif
