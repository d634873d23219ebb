// SPDX-License-Identifier: Apache-2.0
// A parallel loop over ranges of rows, for loops of a few microseconds. One step of a small model
// has some twenty of them.
//
// The calling thread works too, and takes every range that no worker has taken. So a worker that
// sleeps, or that the operating system has suspended, delays nothing; and with one thread there are
// no workers. Workers spin for some hundreds of microseconds after a loop, then sleep: what a
// decoder does between two calls of a model is shorter than that, and waking threads is slow on
// virtual machines. An exception thrown in a loop reaches the caller.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN

namespace detail {

inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace detail

// Shares out one loop at a time. A loop that begins meanwhile, inside that loop or on another
// thread, runs whole on the thread that began it.
class thread_pool {
 public:
  // If the system makes fewer threads than asked for (limited memory or processes), the pool keeps
  // half of the threads it could make, the calling thread included, because the rest of the program
  // needs threads too. threads() returns the number.
  explicit thread_pool(unsigned threads) {
    while (!start(threads)) {
      threads = this->threads() / 2;
      stop();
    }
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() { stop(); }

  // The calling thread included.
  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls body(begin, end) for ranges that cover [0, count) once. All ranges but the last are
  // multiples of grain. Any thread may run any range, so no result may depend on which. If body
  // throws, ranges that have not begun are skipped. When the others have ended, the caller gets the
  // first exception, and the pool can be used again.
  template <class Body>
  void for_ranges(std::size_t count, std::size_t grain, Body&& body) {
    // Two ranges per thread: taking one costs a fraction of a microsecond, and a late thread causes
    // only a short wait.
    const auto share =
        std::max<std::size_t>(grain, count / (2 * std::size_t{threads()}) / grain * grain);
    const auto ranges = (count + share - 1) / share;
    if (workers_.empty() || ranges < 2 || ranges > max_ranges ||
        busy_.exchange(true, std::memory_order_acquire)) {
      if (count != 0) body(std::size_t{0}, count);
      return;
    }
    using body_type = std::remove_reference_t<Body>;
    body_ = const_cast<void*>(static_cast<const void*>(&body));
    run_ = [](void* address, std::size_t begin, std::size_t end) {
      (*static_cast<body_type*>(address))(begin, end);
    };
    count_ = count;
    share_ = share;
    finished_.store(0, std::memory_order_relaxed);
    publish(static_cast<std::uint32_t>(ranges));
    auto left = static_cast<std::uint32_t>(ranges);  // ranges that workers run
    while (work()) --left;
    for (int i = 0; i < spins && finished_.load(std::memory_order_acquire) != left; ++i)
      detail::spin_pause();
    for (auto seen = finished_.load(std::memory_order_acquire); seen != left;
         seen = finished_.load(std::memory_order_acquire))
      finished_.wait(seen, std::memory_order_acquire);
    std::exception_ptr failure;
    if (failed_.exchange(false, std::memory_order_relaxed))
      failure = std::exchange(failure_, nullptr);
    busy_.store(false, std::memory_order_release);
    if (failure) std::rethrow_exception(failure);
  }

 private:
  static constexpr std::uint32_t max_ranges = 0xffff;
  // of the caller, and of a worker; 20 to 50 ns each
  static constexpr int spins = 1000, idle_spins = 8000;

  // Makes threads until there are as many as asked for, the calling thread included. False if the
  // system makes fewer.
  bool start(unsigned threads) {
    try {
      while (workers_.size() + 1 < threads) workers_.emplace_back([this] { serve(); });
      return true;
    } catch (const std::exception&) {  // system_error, bad_alloc
      return false;
    }
  }
  void stop() {
    stop_.store(true, std::memory_order_relaxed);
    publish(0);
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stop_.store(false, std::memory_order_relaxed);
  }

  // state_: the number of the loop in the high half, the count of its ranges that are not taken in
  // the low half. Both are in one word, so a thread that takes a range takes a range of the present
  // loop. It reads the description of the loop after that, and the description does not change
  // until the range is done. For the same reason it does no harm when the loop number wraps around.
  void publish(std::uint32_t ranges) {
    const auto number = (state_.load(std::memory_order_relaxed) >> 16) + 1;
    state_.store(number << 16 | ranges, std::memory_order_seq_cst);
    state_.notify_all();
  }

  // Takes one range and runs it; false if none is left. The failure_ of a loop is read only after
  // all its ranges have ended.
  bool work() {
    auto state = state_.load(std::memory_order_acquire);
    do {
      if ((state & max_ranges) == 0) return false;
    } while (!state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire));
    const auto begin = ((state & max_ranges) - 1) * share_;
    if (failed_.load(std::memory_order_relaxed)) return true;
    try {
      run_(body_, begin, std::min(begin + share_, count_));
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
    }
    return true;
  }

  void serve() {
    while (!stop_.load(std::memory_order_relaxed)) {
      while (work()) {
        finished_.fetch_add(1, std::memory_order_acq_rel);
        finished_.notify_one();
      }
      const auto seen = state_.load(std::memory_order_acquire);
      if ((seen & max_ranges) != 0) continue;
      bool idle = !stop_.load(std::memory_order_relaxed);
      for (int i = 0; i < idle_spins && idle; ++i) {
        detail::spin_pause();
        idle = state_.load(std::memory_order_relaxed) == seen;
      }
      if (idle) state_.wait(seen, std::memory_order_acquire);
    }
  }

  // in one cache line with what is read after taking a range
  alignas(64) std::atomic<std::uint32_t> state_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};  // a loop is shared out
  void (*run_)(void*, std::size_t, std::size_t) = nullptr;
  void* body_ = nullptr;
  std::size_t count_ = 0, share_ = 0;
  std::atomic<bool> failed_{false};                     // a range of this loop has thrown
  alignas(64) std::atomic<std::uint32_t> finished_{0};  // ranges of this loop that workers have run
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;  // last member: the threads use the others
};

SPECAGG_END
