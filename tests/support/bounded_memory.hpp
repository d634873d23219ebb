// SPDX-License-Identifier: Apache-2.0
// For fuzzers: how much memory an input makes a program take, against what an input of its size may
// take. (libFuzzer's own limits are one number for all inputs, so a small input passes with any
// factor below it.) With ASan only.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <sanitizer/allocator_interface.h>

namespace test {

// While it lives the program may hold `most` bytes more than before; else it prints a line and
// aborts.
class bounded_memory {
 public:
  explicit bounded_memory(std::size_t most) {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(&taken, &given);
    if (installed == 0) std::abort();
    held() = 0;
    limit() = static_cast<std::ptrdiff_t>(most);
  }
  ~bounded_memory() { limit() = 0; }

 private:
  static std::atomic<std::ptrdiff_t>& held() {
    static std::atomic<std::ptrdiff_t> bytes;
    return bytes;
  }
  static std::atomic<std::ptrdiff_t>& limit() {  // 0: none
    static std::atomic<std::ptrdiff_t> bytes;
    return bytes;
  }
  static void taken(const volatile void*, std::size_t size) {
    const auto now = held() += static_cast<std::ptrdiff_t>(size);
    const auto most = limit().load();
    if (most == 0 || now <= most) return;
    limit() = 0;  // what follows may allocate
    std::fprintf(stderr, "the input takes %td bytes of memory, %td are allowed\n", now, most);
    std::abort();
  }
  static void given(const volatile void* at) {
    held() -= static_cast<std::ptrdiff_t>(__sanitizer_get_allocated_size(at));
  }
};

}  // namespace test
