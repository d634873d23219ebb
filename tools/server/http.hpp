// SPDX-License-Identifier: Apache-2.0
// cpp-httplib's server with limits, so that no client can hold a thread or memory for long: one
// request a connection, its time and its bytes are limited, and so are the connections. It ends
// without cutting an answer.
#pragma once
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "resources.hpp"

struct http_limits {
  std::size_t body = 1 << 20, head = 1 << 14;           // bytes of a request
  std::size_t connections = 64;                         // at once; more are answered 503
  std::chrono::milliseconds read{10000}, write{10000};  // a whole request; one piece of an answer
};

// Follows the bytes of a body in chunks (RFC 9112, 7.1). cpp-httplib reads "0x34" as a size, and
// ends a body without an error where a chunk is longer than its size: so that is found here. And it
// refuses trailers, which may stand after the last chunk and say nothing that is needed here, so it
// does not get them.
class chunk_reader {
 public:
  enum class kind { body, trailer, wrong };
  kind next(char c) {
    const char before = std::exchange(before_, c);
    switch (at_) {
      case part::size:
        if (const int d = digit(c); d >= 0) {
          size_ = 16 * std::min(size_, most) + std::size_t(d);
          sized_ = true;
          return kind::body;
        }
        at_ = part::extension;
        return sized_ && (c == ';' || c == '\r') ? kind::body : kind::wrong;
      case part::extension:  // up to the end of the line
        if ((before == '\r') != (c == '\n')) return kind::wrong;
        if (c == '\n') at_ = size_ > 0 ? part::data : part::trailers;
        return kind::body;
      case part::data:
        if (--size_ == 0) at_ = part::end_of_data;
        return kind::body;
      case part::end_of_data:
        if (c == '\r') at_ = part::end_of_line;
        return c == '\r' ? kind::body : kind::wrong;
      case part::end_of_line:
        at_ = part::size;
        sized_ = false;
        return c == '\n' ? kind::body : kind::wrong;
      case part::trailers:
        if (before == '\n' && (c == '\r' || c == '\n')) at_ = part::end;
        return at_ == part::trailers ? kind::trailer : kind::body;
      case part::end: break;
    }
    return kind::body;
  }

 private:
  enum class part { size, extension, data, end_of_data, end_of_line, trailers, end };
  static constexpr std::size_t most = std::size_t(1) << 32;
  static int digit(char c) {  // -1: it is none
    if (c >= '0' && c <= '9') return c - '0';
    c = char(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }
  part at_ = part::size;
  std::size_t size_ = 0;
  bool sized_ = false;  // the size has a digit
  char before_ = 0;     // the last byte
};

// The socket of a client, as cpp-httplib reads and writes it. Reading ends with an error where a
// limit is reached.
class connection final : public httplib::Stream {
 public:
  using clock = std::chrono::steady_clock;
  // ends: a descriptor that can be read once the server ends.
  connection(socket_t socket, int ends, const http_limits& limits)
      : socket_(socket),
        ends_(ends),
        limits_(limits),
        left_(limits.head + limits.body),
        until_(clock::now() + limits.read) {}

  // Whether the client is gone. One that has closed its end may still read, and only what is sent
  // to it tells: then `send` is called, once a second. It sends what changes no answer; false: it
  // could not.
  template <class Send>
  bool gone(Send&& send) {
    pollfd p{socket_, POLLRDHUP, 0};
    if (poll(&p, 1, 0) <= 0) return false;
    if (p.revents & (POLLERR | POLLHUP)) return true;
    if (clock::now() < next_probe_) return false;
    next_probe_ = clock::now() + std::chrono::seconds(1);
    return !send();
  }
  // All bytes that a request may have were read.
  bool full() const { return left_ == 0; }
  // A line of the head begins with a space: it would go on with the one before (RFC 9112, 5.2).
  bool folded() const { return folded_; }
  // Something was sent.
  bool answered() const { return answered_; }
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, std::size_t size) override {
    for (;;) {
      if (left_ == 0 || !wait(POLLIN, until_)) return -1;
      const ssize_t n = recv(socket_, to, std::min(size, left_), 0);
      if (n <= 0) return n;
      left_ -= static_cast<std::size_t>(n);
      ssize_t shown = 0;
      for (ssize_t i = 0; i < n; ++i) {
        read_head(to[i]);
        const auto kind = chunks_ ? chunks_->next(to[i]) : chunk_reader::kind::body;
        if (kind == chunk_reader::kind::wrong) return -1;
        if (kind == chunk_reader::kind::body) to[shown++] = to[i];
      }
      if (shown > 0) return shown;
    }
  }
  // What is read from now on is a body in chunks.
  void expect_chunks() { chunks_.emplace(); }
  ssize_t write(const char* from, std::size_t size) override {
    const auto until = clock::now() + limits_.write;
    for (std::size_t done = 0; done < size;) {
      if (!wait(POLLOUT, until)) return -1;
      answered_ = true;
      const ssize_t n = send(socket_, from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return -1;
      done += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    }
    return static_cast<ssize_t>(size);
  }
  // Closes the connection. The system drops an answer that the client has not read while it still
  // sends, so what it sends is read for a second.
  void close() {
    shutdown(socket_, SHUT_WR);
    char dropped[4096];
    const auto until = clock::now() + std::chrono::seconds(1);
    while (wait(POLLIN, until) && recv(socket_, dropped, sizeof dropped, MSG_DONTWAIT) > 0) {
    }
    ::close(socket_);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  // A part of a JSON text is of no use, so Range is ignored: cpp-httplib, which answers 416 to a
  // range that it does not understand, reads "Rangx".
  void read_head(char& c) {
    if (!in_head_ || c == '\r') return;
    if (c == '\n') {
      in_head_ = !line_.empty();
      line_.clear();
      return;
    }
    folded_ |= line_.empty() && (c == ' ' || c == '\t');
    if (line_.size() < 6) line_ += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    if (line_ == "range") c = 'x';
  }
  // Waits for the socket. Once the server ends, what is not there is not waited for, and what is
  // sent for a second.
  bool wait(short what, clock::time_point until) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd p[] = {{socket_, what, 0}, {ends_, POLLIN, 0}};
    if (left <= 0 || poll(p, 2, static_cast<int>(left)) <= 0) return false;
    if (p[0].revents != 0) return true;
    return what == POLLOUT &&
           poll(p, 1, static_cast<int>(std::min<decltype(left)>(left, 1000))) > 0;
  }
  socket_t socket_;
  int ends_;
  const http_limits& limits_;
  std::size_t left_;     // bytes that may still be read
  bool in_head_ = true;  // of the request
  bool folded_ = false, answered_ = false;
  std::string line_ = {};  // the beginning of a line of it
  std::optional<chunk_reader> chunks_{};
  clock::time_point until_, next_probe_{};
};

class http_server final : public httplib::Server {
 public:
  // Throws where the system gives no pipe, or not even one thread.
  explicit http_server(const http_limits& limits)
      : limits_(limits), queue_(std::make_unique<queue>(limits.connections)) {
    if (pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    set_payload_max_length(limits.body);
    new_task_queue = [this] { return queue_.release(); };
    // cpp-httplib's own let a second server listen on the same port
    set_socket_options([](socket_t s) {
      const int yes = 1;
      setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
  }
  ~http_server() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  // The port that is listened to, any that is free for 0. -1: it cannot be.
  int bind(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    // cpp-httplib lets the system keep 5 connections that are not accepted yet, and reset others.
    if (bound > 0) (void)::listen(svr_sock_, static_cast<int>(limits_.connections));
    return bound;
  }
  // The connection of the request that this thread handles.
  static connection& here() { return *current; }
  // Takes no connection any more, and reads nothing. listen_after_bind() returns when all answers
  // are written: unlike stop(), which leaves those in parts without their ends.
  void finish() {
    (void)::write(ends_[1], "", 1);
    shutdown(svr_sock_, SHUT_RDWR);
  }

 private:
  // A thread for each connection. They are started when they are needed, and kept. Where the system
  // gives no more of them, or a stack would take the memory that requests need, a connection is
  // answered 503.
  class queue final : public httplib::TaskQueue {
   public:
    explicit queue(std::size_t most) : most_(most) { start(); }
    queue(const queue&) = delete;
    ~queue() override { shutdown(); }
    // Called by the thread that accepts connections.
    void enqueue(std::function<void()> answer) override {
      if (take(answer)) return;
      full = true;
      answer();
      full = false;
    }
    void shutdown() override {
      {
        const std::lock_guard hold(lock_);
        ends_ = true;
      }
      work_.notify_all();
      for (std::thread& t : threads_) t.join();
      threads_.clear();
    }

   private:
    void start() {
      threads_.push_back(start_thread([this] { run(); }));
    }
    bool take(const std::function<void()>& answer) {
      const std::lock_guard hold(lock_);
      try {
        if (busy_ == most_) return false;
        if (busy_ == threads_.size()) {
          if (!has_memory(stack_of_thread() + for_requests)) return false;
          start();
        }
        waiting_.push_back(answer);
      } catch (const std::exception&) {
        return false;
      }
      ++busy_;
      work_.notify_one();
      return true;
    }
    void run() {
      std::unique_lock hold(lock_);
      for (;;) {
        work_.wait(hold, [&] { return ends_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        {
          const std::function<void()> answer = std::move(waiting_.front());
          waiting_.pop_front();
          hold.unlock();
          answer();
        }
        hold.lock();
        --busy_;
      }
    }
    // Bytes that no stack takes: of malloc's arenas (64 MiB of addresses each), and of texts.
    static constexpr std::size_t for_requests = least_left + (192 << 20);
    const std::size_t most_;
    std::mutex lock_;
    std::condition_variable work_;
    std::deque<std::function<void()>> waiting_;  // each has a thread that is free
    std::size_t busy_ = 0;                       // connections
    bool ends_ = false;
    std::vector<std::thread> threads_;
  };
  bool process_and_close_socket(socket_t socket) override {
    if (full) return refuse(socket);
    connection client(socket, ends_[0], limits_);
    current = &client;
    bool closed = false, done = false;
    try {
      done = process_request(client, true, closed, {});
    } catch (const std::exception&) {  // no memory, outside of what the exception handler sees
      if (!client.answered()) (void)client.write(no_memory_.data(), no_memory_.size());
    }
    current = nullptr;
    client.close();
    return done;
  }
  // Made at the start: no memory is needed to send it.
  static std::string unavailable(const std::string& why) {
    const std::string body = R"({"error":{"message":")" + why + R"(","type":"server_error"}})";
    return "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
           "Retry-After: 1\r\nConnection: close\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  bool refuse(socket_t socket) const {
    char dropped[4096];
    (void)recv(socket, dropped, sizeof dropped, MSG_DONTWAIT);
    (void)send(socket, full_.data(), full_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(socket);
    return false;
  }

  http_limits limits_;
  int ends_[2];  // a pipe: has a byte once the server ends
  const std::string full_ = unavailable("too many connections"),
                    no_memory_ = unavailable("no memory");
  std::unique_ptr<queue> queue_;  // until cpp-httplib has it
  static inline thread_local connection* current = nullptr;
  static inline thread_local bool full = false;
};
