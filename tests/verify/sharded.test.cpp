// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/sharded.hpp>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include <specagg/policy/combine.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/cascade.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/random.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// An all-gather between threads.
struct shared_by_threads {
  std::vector<double> all;
  std::barrier<> barrier;
  std::size_t calls = 0, bytes = 0;  // of rank 0
  explicit shared_by_threads(std::size_t ranks) : all(1000), barrier(std::ptrdiff_t(ranks)) {}
};
struct thread_exchange {
  shared_by_threads& shared;
  std::size_t rank;
  bool operator()(std::span<const double> own, std::span<double> all) {
    if (rank == 0) {
      ++shared.calls;
      shared.bytes += own.size_bytes();
    }
    std::ranges::copy(own, shared.all.begin() + std::ptrdiff_t(rank * own.size()));
    shared.barrier.arrive_and_wait();
    std::copy_n(shared.all.begin(), all.size(), all.begin());
    shared.barrier.arrive_and_wait();
    return true;
  }
};

struct step {
  std::vector<float> q, p;  // [gamma][V], [gamma + 1][V]
  std::vector<token_id> tokens;
  std::size_t V;
  double temperature;
  std::uint64_t seed;
};
struct result {
  verdict v;
  std::vector<emission> emissions;
  bool operator==(const result& o) const {
    bool equal = v.accepted == o.v.accepted && v.emitted == o.v.emitted && v.why == o.v.why;
    for (std::size_t i = 0; equal && i < v.emitted; ++i)
      equal = emissions[i].token == o.emissions[i].token &&
              emissions[i].why == o.emissions[i].why && emissions[i].from == o.emissions[i].from &&
              same(emissions[i].log_p, o.emissions[i].log_p) &&
              same(emissions[i].log_pi, o.emissions[i].log_pi);
    return equal;
  }
};

std::vector<std::size_t> begins_of(std::size_t V, std::size_t ranks) {
  std::vector<std::size_t> begins;
  for (std::size_t r = 0; r < ranks; ++r) begins.push_back(block_count(V) * r / ranks * block_size);
  begins.push_back(V);
  return begins;
}

// One verification with rows that row(logits of a row, its drafted token) makes.
template <class Verifier, class Policy, class Row>
result verified(const step& s, const Verifier& verifier, const Policy& policy, const Row& row) {
  const std::size_t g = s.tokens.size();
  const auto q = rows_of(s.q.size() / s.V, [&](std::size_t j) {
    return row(s.q.data() + j * s.V, j < g ? s.tokens[j] : no_token);
  });
  const auto p = rows_of(s.p.size() / s.V, [&](std::size_t j) {
    return row(s.p.data() + j * s.V, j < g ? s.tokens[j] : no_token);
  });
  random_streams chooser(s.seed, 3);
  result r;
  r.emissions.resize(g + 1);
  std::vector<double> scratch(verify_scratch(s.V) + 1000);
  draft d{.tokens = s.tokens, .start = 5};
  r.v = verifier.verify(d, q, p, policy, chooser, r.emissions, scratch);
  return r;
}
template <class Verifier, class Policy>
result by_rank(const step& s, const Verifier& verifier, const Policy& policy, auto& exchange,
               std::span<const std::size_t> begins, std::size_t rank, bool* failed = nullptr) {
  using E = std::remove_reference_t<decltype(exchange)>;
  std::vector<double> memory(vocabulary_shards<E>::memory_of(begins));
  const vocabulary_shards<E> together(exchange, begins, rank, memory);
  const std::size_t own = begins[rank + 1] - begins[rank];
  std::vector<std::vector<float>> shards;  // nothing else of the rows is there
  std::vector<const float*> of_row;
  const result r = verified(s, verifier, policy, [&](const float* logits, token_id expected) {
    for (std::size_t i = 0; i < of_row.size(); ++i)
      if (of_row[i] == logits)
        return sharded_row<float, E>(shards[i].data(), together, s.temperature, expected);
    of_row.push_back(logits);
    shards.emplace_back(logits + begins[rank], logits + begins[rank] + own);
    return sharded_row<float, E>(shards.back().data(), together, s.temperature, expected);
  });
  if (failed) *failed = together.failed();
  return r;
}
template <class Verifier, class Policy>
std::vector<result> by_threads(const step& s, const Verifier& verifier, const Policy& policy,
                               std::size_t ranks, std::size_t* calls = nullptr,
                               std::size_t* bytes = nullptr) {
  const auto begins = begins_of(s.V, ranks);
  shared_by_threads shared(ranks);
  std::vector<result> results(ranks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      thread_exchange exchange{shared, r};
      results[r] = by_rank(s, verifier, policy, exchange, begins, r);
    });
  threads.clear();
  if (calls) *calls = shared.calls;
  if (bytes) *bytes = shared.bytes;
  return results;
}

step random_step(numbers& random, std::size_t V, std::size_t gamma, double temperature) {
  step s{{}, {}, {}, V, temperature, random.word()};
  s.p.resize((gamma + 1) * V);
  s.q.resize((gamma + 1) * V);
  for (std::size_t i = 0; i < s.p.size(); ++i) {
    s.p[i] = float(8 + 4 * random.bell());
    s.q[i] = s.p[i] + float(0.5 * random.bell());
  }
  switch (random.below(12)) {
    case 0: s.p[random.below(s.p.size())] = std::numeric_limits<float>::quiet_NaN(); break;
    case 1:
      for (float& x : s.p) x += 2e6f;
      break;
    case 2:
      for (std::size_t i = 0; i < s.p.size(); ++i) s.p[i] += float(i / 1024 % 3) * 90;
      break;
    case 3: std::fill_n(s.p.begin(), V, -std::numeric_limits<float>::infinity()); break;
    case 4: std::fill_n(s.q.begin(), V, 1.f); break;
  }
  std::vector<double> scratch(block_count(V));
  random_streams chooser(s.seed, 3);
  for (std::size_t j = 0; j < gamma; ++j) {
    const processed_row<float> row(std::span<const float>(s.q).subspan(j * V, V),
                                   {.temperature = temperature});
    const auto q = row.normalise();
    s.tokens.push_back(q.why() == status::ok
                           ? draw(q, {stream::draft, std::uint32_t(5 + j), 5}, chooser, scratch)
                           : 0);
  }
  return s;
}
template <class Verifier, class Policy>
result whole(const step& s, const Verifier& verifier, const Policy& policy) {
  return verified(s, verifier, policy, [&](const float* logits, token_id) {
    return processed_row<float>(std::span(logits, s.V), {.temperature = s.temperature});
  });
}

template <class Verifier, class Policy>
void check_shards(const Verifier& verifier, const Policy& policy, std::uint64_t seed) {
  numbers random(seed);
  std::size_t rejected = 0, failed = 0, runs = 0;
  for (const std::size_t V : {5u, 1025u, 4000u})
    for (const double temperature : {0.8, 0., 1e-6})
      for (const std::size_t ranks : {1u, 2u, 3u, 5u}) {
        const step s = random_step(random, V, 3, temperature);
        const result due = whole(s, verifier, policy);
        CAPTURE(V, temperature, ranks);
        for (const result& r : by_threads(s, verifier, policy, ranks)) CHECK(r == due);
        rejected += due.v.accepted < 3;
        failed += due.v.why != status::ok;
        ++runs;
      }
  CHECK(rejected > 0);
  CHECK(failed > 0);
  CHECK(failed < runs / 2);
}

}  // namespace

TEST_CASE("sharded rows: every verifier gives what it gives with whole rows, on every rank") {
  check_shards(token_verifier{}, lossless{}, 1);
  check_shards(token_verifier{}, token_v3{0.3}, 2);
  check_shards(token_verifier{}, opt{0.2}, 3);
  check_shards(block_verifier{}, lossless{}, 4);
  check_shards(block_verifier{}, ensemble{0.4}, 5);
  check_shards(match_verifier{}, lossless{}, 6);
  check_shards(coupled_verifier{coupled_noise(7, 3)}, lossless{}, 7);
}

TEST_CASE("sharded rows: messages are few and do not grow with the rows") {
  numbers random(9);
  const std::size_t V = 16 * 1024;
  for (int round = 0; round < 20; ++round) {
    const step s = random_step(random, V, 3, 1);
    std::size_t calls = 0, bytes = 0;
    const auto r = by_threads(s, token_verifier{}, lossless{}, 2, &calls, &bytes)[0];
    if (r.v.why != status::ok || s.p[0] > 1e5f) continue;  // such rows take two exchanges
    // A row: one exchange. Then the weights of the token after the accepted ones, the token, and
    // its logits: of a bonus token the target's, of another one both.
    const bool bonus = r.v.accepted == 3;
    const std::size_t rows = 2 * std::min<std::size_t>(r.v.accepted + 1, 3) + bonus;
    CHECK(calls == rows + 2 + (bonus ? 1 : 2));
    CHECK(bytes == rows * (8 * 16 + 8) + 8 * 8 + 8 + (bonus ? 8 : 16) + 8);
  }
}

TEST_CASE("sharded rows: over processes, the tokens are those of whole rows") {
  numbers random(10);
  const step s = random_step(random, 3000, 3, 0.8);
  const result due = whole(s, token_verifier{}, lossless{});
  int link[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, link) == 0);
  struct process_exchange {
    int fd;
    std::size_t rank;
    bool operator()(std::span<const double> own, std::span<double> all) {
      std::memcpy(all.data() + rank * own.size(), own.data(), own.size_bytes());
      auto* other = reinterpret_cast<char*>(all.data() + (1 - rank) * own.size());
      bool ok = send(fd, own.data(), own.size_bytes(), MSG_NOSIGNAL) == ssize_t(own.size_bytes());
      for (std::size_t n = 0; ok && n < own.size_bytes();) {
        const ssize_t k = read(fd, other + n, own.size_bytes() - n);
        ok = k > 0;
        n += ok ? std::size_t(k) : 0;
      }
      return ok;
    }
  };
  const auto begins = begins_of(s.V, 2);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(link[0]);
    process_exchange exchange{link[1], 1};
    _exit(by_rank(s, token_verifier{}, lossless{}, exchange, begins, 1) == due ? 0 : 1);
  }
  close(link[1]);
  process_exchange exchange{link[0], 0};
  CHECK(by_rank(s, token_verifier{}, lossless{}, exchange, begins, 0) == due);
  int ended = -1;
  waitpid(child, &ended, 0);
  CHECK(ended == 0);
  bool failed = false;  // the other one is gone
  (void)by_rank(s, token_verifier{}, lossless{}, exchange, begins, 0, &failed);
  CHECK(failed);
  close(link[0]);
}

TEST_CASE("sharded rows: an exchange that fails, whichever it is, is told and ends all others") {
  struct failing {
    std::size_t at, calls = 0;
    bool operator()(std::span<const double> own, std::span<double> all) {
      std::ranges::copy(own, all.begin());
      if (calls++ != at) return true;
      std::ranges::fill(all, std::numeric_limits<double>::quiet_NaN());
      return false;
    }
  };
  numbers random(12);
  for (const double temperature : {1., 0.}) {
    step s = random_step(random, 3000, 3, temperature);
    const std::vector<std::size_t> one{0, s.V};
    const auto check = [&](const auto& verifier, const auto& policy) {
      for (std::size_t k = 0;; ++k) {
        failing exchange{k};
        bool failed = false;
        (void)by_rank(s, verifier, policy, exchange, one, 0, &failed);
        CHECK(failed == (exchange.calls > k));
        CHECK(exchange.calls <= k + 1);
        if (!failed) break;
      }
    };
    check(token_verifier{}, lossless{});
    check(token_verifier{}, opt{0.2});
    check(block_verifier{}, lossless{});
    check(match_verifier{}, lossless{});
    check(coupled_verifier{coupled_noise(7, 3)}, lossless{});
  }
}

TEST_CASE("sharded rows: wrong shards and too little memory are refused") {
  shared_by_threads shared(1);
  thread_exchange exchange{shared, 0};
  std::vector<float> logits(3000);
  std::vector<double> memory(100);
  const std::vector<std::size_t> good{0, 3000}, crooked{0, 1000, 3000}, empty{0};
  using shards = vocabulary_shards<thread_exchange>;
  CHECK(sharded_row<float, thread_exchange>(logits.data(), shards(exchange, good, 0, memory))
            .normalise()
            .why() == status::ok);
  for (const shards& bad :
       {shards(exchange, crooked, 0, memory), shards(exchange, good, 1, memory),
        shards(exchange, empty, 0, memory), shards(exchange, good, 0, std::span(memory).first(10))})
    CHECK(sharded_row<float, thread_exchange>(logits.data(), bad).normalise().why() ==
          status::invalid_parameter);
  for (const double temperature : {-1., std::nan(""), 3.4e35, 1e39})
    CHECK(sharded_row<float, thread_exchange>(logits.data(), shards(exchange, good, 0, memory),
                                              temperature)
              .normalise()
              .why() == status::invalid_parameter);
}
