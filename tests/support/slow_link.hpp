// SPDX-License-Identifier: Apache-2.0
// A slow link: a TCP proxy that hands on what it gets a while later. For tests and measurements.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Every byte leaves at the link's rate, one after the other, and arrives `delay` later. Direction
// 0: towards the server.
class slow_link {
 public:
  struct way {
    double delay = 0, bytes_per_second = 0;  // seconds; 0: without limit
  };
  slow_link(int server_port, way up, way down) : server_port_(server_port), ways_{up, down} {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = address(0);
    socklen_t size = sizeof a;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&a), size) != 0 || listen(listener_, 16) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size) != 0 ||
        pipe(wake_.data()) != 0)
      throw std::runtime_error("slow_link: no socket");
    port_ = ntohs(a.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  slow_link(int server_port, way both) : slow_link(server_port, both, both) {}
  ~slow_link() {
    quit_ = true;
    nudge();
    thread_.join();
    close(listener_);
    close(wake_[0]);
    close(wake_[1]);
  }
  slow_link(const slow_link&) = delete;
  slow_link& operator=(const slow_link&) = delete;

  int port() const { return port_; }
  void cut() {
    cut_ = true;
    nudge();
  }  // ends all connections; new ones are taken
  void serve_at(int port) { server_port_ = port; }  // for connections to come
  std::size_t connections() const { return connections_; }
  std::size_t bytes(int direction) const { return bytes_[std::size_t(direction)]; }
  // Changes what comes in before it is handed on: flips bits, drops or doubles a piece.
  void spoil(std::function<void(std::vector<char>&)> how) {
    const std::lock_guard lock(mutex_);
    spoil_ = std::move(how);
  }
  void record(bool on) { record_ = on; }
  // Every byte since record(true), both directions, each as it came.
  std::array<std::string, 2> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  using clock = std::chrono::steady_clock;
  struct chunk {
    clock::time_point due;
    std::vector<char> bytes;
    std::size_t sent = 0;
  };
  struct direction {
    std::deque<chunk> queue = {};
    clock::time_point free = {};  // when the last byte has left
    std::size_t held = 0;
  };
  struct connection {
    std::array<int, 2> socket;  // the client's, the server's
    std::array<direction, 2> to = {};
    bool over = false;
  };
  static constexpr std::size_t most_held = 4 << 20;

  static sockaddr_in address(int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(std::uint16_t(port));
    return a;
  }
  void nudge() { (void)!write(wake_[1], "", 1); }

  void run() {
    std::list<connection> all;
    while (!quit_) {
      std::vector<pollfd> fds{{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
      const auto now = clock::now();
      clock::duration wait = std::chrono::seconds(1);
      for (connection& c : all)
        for (std::size_t d = 0; d < 2; ++d) {  // d: from socket d
          const bool full = c.to[d].held >= most_held;
          short events = short(full ? 0 : POLLIN);
          const auto& back = c.to[1 - d].queue;
          if (!back.empty()) {
            if (back.front().due <= now) events = short(events | POLLOUT);
            else wait = std::min(wait, back.front().due - now);
          }
          fds.push_back({c.socket[d], events, 0});
        }
      const timespec until{0, std::min(999'999'999L, long(std::chrono::nanoseconds(wait).count()))};
      ppoll(fds.data(), fds.size(), &until, nullptr);
      char buffer[65536];
      if (fds[0].revents) (void)!read(wake_[0], buffer, sizeof buffer);
      std::size_t at = 2;
      for (connection& c : all)
        for (std::size_t d = 0; d < 2; ++d, ++at) {
          if (fds[at].revents & (POLLIN | POLLHUP | POLLERR)) take(c, d, buffer, sizeof buffer);
          give(c, 1 - d);
        }
      const bool cut = cut_.exchange(false);
      for (auto it = all.begin(); it != all.end();)
        if (it->over || cut) {
          close(it->socket[0]);
          close(it->socket[1]);
          it = all.erase(it);
        } else {
          ++it;
        }
      if (fds[1].revents & POLLIN) accept_one(all);
    }
    for (connection& c : all) {
      close(c.socket[0]);
      close(c.socket[1]);
    }
  }
  void accept_one(std::list<connection>& all) {
    const int client = accept(listener_, nullptr, nullptr),
              server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in a = address(server_port_);
    const int on = 1;
    if (client < 0 || connect(server, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) {
      close(client);
      close(server);
      return;
    }
    for (const int s : {client, server}) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    all.push_back({{client, server}});
    ++connections_;
  }
  // What came in at socket d goes to the other one.
  void take(connection& c, std::size_t d, char* buffer, std::size_t size) {
    const ssize_t n = recv(c.socket[d], buffer, size, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) c.over = true;
    if (n <= 0) return;
    direction& k = c.to[d];
    const way& w = ways_[d];
    const auto seconds = [](double s) {
      return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(s));
    };
    // in pieces, so that a slow link does not hold back the first bytes
    for (ssize_t from = 0; from < n;) {
      const ssize_t piece = w.bytes_per_second > 0 ? std::min<ssize_t>(n - from, 1500) : n - from;
      k.free = std::max(k.free, clock::now());
      if (w.bytes_per_second > 0) k.free += seconds(double(piece) / w.bytes_per_second);
      chunk& last = k.queue.emplace_back(
          chunk{k.free + seconds(w.delay), {buffer + from, buffer + from + piece}});
      if (const std::lock_guard lock(mutex_); spoil_) spoil_(last.bytes);
      k.held += last.bytes.size();
      from += piece;
    }
    bytes_[d] += std::size_t(n);
    if (record_) {
      const std::lock_guard lock(mutex_);
      recorded_[d].append(buffer, std::size_t(n));
    }
  }
  void give(connection& c, std::size_t d) {
    direction& k = c.to[d];
    while (!k.queue.empty() && k.queue.front().due <= clock::now()) {
      chunk& front = k.queue.front();
      const ssize_t n = ::send(c.socket[1 - d], front.bytes.data() + front.sent,
                               front.bytes.size() - front.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) {
        if (errno != EAGAIN) c.over = true;
        return;
      }
      front.sent += std::size_t(n);
      k.held -= std::size_t(n);
      if (front.sent < front.bytes.size()) return;
      k.queue.pop_front();
    }
  }

  std::atomic<int> server_port_;
  const std::array<way, 2> ways_;
  int listener_ = -1, port_ = 0;
  std::array<int, 2> wake_ = {};
  std::atomic<bool> quit_ = false, cut_ = false, record_ = false;
  std::atomic<std::size_t> connections_ = 0;
  std::array<std::atomic<std::size_t>, 2> bytes_ = {};
  std::mutex mutex_;
  std::function<void(std::vector<char>&)> spoil_;
  std::array<std::string, 2> recorded_;
  std::thread thread_;
};
