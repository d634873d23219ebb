// SPDX-License-Identifier: Apache-2.0
// Calls of several threads in one call of the model: each has the row that it has alone.
#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <specagg/sites/net/gathered.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <semaphore>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using cpu::llama;

static_assert(LogitSource<net::gathered_source<llama>>);

namespace {

// Says how many are in a call, and waits for one that has to come meanwhile.
struct counted : toy_source<float> {
  static inline std::vector<std::size_t> calls;
  static inline std::atomic<std::latch*> first = nullptr;  // the first call waits until it is open
  status fails = status::ok;
  bool throws = false;
  counted() : toy_source<float>(9, 1) {}
  using toy_source<float>::extend;
  static status extend(std::span<addition<counted>> all) {
    calls.push_back(all.size());
    if (std::latch* const open = first.exchange(nullptr)) open->wait();
    for (auto& a : all) {
      if (a.to->throws) throw std::runtime_error("no memory");
      a.why = a.to->fails != status::ok ? a.to->fails : a.to->extend(a.tokens, a.logits);
    }
    return status::ok;
  }
};

}  // namespace

TEST_CASE("what waits while a call runs is the next call, and each has its own status") {
  counted::calls.clear();
  std::latch open(1);
  counted::first = &open;
  const auto with = std::make_shared<net::gathering<counted>>();
  std::vector<net::gathered_source<counted>> all;
  for (int i = 0; i < 5; ++i) all.emplace_back(counted(), with);
  all[3].source().fails = status::model_failed;
  const std::vector<token_id> tokens = {1, 2};
  std::vector<status> why(5);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { why[0] = all[0].extend(tokens, {}); });
  while (counted::first) std::this_thread::yield();
  for (std::size_t i = 1; i < 5; ++i)
    threads.emplace_back([&, i] { why[i] = all[i].extend(tokens, {}); });
  while (with->waiting() < 4) std::this_thread::yield();
  open.count_down();
  for (auto& t : threads) t.join();
  CHECK(counted::calls == std::vector<std::size_t>{1, 4});
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(why[i] == (i == 3 ? status::model_failed : status::ok));
    CHECK(all[i].position() == (i == 3 ? 0 : 2));
  }
  // two calls side by side
  with->allow(2);
  counted::calls.clear();
  std::latch both(1);
  counted::first = &both;
  std::thread held([&] { why[0] = all[0].extend(tokens, {}); });
  while (counted::first) std::this_thread::yield();
  CHECK(all[2].extend(tokens, {}) == status::ok);
  both.count_down();
  held.join();
  CHECK((all[0].position() == 4 && all[2].position() == 4));
  CHECK(counted::calls == std::vector<std::size_t>{1, 1});
  // an exception reaches its caller, and the next call is made
  all[1].source().throws = true;
  CHECK_THROWS_AS(all[1].extend(tokens, {}), std::runtime_error);
  CHECK(all[0].extend(tokens, {}) == status::ok);
}

TEST_CASE("of two calls side by side each is for half of what waits and runs") {
  static std::mutex mutex;
  static std::vector<std::size_t> sizes;
  static std::counting_semaphore<> ends(0);
  struct held : toy_source<float> {
    held() : toy_source<float>(9, 1) {}
    using toy_source<float>::extend;
    static status extend(std::span<addition<held>> all) {
      {
        const std::lock_guard lock(mutex);
        sizes.push_back(all.size());
      }
      ends.acquire();
      for (auto& a : all) a.why = a.to->extend(a.tokens, a.logits);
      return status::ok;
    }
  };
  const auto until = [](std::size_t calls) {
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex);
      if (sizes.size() == calls) return;
    }
  };
  const auto with = std::make_shared<net::gathering<held>>(2);
  const std::vector<token_id> tokens = {1};
  std::atomic<std::size_t> good = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 9; ++i) {
    threads.emplace_back([&] {
      net::gathered_source<held> text(held(), with);
      good += text.extend(tokens, {}) == status::ok;
    });
    if (i < 2) until(i + 1);
  }
  while (with->waiting() < 7) std::this_thread::yield();
  ends.release();
  until(3);
  CHECK(sizes[2] == 4);  // one runs, seven wait
  CHECK(with->waiting() == 3);
  ends.release(9);
  for (auto& t : threads) t.join();
  CHECK(good == 9);
}

TEST_CASE("with two calls at a time no call is made for nothing") {
  static std::atomic<std::size_t> made, empty;
  struct slow : toy_source<float> {
    slow() : toy_source<float>(9, 1) {}
    using toy_source<float>::extend;
    static status extend(std::span<addition<slow>> all) {
      ++(all.empty() ? empty : made);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      for (auto& a : all) a.why = a.to->extend(a.tokens, a.logits);
      return status::ok;
    }
  };
  made = empty = 0;
  const auto with = std::make_shared<net::gathering<slow>>(2);
  const std::vector<token_id> tokens = {1};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      net::gathered_source<slow> text(slow(), with);
      for (int call = 0; call < 50; ++call) (void)text.extend(tokens, {});
    });
  for (auto& t : threads) t.join();
  CHECK((made >= 50 && made <= 300));
  CHECK(empty == 0);
}

TEST_CASE("sessions on threads of their own have the bits that each has alone, on one pool") {
  const auto weights = test::bundled("draft");
  const std::size_t V = weights->vocab;
  for (const unsigned workers : {1u, 2u}) {
    const auto pool = std::make_shared<thread_pool>(workers);
    const auto with = std::make_shared<net::gathering<llama>>();
    std::vector<std::thread> threads;
    std::atomic<std::size_t> same = 0;
    for (unsigned s = 0; s < 8; ++s)
      threads.emplace_back([&, s] {
        net::gathered_source<llama> text(llama(weights, pool, 64), with);
        llama alone(weights, nullptr, 64);
        const auto tokens = test::some_tokens(60, V, s);
        std::vector<float> rows(5 * V), expected(5 * V);
        for (std::size_t i = 0; i + 5 <= 60; i = i + 1 + (i * s) % 5) {
          (void)text.rollback(std::min(i, text.position()));
          (void)alone.rollback(std::min(i, alone.position()));
          const auto next =
              std::span(tokens).subspan(text.position()).first(i + 5 - text.position());
          const auto some = std::min<std::size_t>(next.size(), 5);
          const bool ok = text.extend(next, std::span(rows).first(some * V)) == status::ok &&
                          alone.extend(next, std::span(expected).first(some * V)) == status::ok;
          if (!ok || !test::same_bits(rows, expected)) return;
        }
        ++same;
      });
    for (auto& t : threads) t.join();
    CHECK(same == 8);
  }
}
