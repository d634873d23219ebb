// SPDX-License-Identifier: Apache-2.0
// Threads and memory, where the system gives few.
#pragma once
#include <pthread.h>

#include <cstddef>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <specagg/error.hpp>

// Throws specagg::error where the system gives no thread.
template <class F>
std::thread start_thread(F&& run) {
  try {
    return std::thread(std::forward<F>(run));
  } catch (const std::system_error& e) {
    throw specagg::error("threads", "", std::string("the system gives no more: ") + e.what());
  }
}

// Whether there is memory for something of so many bytes.
inline bool has_memory(std::size_t bytes) {
  void* const some = ::operator new(bytes, std::nothrow);
  ::operator delete(some);
  return some;
}
// Bytes that texts leave, as they begin and grow. What parses and writes JSON needs them; they are
// not held, for other threads use them.
inline constexpr std::size_t least_left = 64 << 20;
// For what is about to read or write JSON. A value of nlohmann's needs memory when it is destroyed,
// too, and ends the program where there is none.
inline void need_memory(std::size_t bytes) {
  if (!has_memory(bytes)) throw std::bad_alloc();
}

// Bytes of addresses that a thread takes for its stack.
inline std::size_t stack_of_thread() {
  pthread_attr_t how;
  std::size_t size = 0;
  if (pthread_attr_init(&how) != 0) return 0;
  (void)pthread_attr_getstacksize(&how, &size);
  (void)pthread_attr_destroy(&how);
  return size;
}
