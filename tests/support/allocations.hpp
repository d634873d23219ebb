// SPDX-License-Identifier: Apache-2.0
// Counts allocations of a test program, and their bytes. One of its files defines
// SPECAGG_COUNT_ALLOCATIONS before it includes this.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>

extern std::atomic<std::size_t> allocations, allocated_bytes;
// Of memory whose alignment was asked for: blocks that are held; how many more there are to have.
extern std::atomic<std::size_t> aligned_blocks, aligned_blocks_left;

#ifdef SPECAGG_COUNT_ALLOCATIONS
std::atomic<std::size_t> allocations = 0, allocated_bytes = 0, aligned_blocks = 0,
                         aligned_blocks_left = std::size_t(-1);
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
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t alignment) {
  if (aligned_blocks_left == 0) throw std::bad_alloc();
  --aligned_blocks_left;
  ++aligned_blocks;
  ++allocations;
  allocated_bytes += n;
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (n + a - 1) / a * a)) return p;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  --aligned_blocks;
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  operator delete(p, a);
}
#endif
#endif
