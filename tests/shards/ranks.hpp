// SPDX-License-Identifier: Apache-2.0
// Ranks for tests of sharded rows: threads, or processes with sockets between them.
#pragma once
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <specagg/shards/sharded_row.hpp>

// A logit, cut off to what S holds.
template <class S>
S logit(double x) {
  if constexpr (std::is_same_v<S, specagg::bf16>)
    return S{std::uint16_t(std::bit_cast<std::uint32_t>(float(x)) >> 16)};
  else return S(x);
}

// Every exchange of these tests, as one type: then rows and verifiers are compiled once. Files that
// begin with this header are compiled together.
using any_exchange = std::function<bool(std::span<const double>, std::span<double>)>;

// What an exchange cost rank 0.
struct traffic {
  std::size_t calls = 0, bytes = 0;
};

// An all-gather between threads.
class thread_ranks {
 public:
  explicit thread_ranks(std::size_t ranks) : barrier_(std::ptrdiff_t(ranks)) {}
  struct exchange {
    thread_ranks* shared;
    std::size_t rank;
    bool operator()(std::span<const double> own, std::span<double> all) {
      return shared->gather(rank, own, all);
    }
  };
  traffic seen;

 private:
  bool gather(std::size_t rank, std::span<const double> own, std::span<double> all) {
    if (rank == 0) {
      ++seen.calls;
      seen.bytes += own.size_bytes();
      all_.resize(all.size());
    }
    barrier_.arrive_and_wait();
    if (own.size() * (rank + 1) <= all_.size())
      std::ranges::copy(own, all_.begin() + std::ptrdiff_t(rank * own.size()));
    barrier_.arrive_and_wait();
    const bool same_size = all.size() == all_.size();
    if (same_size) std::ranges::copy(all_, all.begin());
    barrier_.arrive_and_wait();
    return same_size;
  }
  std::vector<double> all_;
  std::barrier<> barrier_;
};
// What rank 0 of these has sent so far.
inline traffic sent_by(const any_exchange& exchange) {
  return exchange.target<thread_ranks::exchange>()->shared->seen;
}

// body(rank, exchange) in as many threads.
template <class Body>
traffic on_threads(std::size_t ranks, const Body& body) {
  thread_ranks shared(ranks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      any_exchange exchange = thread_ranks::exchange{&shared, r};
      body(r, exchange);
    });
  threads.clear();
  return shared.seen;
}

// An all-gather between processes: rank 0 has a socket to each of the others, and sends them all.
struct process_exchange {
  std::vector<int> sockets;  // of another rank: the one to rank 0
  std::size_t rank;
  bool operator()(std::span<const double> own, std::span<double> all) {
    std::ranges::copy(own, all.begin() + std::ptrdiff_t(rank * own.size()));
    bool ok = true;
    if (rank > 0) return put(sockets[0], own) && get(sockets[0], all);
    for (std::size_t i = 0; i < sockets.size(); ++i)
      ok = ok && get(sockets[i], all.subspan((i + 1) * own.size(), own.size()));
    for (const int s : sockets) ok = ok && put(s, all);
    return ok;
  }
  static bool put(int socket, std::span<const double> x) {
    const auto* at = reinterpret_cast<const char*>(x.data());
    for (std::size_t n = 0; n < x.size_bytes();) {
      const ssize_t k = send(socket, at + n, x.size_bytes() - n, MSG_NOSIGNAL);
      if (k <= 0) return false;
      n += std::size_t(k);
    }
    return true;
  }
  static bool get(int socket, std::span<double> x) {
    auto* at = reinterpret_cast<char*>(x.data());
    for (std::size_t n = 0; n < x.size_bytes();) {
      const ssize_t k = read(socket, at + n, x.size_bytes() - n);
      if (k <= 0) return false;
      n += std::size_t(k);
    }
    return true;
  }
};
// body(rank, exchange) in as many processes, rank 0 in this one; whether it was true in all. Then
// after(exchange) here, when the others have ended.
template <class Body, class After>
bool on_processes(std::size_t ranks, const Body& body, const After& after) {
  process_exchange here{{}, 0};
  std::vector<pid_t> children;
  for (std::size_t r = 1; r < ranks; ++r) {
    int link[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, link) != 0) return false;
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
      close(link[0]);
      for (const int s : here.sockets) close(s);
      any_exchange exchange = process_exchange{{link[1]}, r};
      _exit(body(r, exchange) ? 0 : 1);
    }
    close(link[1]);
    here.sockets.push_back(link[0]);
    children.push_back(child);
  }
  any_exchange of_this = std::ref(here);
  bool good = body(std::size_t{0}, of_this);
  for (const pid_t child : children) {
    int ended = -1;
    waitpid(child, &ended, 0);
    good = good && ended == 0;
  }
  after(of_this);
  for (const int s : here.sockets) close(s);
  return good;
}

// Where shards of V tokens begin: even ones; or, with `uneven`, an empty one and one of one block
// among them, where there are so many.
inline std::vector<std::size_t> begins_of(std::size_t V, std::size_t ranks, bool uneven = false) {
  const std::size_t blocks = specagg::block_count(V);
  std::vector<std::size_t> begins;
  for (std::size_t r = 0; r < ranks; ++r) begins.push_back(blocks * r / ranks);
  if (uneven)
    for (std::size_t r = 1; r < ranks; ++r)
      begins[r] = r < 3 ? std::min<std::size_t>(1, blocks) : std::max(begins[r], begins[2]);
  for (std::size_t& b : begins) b = std::min(b * specagg::block_size, V);
  begins.push_back(V);
  return begins;
}
