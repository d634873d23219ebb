// SPDX-License-Identifier: Apache-2.0
// One bidirectional gRPC stream as an outlet: the part that server and client have in common.
#pragma once
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <specagg/sites/net/grpc/options.hpp>
#include <specagg/sites/net/transport.hpp>

SPECAGG_BEGIN
namespace net::detail {

inline constexpr char method[] = "/specagg.Sites/Connect";
// memory of a queued message in addition to its bytes
inline constexpr std::size_t message_overhead = 256;
// a connection that is closing is cut after this time
inline constexpr double closing_seconds = 3;

// The common part of both ends of a stream. Reactor: gRPC's server or client reactor. It exists
// until gRPC has finished with it.
template <class Reactor>
class stream : public Reactor, public outlet, public std::enable_shared_from_this<stream<Reactor>> {
 public:
  explicit stream(const limits& l) : limits_(l), allowance_(2 * l.messages_per_second) {}

  void send(std::span<const std::uint8_t> bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t size = bytes.size() + message_overhead;
    if (!open_ || closing_ || queued_ + size > limits_.most_queued_bytes) return;
    const grpc::Slice slice(bytes.data(), bytes.size());
    out_.emplace_back(&slice, 1);
    queued_ += size;
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }
  void close(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    begin_to_close(why);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return lost();
    std::shared_ptr<listener> to;
    {
      const std::lock_guard lock(mutex_);
      listening_ = true;
      to = listener_;
    }
    try {
      std::vector<grpc::Slice> slices;
      if (in_.Dump(&slices).ok()) {
        bytes_.clear();
        for (const auto& s : slices) bytes_.insert(bytes_.end(), s.begin(), s.end());
        in_.Clear();
        to->received(bytes_);
      }
    } catch (const std::exception&) {
      close("an error at the other end");
    }
    const std::lock_guard lock(mutex_);
    allowance_ = std::min(2 * limits_.messages_per_second,
                          allowance_ + limits_.messages_per_second * since(refilled_));
    heard_ = refilled_ = clock::now();
    listening_ = false;
    if (!open_) return;
    if ((allowance_ -= 1) > 0) this->StartRead(&in_);
    else paused_ = true;
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    queued_ -= out_.front().Length() + message_overhead;
    out_.pop_front();
    if (!ok) {
      out_.clear();
      queued_ = 0;
    }
    if (!open_) return;
    if (!out_.empty()) this->StartWrite(&out_.front());
    else if (closing_) all_sent();
  }
  // Call it every 20 to 50 ms. Continues reading, and ends connections that take too long.
  void tick() {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    // the other end does not read, or not answer
    if (closing_ && since(closing_since_) > closing_seconds) cancel();
    if (!open_) return;
    if (!listening_ && since(heard_) > limits_.silence_seconds)
      begin_to_close("nothing was heard for too long");
    if (open_ && paused_ && since(refilled_) > 0.02) {
      allowance_ += limits_.messages_per_second * since(refilled_);
      refilled_ = clock::now();
      paused_ = false;
      this->StartRead(&in_);
    }
  }
  void cut() {
    const std::lock_guard lock(mutex_);
    if (!gone_) cancel();
  }

 protected:
  static double since(clock::time_point t) {
    return std::chrono::duration<double>(clock::now() - t).count();
  }
  // Asks accept() for a listener and begins to read. False if there is no listener.
  bool listen(const accept_function& accept) {
    std::shared_ptr<stream> self;
    std::shared_ptr<listener> who;
    {
      const std::lock_guard lock(mutex_);
      self = self_;
    }
    try {
      who = accept(self);
    } catch (const std::exception&) {
    }
    const std::lock_guard lock(mutex_);
    listener_ = who;
    heard_ = clock::now();
    if (who && open_) this->StartRead(&in_);
    return who != nullptr;
  }
  virtual void all_sent() = 0;  // all was sent, and no more will be; under the lock
  virtual void finish() = 0;    // no operation begins afterwards; under the lock
  virtual void cancel() = 0;    // running operations fail; under the lock, not after OnDone
  void begin_to_close(const std::string& why) {
    if (!open_ || closing_) return;
    closing_ = true;
    why_ = why;
    closing_since_ = clock::now();
    if (out_.empty()) all_sent();
  }
  void end() {
    if (!open_) return;
    open_ = false;
    if (!closing_) {
      closing_ = true;
      closing_since_ = clock::now();
    }
    finish();
  }
  void lost() {
    const std::lock_guard lock(mutex_);
    end();
  }
  // Called when gRPC makes its last call. `this` may be destroyed when it returns.
  void done(const std::string& status) {
    std::shared_ptr<stream> self;
    std::shared_ptr<listener> listener;
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      open_ = false;
      self.swap(self_);
      listener.swap(listener_);
      why = why_.empty() ? status : why_;
    }
    try {
      if (listener) listener->closed(why);
    } catch (const std::exception&) {
    }
  }

  const limits limits_;
  std::mutex mutex_;
  std::shared_ptr<listener> listener_;
  std::shared_ptr<stream> self_;
  grpc::ByteBuffer in_;
  std::vector<std::uint8_t> bytes_;
  std::deque<grpc::ByteBuffer> out_;
  std::size_t queued_ = 0;
  bool open_ = true, closing_ = false, paused_ = false, listening_ = false, gone_ = false;
  std::string why_;
  double allowance_;
  clock::time_point heard_ = clock::now(), refilled_ = heard_, closing_since_;
};

}  // namespace net::detail
SPECAGG_END
