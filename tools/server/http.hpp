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
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

struct http_limits {
  std::size_t body = 1 << 20, head = 1 << 14;           // bytes of a request
  std::size_t connections = 64;                         // a thread each; more are answered 503
  std::chrono::milliseconds read{10000}, write{10000};  // a whole request; one piece of an answer
};

// Follows the bytes of a body in chunks. cpp-httplib refuses trailers, which may stand after the
// last chunk and say nothing that is needed here, so it does not get them.
class chunk_reader {
 public:
  // Whether this byte, the next one, is of a trailer.
  bool in_trailer(char c) {
    const bool line_begins = std::exchange(line_begins_, c == '\n');
    switch (at_) {
      case part::size:
        if (c == ';') at_ = part::extension;
        else if (c != '\r' && c != '\n') size_ = 16 * std::min(size_, most) + digit(c);
        [[fallthrough]];
      case part::extension:
        if (c == '\n') at_ = size_ > 0 ? part::data : part::trailers;
        return false;
      case part::data:  // and the end of its line
        if (size_ > 0) --size_;
        else if (c == '\n') at_ = part::size;
        return false;
      case part::trailers:
        if (line_begins && (c == '\r' || c == '\n')) at_ = part::end;
        return at_ == part::trailers;
      case part::end: break;
    }
    return false;
  }

 private:
  enum class part { size, extension, data, trailers, end };
  static constexpr std::size_t most = std::size_t(1) << 32;
  static std::size_t digit(char c) {  // what is none cpp-httplib refuses
    return std::size_t(c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' ? (c | 32) - 'a' + 10 : 0);
  }
  part at_ = part::size;
  std::size_t size_ = 0;
  bool line_begins_ = false;
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
        hide_range(to[i]);
        if (!chunks_ || !chunks_->in_trailer(to[i])) to[shown++] = to[i];
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
  void hide_range(char& c) {
    if (!in_head_ || c == '\r') return;
    if (c == '\n') {
      in_head_ = !line_.empty();
      line_.clear();
      return;
    }
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
  std::size_t left_;       // bytes that may still be read
  bool in_head_ = true;    // of the request
  std::string line_ = {};  // the beginning of a line of it
  std::optional<chunk_reader> chunks_{};
  clock::time_point until_, next_probe_{};
};

class http_server final : public httplib::Server {
 public:
  explicit http_server(const http_limits& limits) : limits_(limits) {
    if (pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    set_payload_max_length(limits.body);
    new_task_queue = [this] { return new queue(*this); };
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
  struct queue final : httplib::ThreadPool {
    explicit queue(http_server& of) : ThreadPool(of.limits_.connections), server(of) {}
    // Called by the thread that accepts connections.
    void enqueue(std::function<void()> answer) override {
      if (server.busy_ < server.limits_.connections) try {
          ThreadPool::enqueue([this, answer] {
            answer();
            --server.busy_;
          });
          ++server.busy_;
          return;
        } catch (const std::bad_alloc&) {
        }
      full = true;
      answer();
      full = false;
    }
    http_server& server;
  };
  bool process_and_close_socket(socket_t socket) override {
    if (full) return refuse(socket);
    connection client(socket, ends_[0], limits_);
    current = &client;
    bool closed = false, done = false;
    try {
      done = process_request(client, true, closed, {});
    } catch (const std::exception&) {  // no memory, outside of what the exception handler sees
    }
    current = nullptr;
    client.close();
    return done;
  }
  static bool refuse(socket_t socket) {
    static constexpr std::string_view answer =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        "Retry-After: 1\r\nConnection: close\r\nContent-Length: 66\r\n\r\n"
        R"({"error":{"message":"too many connections","type":"server_error"}})";
    static_assert(answer.size() - answer.find("{") == 66);
    char dropped[4096];
    (void)recv(socket, dropped, sizeof dropped, MSG_DONTWAIT);
    (void)send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(socket);
    return false;
  }

  http_limits limits_;
  int ends_[2];  // a pipe: has a byte once the server ends
  std::atomic<std::size_t> busy_{0};
  static inline thread_local connection* current = nullptr;
  static inline thread_local bool full = false;
};
