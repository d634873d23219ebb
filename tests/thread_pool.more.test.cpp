// SPDX-License-Identifier: Apache-2.0
#include <specagg/thread_pool.hpp>

#include <sys/resource.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"
#include "support/sanitized.hpp"

using specagg::thread_pool;

TEST_CASE("a parallel loop covers every row once, in ranges that are multiples of the grain") {
  for (unsigned threads : {1u, 2u, 3u, 8u}) {
    thread_pool pool(threads);
    CHECK(pool.threads() == threads);
    for (std::size_t grain : {1u, 7u, 16u, 1000u})
      for (std::size_t count : {0u, 1u, 6u, 15u, 16u, 17u, 255u, 4096u, 100000u}) {
        std::vector<unsigned char> seen(count);
        std::atomic<bool> whole = true;
        pool.for_ranges(count, grain, [&](std::size_t begin, std::size_t end) {
          if (begin % grain != 0 || begin >= end || (end % grain != 0 && end != count))
            whole = false;
          for (auto i = begin; i < end; ++i) ++seen[i];  // a data race if two ranges overlap
        });
        CHECK(whole);
        CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      }
  }
}

TEST_CASE("twenty thousand short loops in a row each see what the one before wrote") {
  for (unsigned threads : {2u, 5u}) {
    thread_pool pool(threads);
    std::vector<int> a(64, 0), b(64, 0);
    for (int i = 0; i < 20000; ++i) {
      pool.for_ranges(64, 1, [&](std::size_t begin, std::size_t end) {
        for (auto j = begin; j < end; ++j) b[j] = a[63 - j] + 1;
      });
      std::swap(a, b);
    }
    CHECK(std::all_of(a.begin(), a.end(), [](int n) { return n == 20000; }));
  }
}

TEST_CASE("sleeping workers wake up again, and a pool goes away at any time") {
  for (int i = 0; i < 20; ++i) {
    thread_pool pool(3);
    if (i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int j = 0; j < 3; ++j) {
      std::atomic<std::size_t> sum = 0;
      pool.for_ranges(1000, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
      CHECK(sum == 1000);
      if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

TEST_CASE("workers do take part, and the loop ends when the last of them has") {
  thread_pool pool(2);
  const auto caller = std::this_thread::get_id();
  bool helped = false;
  for (int i = 0; i < 100 && !helped; ++i) {
    std::atomic<bool> other = false;
    std::atomic<std::size_t> done = 0;
    pool.for_ranges(8, 1, [&](std::size_t begin, std::size_t end) {
      const bool worker = std::this_thread::get_id() != caller;
      if (worker) other = true;
      // the caller runs out of ranges first
      std::this_thread::sleep_for(std::chrono::milliseconds(worker ? 5 : 1));
      done += end - begin;
    });
    REQUIRE(done == 8);
    helped = other;
  }
  CHECK(helped);
}

TEST_CASE(
    "a loop inside a loop, and one beside another thread's, runs on the thread that began it") {
  for (const unsigned threads : {1u, 2u, 3u}) {
    thread_pool pool(threads);
    for (int i = 0; i < 200; ++i) {
      std::atomic<std::size_t> outer = 0, inner = 0, moved = 0;
      const auto both = [&] {
        pool.for_ranges(16, 1, [&](std::size_t begin, std::size_t end) {
          outer += end - begin;
          const auto here = std::this_thread::get_id();
          pool.for_ranges(64, 1, [&](std::size_t first, std::size_t last) {
            inner += last - first;
            moved += threads > 1 && std::this_thread::get_id() != here;
          });
        });
      };
      std::thread beside(both);
      both();
      beside.join();
      REQUIRE((outer == 32 && moved == 0));
    }
    CHECK_THROWS_AS(pool.for_ranges(4, 1,
                                    [&](std::size_t, std::size_t) {
                                      pool.for_ranges(4, 1,
                                                      [](std::size_t, std::size_t) { throw 5; });
                                    }),
                    int);
    std::atomic<std::size_t> sum = 0;
    pool.for_ranges(1000, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
    CHECK(sum == 1000);
  }
}

TEST_CASE("one thread means the calling thread") {
  thread_pool pool(1);
  const auto caller = std::this_thread::get_id();
  pool.for_ranges(100, 1,
                  [&](std::size_t, std::size_t) { CHECK(std::this_thread::get_id() == caller); });
}

TEST_CASE(
    "what a range throws reaches the caller when all have ended, once, and the pool goes on") {
  for (unsigned threads : {1u, 2u, 3u, 8u}) {
    thread_pool pool(threads);
    for (std::size_t i = 0; i < 300; ++i) {
      std::atomic<int> now = 0;
      const std::size_t bad = i % 64;
      std::string what;
      try {
        pool.for_ranges(64, 1, [&](std::size_t begin, std::size_t end) {
          ++now;
          const bool throws = i % 3 == 0 || (begin <= bad && bad < end);  // all of them, or one
          if (i % 5 == 0) std::this_thread::yield();
          --now;
          if (throws) throw std::runtime_error("range of " + std::to_string(i));
        });
      } catch (const std::runtime_error& e) {
        what = e.what();
      }
      CHECK(now == 0);
      CHECK(what == "range of " + std::to_string(i));
      std::atomic<std::size_t> sum = 0;
      pool.for_ranges(1000, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
      CHECK(sum == 1000);
    }
    CHECK_THROWS_AS(pool.for_ranges(64, 1, [](std::size_t, std::size_t) { throw 5; }), int);
  }
}

#if !SPECAGG_SANITIZED
TEST_CASE("where the system makes no more threads, a pool has fewer, says how many, and works") {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages == 0) return;  // no Linux
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  // stacks are 8 MiB or so
  for (const std::size_t room : {std::size_t(1) << 20, std::size_t(200) << 20}) {
    rlimit now = before;
    now.rlim_cur = pages * 4096 + room;
    REQUIRE(setrlimit(RLIMIT_AS, &now) == 0);
    unsigned made = 0;
    std::size_t done = 0;
    {
      thread_pool pool(256);
      made = pool.threads();
      std::atomic<std::size_t> sum = 0;
      pool.for_ranges(1000, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
      done = sum;
    }
    setrlimit(RLIMIT_AS, &before);
    CHECK(made < 256);
    CHECK(made >= (room > std::size_t(100) << 20 ? 2 : 1));
    CHECK(done == 1000);
  }
}
#endif

TEST_CASE("idle workers use no processor time") {
  thread_pool pool(4);
  pool.for_ranges(100, 1, [](std::size_t, std::size_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.05);
}
