// SPDX-License-Identifier: Apache-2.0
// A parallel loop over row ranges, for regions of a few microseconds: a step of a small model is some twenty of them.
//
// The caller works too and takes whatever no worker has taken, so a worker that is asleep or was put aside by the
// operating system delays nothing, and one thread means no threads at all. Workers spin for some tens of microseconds
// after the last region, then sleep.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One loop at a time: not to be called from two threads, nor from inside a loop.
class thread_pool {
 public:
  explicit thread_pool(unsigned threads) {
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() {
    stop_.store(true, std::memory_order_relaxed);
    publish(0);
    for (auto& worker : workers_) worker.join();
  }

  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls body(begin, end) for ranges that cover [0, count) once, each a multiple of grain but the last; body must not
  // throw. Which thread runs which range is left to chance, so no result may depend on it.
  template <class Body>
  void for_ranges(std::size_t count, std::size_t grain, Body&& body) {
    // Four ranges a thread: few enough to cost nothing, enough that a late thread leaves little to wait for.
    const auto share = std::max<std::size_t>(grain, count / (4 * std::size_t{threads()}) / grain * grain);
    const auto ranges = (count + share - 1) / share;
    if (workers_.empty() || ranges < 2 || ranges > max_ranges) {
      if (count != 0) body(std::size_t{0}, count);
      return;
    }
    struct job {
      Body& body;
      std::size_t count, share;
    } here{body, count, share};
    job_ = &here;
    run_ = [](void* address, std::size_t range) {
      const auto& j = *static_cast<job*>(address);
      j.body(range * j.share, std::min((range + 1) * j.share, j.count));
    };
    pending_.store(static_cast<std::uint32_t>(ranges), std::memory_order_relaxed);
    publish(static_cast<std::uint32_t>(ranges));
    while (work()) {
    }
    for (int i = 0; i < spins; ++i) {
      if (pending_.load(std::memory_order_acquire) == 0) return;
      spin_pause();
    }
    for (auto left = pending_.load(std::memory_order_acquire); left != 0;
         left = pending_.load(std::memory_order_acquire))
      pending_.wait(left, std::memory_order_acquire);
  }

 private:
  static constexpr std::uint32_t max_ranges = 0xffff;
  static constexpr int spins = 1000;

  // state_: the loop's number in the high half, its ranges not yet taken in the low half. Counting down in one word
  // with the loop's number means that who takes a range takes one of the present loop: job_ and run_ are read after
  // that, and stay as they are until the range is done. A number that comes round again does no harm for the same
  // reason.
  void publish(std::uint32_t ranges) {
    const auto number = (state_.load(std::memory_order_relaxed) >> 16) + 1;
    state_.store(number << 16 | ranges, std::memory_order_seq_cst);
    state_.notify_all();
  }

  // Takes and runs one range; false if none is left.
  bool work() {
    auto state = state_.load(std::memory_order_acquire);
    do {
      if ((state & max_ranges) == 0) return false;
    } while (!state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    run_(job_, (state & max_ranges) - 1);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    return true;
  }

  void serve() {
    while (!stop_.load(std::memory_order_relaxed)) {
      while (work()) {
      }
      const auto seen = state_.load(std::memory_order_acquire);
      if ((seen & max_ranges) != 0) continue;
      bool idle = !stop_.load(std::memory_order_relaxed);
      for (int i = 0; i < spins && idle; ++i) {
        spin_pause();
        idle = state_.load(std::memory_order_relaxed) == seen;
      }
      if (idle) state_.wait(seen, std::memory_order_acquire);
    }
  }

  alignas(64) std::atomic<std::uint32_t> state_{0};
  alignas(64) std::atomic<std::uint32_t> pending_{0};
  std::atomic<bool> stop_{false};
  void* job_ = nullptr;
  void (*run_)(void*, std::size_t) = nullptr;
  std::vector<std::thread> workers_;  // last: they use the rest
};

}  // namespace cpu
SPECAGG_END
