// SPDX-License-Identifier: Apache-2.0
// Calls of one model that come from several threads, such as the sessions of a server, made
// together: while a call runs, other calls wait, and the next call serves all that wait, or a share
// of them. So weights are read once for many, and a session that is alone waits for nothing.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <specagg/logit_source.hpp>

SPECAGG_BEGIN
namespace net {

// Makes the calls. Any thread may use it.
template <BatchLogitSource S>
class gathering {
 public:
  // at_a_time: calls that may run side by side. With more than 1, sources must not share what calls
  // use, such as a thread_pool.
  explicit gathering(std::size_t at_a_time = 1) : at_a_time_(at_a_time) {}
  void allow(std::size_t at_a_time) {
    const std::lock_guard lock(mutex_);
    at_a_time_ = at_a_time;
    wake_next();
  }

  // Does what the addition says, and returns its status. A source is used by one thread at a time.
  // An exception reaches one of the callers; the others of its call get model_failed.
  status extend(const addition<S>& one) {
    request mine{one};
    std::unique_lock lock(mutex_);
    waiting_.push_back(&mine);
    mine.changed.wait(lock, [&] { return mine.done || is_next(mine); });
    if (mine.done) return mine.why;
    // calls side by side share the requests evenly, so that none idles during a long call
    const std::size_t all = waiting_.size() + called_,
                      some = std::min(waiting_.size(), (all + at_a_time_ - 1) / at_a_time_);
    const auto first = waiting_.begin(), last = first + std::ptrdiff_t(some);
    std::vector<request*> now;
    try {
      now.assign(first, last);
    } catch (...) {
      waiting_.erase(first);
      wake_next();
      throw;
    }
    waiting_.erase(first, last);
    ++running_;
    called_ += some;
    wake_next();
    lock.unlock();
    struct leave {  // also by an exception
      gathering& of;
      const std::vector<request*>& now;
      std::unique_lock<std::mutex>& lock;
      ~leave() {
        lock.lock();
        for (request* r : now) {
          r->done = true;
          r->changed.notify_one();
        }
        --of.running_;
        of.called_ -= now.size();
        of.wake_next();
      }
    } const at_end{*this, now, lock};
    std::vector<addition<S>> calls;
    for (const request* r : now) calls.push_back(r->what);
    (void)S::extend(std::span(calls));  // each has its status
    for (std::size_t i = 0; i < calls.size(); ++i) now[i]->why = calls[i].why;
    return mine.why;
  }

  // How many calls wait for the next call of the model.
  std::size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  struct request {
    addition<S> what;
    status why = status::model_failed;
    bool done = false;
    std::condition_variable changed = {};
  };
  // Whether this request is to make the next call, which serves the requests that have waited
  // longest.
  bool is_next(const request& r) const {
    return running_ < at_a_time_ && !waiting_.empty() && waiting_.front() == &r;
  }
  void wake_next() {
    if (!waiting_.empty()) waiting_.front()->changed.notify_one();
  }
  std::mutex mutex_;
  std::vector<request*> waiting_;
  // running_: calls that run. called_: requests that they serve
  std::size_t at_a_time_, running_ = 0, called_ = 0;
};

// A source whose calls are made by a gathering that other sources share. One thread at a time.
template <BatchLogitSource S>
class gathered_source {
 public:
  using value_type = typename S::value_type;
  gathered_source(S source, std::shared_ptr<gathering<S>> with)
      : source_(std::move(source)), with_(std::move(with)) {}
  // The source itself, for everything but calls.
  S& source() { return source_; }
  const S& source() const { return source_; }

  std::size_t vocab_size() const { return source_.vocab_size(); }
  std::size_t capacity() const { return source_.capacity(); }
  std::size_t position() const { return source_.position(); }
  std::span<const token_id> tokens() const
    requires requires(const S& s) { s.tokens(); }
  {
    return source_.tokens();
  }
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    return with_->extend({&source_, tokens, logits});
  }
  status rollback(std::size_t position) { return source_.rollback(position); }
  // As llama::stop_when (backend/cpu/llama.hpp); a call that waits is made first.
  void stop_when(const std::atomic<bool>* flag)
    requires requires(S& s) { s.stop_when(flag); }
  {
    source_.stop_when(flag);
  }

 private:
  S source_;
  std::shared_ptr<gathering<S>> with_;
};

}  // namespace net
SPECAGG_END
