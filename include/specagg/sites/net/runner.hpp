// SPDX-License-Identifier: Apache-2.0
// Runs one of two sites (sites/dragon.hpp, sites/dssd.hpp) for real: its model on a separate
// thread, its messages over any transport. All events take the same lock; the site itself does not
// use threads.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/net/transport.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/sites/dssd.hpp>
#include <specagg/sites/scheduler.hpp>

SPECAGG_BEGIN
namespace net {

// Reports what happens. The functions are called under the runner's lock, in order, and must return
// quickly.
struct observer {
  virtual ~observer() = default;
  virtual void emitted(std::uint32_t /*position*/, token_id) {}
  // DRAGON: this end received the outcome of a single step
  virtual void settled(const sites::dragon_outcome&) {}
  virtual void drafted(std::uint32_t /*step*/, clock::time_point /*begin*/,
                       clock::time_point /*end*/, bool /*used*/) {
  }  // used = false: stopped, or its prefix was rejected meanwhile
  virtual void message(bool /*sent*/, std::span<const std::uint8_t>) {}
  virtual void connection(bool /*made*/) {}
};

// The measurements for the scheduler of a dragon_site: a profile that the scheduler shares with its
// runner. Also informs an observer.
struct watched_profile {
  std::shared_ptr<sites::live_profile> profile;
  observer* watch;
  void observe(const sites::dragon_outcome& o) {
    profile->observe(o);
    watch->settled(o);
  }
  plan::dragon setting() const { return profile->setting(); }
};

// Counts since a site was made. given_up: decodings that were stopped, failed or came too late.
// decode_seconds: of all decodings.
struct counters {
  // messages and their bytes; damaged messages do not count as received
  std::size_t sent = 0, received = 0, bytes_sent = 0, bytes_received = 0;
  std::size_t decodes = 0, given_up = 0, connections = 0;
  double decode_seconds = 0;
};

// A site behind an interface that does not depend on its type.
class running_site {
 public:
  virtual ~running_site() = default;
  // A connection was made (an earlier connection, if any, is closed) or lost, or a message came.
  // Messages `from` an outlet that was replaced are ignored. A damaged message ends the connection
  // and is no problem().
  virtual void connected(std::shared_ptr<outlet> to) = 0;
  virtual void disconnected(const outlet* from) = 0;
  virtual bool online() = 0;
  virtual void received(const outlet* from, std::span<const std::uint8_t> bytes) = 0;
  virtual void tick() = 0;  // every 20 to 50 ms
  virtual bool finished() = 0;
  virtual std::string problem() = 0;  // why nothing happens until the next connection; or empty
  virtual std::vector<token_id> text() = 0;
  virtual counters count() = 0;
  virtual double round_trip() = 0;
  // Calls f() while nothing happens to the site, its profile and its observer. f must not call any
  // of the above.
  virtual void at_rest(const std::function<void()>& f) = 0;
};

// Sends a refusal and closes the connection. The other end reports it as its problem. version: the
// protocol version of the other end.
inline void refuse(outlet& to, const std::string& why,
                   std::uint32_t version = sites::protocol_version) {
  std::array<std::uint8_t, 4 + sites::most_text_in_message + sites::checksum_bytes> buffer;
  const std::string line = printable(why, sites::most_text_in_message);
  const std::size_t n =
      encode(sites::refusal{sites::short_text(line)}, sites::hello{.version = version}, buffer);
  to.send(std::span<const std::uint8_t>(buffer).first(n));
  to.close(line);
}

// Site: dragon_site, split_device or split_server of floats. Model, used by the runner's thread
// alone:
//   vocab_size()
//   status see(text, logits, h, stop)   the logits after each of the last logits.size() / V tokens
//                                       of text, and h (see aggregate.hpp); if `stop` becomes true
//                                       it may return status::stopped
// A device of split verification drafts nothing more in a round where its model answers no_draft or
// context_full. If a model fails otherwise, by its status or an exception, it is called again at
// the next connection. The constructor throws specagg::error if the system makes no thread.
template <class Site, class Model>
class runner final : public running_site {
 public:
  runner(std::unique_ptr<Site> site, std::shared_ptr<Model> model, const sites::hello& terms,
         const sampling& sample, std::shared_ptr<sites::live_profile> profile,
         std::shared_ptr<observer> watch)
      : site_(std::move(site)),
        model_(std::move(model)),
        sample_(sample),
        only_drafts_(terms.kind >= sites::protocol::dsd && terms.from == side::l),
        profile_(std::move(profile)),
        watch_(std::move(watch)),
        logits_((terms.kind >= sites::protocol::dsd && terms.from == side::r ? terms.look_ahead + 1
                                                                             : 1) *
                model_->vocab_size()) {
    {
      const std::lock_guard lock(mutex_);
      sink s{*this};
      site_->start(s);
    }
    try {
      thread_ = std::thread([this] { work(); });  // last: nothing may throw while it runs
    } catch (const std::system_error& e) {
      throw error("this site", "", "no thread can be made for it (" + printable(e.what()) + ")");
    }
  }
  ~runner() override {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void connected(std::shared_ptr<outlet> to) override {
    const std::lock_guard lock(mutex_);
    drop("another connection of this session was made");
    to_ = std::move(to);
    ++count_.connections;
    ticked_ = pinged_ = clock::now();
    ahead_ = 0;
    slowest_ = 0;
    pings_ = {};
    watch_->connection(true);
    if (!failed_.empty()) {
      failed_.clear();
      wanted_.is_new = true;
      text_.swap(ordered_text_);
      wake_.notify_all();
    }
    sink s{*this};
    site_->connected(s);
  }
  void disconnected(const outlet* from) override {
    const std::lock_guard lock(mutex_);
    if (to_.get() == from) drop("");
  }
  void received(const outlet* from, std::span<const std::uint8_t> bytes) override {
    const std::lock_guard lock(mutex_);
    if (to_.get() != from) return;
    watch_->message(false, bytes);
    sink s{*this};
    site_->received(bytes, s);
    if (std::exchange(damaged_, false)) return drop("a message was damaged on the way");
    ++count_.received;
    count_.bytes_received += bytes.size();
    end_if_refused();
  }
  // Streams lose only what a full queue drops, so the site's timer runs rarely: after four times
  // the slowest of the last echoes (also counting echoes that are not back yet), and at least 1 s.
  void tick() override {
    const std::lock_guard lock(mutex_);
    if (!to_) return;
    const auto now = clock::now();
    for (const ping_sent& p : pings_)
      if (p.stamp != 0) slowest_ = std::max(slowest_, seconds(now - p.sent));
    sink s{*this};
    if (seconds(now - ticked_) > std::max(1.0, 4 * slowest_)) {
      ticked_ = now;
      site_->tick(s);
    }
    if (seconds(now - pinged_) > (profile_->round_trip() > 0 ? 0.2 : 0.02)) ping(now, s);
    end_if_refused();
  }
  bool online() override {
    return locked([&] { return to_ != nullptr; });
  }
  bool finished() override {
    return locked([&] { return site_->finished(); });
  }
  std::string problem() override {
    return locked([&] { return failed_.empty() ? site_->problem() : failed_; });
  }
  std::vector<token_id> text() override {
    return locked([&] { return site_->text(); });
  }
  counters count() override {
    return locked([&] { return count_; });
  }
  double round_trip() override {
    return locked([&] { return profile_->round_trip(); });
  }
  void at_rest(const std::function<void()>& f) override {
    locked([&] {
      f();
      return 0;
    });
  }

 private:
  auto locked(auto f) {
    const std::lock_guard lock(mutex_);
    return f();
  }
  static double seconds(clock::duration d) { return std::chrono::duration<double>(d).count(); }

  // Executes the site's actions, under the lock.
  struct sink {
    runner& r;
    void send(std::span<const std::uint8_t> bytes) {
      if (!r.to_) return;
      ++r.count_.sent;
      r.count_.bytes_sent += bytes.size();
      r.ahead_ += bytes.size();
      r.watch_->message(true, bytes);
      r.to_->send(bytes);
    }
    void emit(std::uint32_t position, token_id x) { r.watch_->emitted(position, x); }
    void aggregates(side) {}
    void decode(const sites::decode_order& o) { r.order(o.ticket, o.step, 1); }
    void score(const sites::score_order& o) { r.order(o.ticket, o.end, o.end - o.start + 1); }
    void damaged() { r.damaged_ = true; }
    void echoed(std::uint64_t stamp) {
      for (auto& p : r.pings_)
        if (p.stamp == stamp && stamp != 0) {
          const double trip = seconds(clock::now() - p.sent);
          r.profile_->observe_round_trip(p.bytes, trip);
          r.slowest_ = std::max(0.9 * r.slowest_, trip);
          p.stamp = 0;
        }
    }
  };

  // Sends an echo after the bytes that were sent since the last echo. Its extra time, compared with
  // their number, shows the bandwidth.
  void ping(clock::time_point now, sink& s) {
    auto& p = pings_[++stamp_ % pings_.size()];
    p = {stamp_, ahead_, now};
    pinged_ = now;
    site_->ping(stamp_, s);
    ahead_ = 0;
  }
  void drop(const std::string& why) {
    if (!to_) return;
    site_->disconnected();
    if (!why.empty()) to_->close(why);
    to_ = nullptr;
    watch_->connection(false);
  }
  void end_if_refused() {
    // its own text may name files
    if (!failed_.empty() && to_) refuse(*to_, "the model of the other end fails");
    const std::string& why = failed_.empty() ? site_->problem() : failed_;
    if (!why.empty()) drop(why);
  }

  void order(std::uint32_t ticket, std::uint32_t size, std::uint32_t rows) {
    wanted_ = {ticket, size, rows, true};
    ordered_text_.resize(size);
    for (std::uint32_t i = 0; i < size; ++i) ordered_text_[i] = site_->token(i);
    stop_ = true;  // the order being computed has been replaced
    wake_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return quit_ || wanted_.is_new; });
      if (quit_) return;
      const job now = wanted_;
      wanted_.is_new = false;
      stop_ = false;
      text_.swap(ordered_text_);
      lock.unlock();
      const std::size_t V = model_->vocab_size();
      const std::span<float> logits = std::span(logits_).first(now.rows * V);
      double h = 0;
      const auto begin = clock::now();
      status why = status::ok;
      std::string failure;
      try {
        why = model_->see(text_, logits, h, stop_);
        if (only_drafts_ && (why == status::no_draft || why == status::context_full)) {
          std::fill(logits.begin(), logits.end(), -infinity);
          why = status::ok;
        }
        if (why != status::ok) failure = name(why);
      } catch (const std::exception& e) {
        failure = printable(e.what());
      }
      const auto end = clock::now();
      lock.lock();
      if (quit_) return;
      const bool used = failure.empty() && !wanted_.is_new;
      watch_->drafted(now.size, begin, end, used);
      ++count_.decodes;
      count_.decode_seconds += seconds(end - begin);
      count_.given_up += !used;
      if (wanted_.is_new) continue;
      sink s{*this};
      if (!failure.empty()) {
        failed_ = "the model: " + failure;
      } else if constexpr (requires { site_->decoded(0u, row(0), 0.0, 0.0, s); }) {
        site_->decoded(now.ticket, row(0), h, seconds(end - begin), s);
      } else {
        std::vector<processed_row<float>> rows;
        for (std::size_t i = 0; i < now.rows; ++i) rows.push_back(row(i));
        site_->scored(now.ticket, rows, s);
      }
      end_if_refused();
    }
  }
  processed_row<float> row(std::size_t i) const {
    const std::size_t V = model_->vocab_size();
    return processed_row<float>(std::span<const float>(logits_).subspan(i * V, V), sample_);
  }

  struct job {
    std::uint32_t ticket = 0, size = 0, rows = 0;
    bool is_new = false;
  };
  struct ping_sent {
    std::uint64_t stamp = 0;
    std::size_t bytes = 0;
    clock::time_point sent;
  };

  std::mutex mutex_;
  std::condition_variable wake_;
  std::unique_ptr<Site> site_;
  std::shared_ptr<Model> model_;
  sampling sample_;
  bool only_drafts_;
  std::shared_ptr<sites::live_profile> profile_;
  std::shared_ptr<observer> watch_;
  std::shared_ptr<outlet> to_;
  counters count_;
  std::string failed_;
  clock::time_point ticked_, pinged_;
  std::array<ping_sent, 64> pings_;
  std::uint64_t stamp_ = 0;
  std::size_t ahead_ = 0;  // bytes sent since the last ping
  double slowest_ = 0;     // of the last echoes
  job wanted_;
  std::vector<token_id> ordered_text_, text_;
  std::vector<float> logits_;
  std::atomic<bool> stop_ = false;
  bool quit_ = false, damaged_ = false;
  std::thread thread_;
};

}  // namespace net
SPECAGG_END
