// SPDX-License-Identifier: Apache-2.0
// A server for many devices: one site for each session, which may use several connections, one
// after another. Memory is bounded: the number of sessions is limited, each has the memory its site
// was made with, and no site is made for a device that would be refused.
//
// A session is named by 64 bits that its device draws at random. Anybody who knows them may
// continue the session (if the transport's own checks allow it). Anybody who proposes other terms
// under its name is refused, and the session is not disturbed. If a session gets a second
// connection, the newer connection stays. A session without a connection may be removed to make
// room for another. Nothing is lost then, because the device has the text, and a site that begins
// with empty memory learns it. If no session can be removed, or the first message is damaged, the
// new connection is closed without a refusal, so the device may try again.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/net/runner.hpp>
#include <specagg/sites/net/transport.hpp>

SPECAGG_BEGIN
namespace net {

// All members may be called from any thread.
class sessions {
 public:
  // Returns what this end says to a device that proposes this hello. The device is refused if the
  // two hellos differ. May throw specagg::error; its text is sent to the device. Both functions are
  // called on the transport's threads, several at a time.
  using agree_function = std::function<sites::hello(const sites::hello& proposed)>;
  // may throw too
  using make_function = std::function<std::shared_ptr<running_site>(const sites::hello& terms)>;

  // most: the largest number of sessions. keep_seconds: how long a session without a connection is
  // kept. ended(site, terms) is called when a session is no longer kept: by tick(), by the
  // transport and by the destructor. All connections must have ended before the destructor is
  // called.
  sessions(agree_function agree, make_function make, std::size_t most, double keep_seconds,
           std::function<void(running_site&, const sites::hello&)> ended)
      : agree_(std::move(agree)),
        make_(std::move(make)),
        most_(most),
        keep_seconds_(keep_seconds),
        ended_(std::move(ended)) {}
  ~sessions() {
    for (auto& [id, s] : all_)
      if (s.site) ended_(*s.site, s.terms);
  }

  // The listener of a new connection: an accept_function (transport.hpp).
  [[nodiscard]] std::shared_ptr<listener> accept(const std::shared_ptr<outlet>& out) {
    return std::make_shared<peer>(*this, out);
  }

  // Every 20 ms or so.
  void tick() {
    std::vector<session> gone, here;
    {
      const std::lock_guard lock(mutex_);
      const auto now = clock::now();
      for (auto it = all_.begin(); it != all_.end();) {
        session& s = it->second;
        const bool alone = s.alone(), old = alone && seconds_since(s.seen) > keep_seconds_;
        if (!alone) s.seen = now;
        if (s.site) (old ? gone : here).push_back(s);
        it = old ? all_.erase(it) : std::next(it);
      }
    }
    for (session& s : here) s.site->tick();
    for (session& s : gone) ended_(*s.site, s.terms);
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  static double seconds_since(clock::time_point t) {
    return std::chrono::duration<double>(clock::now() - t).count();
  }
  struct peer;
  struct session {
    std::shared_ptr<running_site> site;  // null: it is being made
    sites::hello terms;
    std::weak_ptr<peer> last;  // the last peer that was let in
    clock::time_point seen = clock::now();
    bool alone() const {
      const auto p = last.lock();
      return site && !(p && p->joins) && !site->online();
    }
  };
  // A connection. It belongs to no session until it has said hello.
  struct peer final : listener, std::enable_shared_from_this<peer> {
    std::atomic<bool> joins = true;  // until it is let in and connected
    sessions& all;
    std::shared_ptr<outlet> out;
    std::shared_ptr<running_site> site = {};
    peer(sessions& s, std::shared_ptr<outlet> o) : all(s), out(std::move(o)) {}
    void received(std::span<const std::uint8_t> bytes) override {
      if (refused) return;
      if (!site) {
        site = all.enter(bytes, *this);
        refused = !site;
        if (refused) return;
        site->connected(out);
        joins = false;
      }
      site->received(out.get(), bytes);
    }
    void closed(const std::string&) override {
      if (site) site->disconnected(out.get());
    }
    bool refused = false;
  };

  std::shared_ptr<running_site> enter(std::span<const std::uint8_t> bytes, peer& who) {
    outlet& out = *who.out;
    sites::message m;
    const sites::wire w = decode(bytes, sites::hello{}, m);
    const auto* h = std::get_if<sites::hello>(&m);
    const auto no = [&](const std::string& why) {
      refuse(out, why, h ? h->version : sites::protocol_version);
      return nullptr;
    };
    const auto later = [&](const char* why) {  // no refusal: the device tries again
      out.close(why);
      return nullptr;
    };
    if (w == sites::wire::damaged) return later("the first message was damaged on the way");
    if (w != sites::wire::ok) return no("the first message: " + complaint(w, m));
    if (!h || !valid(*h)) return no("the first message is no valid hello");
    sites::hello terms;
    try {
      terms = agree_(*h);
    } catch (const std::exception& e) {
      return no(printable(e.what()));
    }
    if (const std::string difference = first_difference(terms, *h); !difference.empty())
      return no(difference);
    session leaves;  // ends, and is destroyed, outside the lock
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = all_.find(h->session); found != all_.end()) {
        session& s = found->second;
        if (const std::string difference = first_difference(s.terms, *h); !difference.empty())
          return no(difference);
        if (!s.site) return later("the session is just being made: try again");
        s.last = who.weak_from_this();
        return s.site;
      }
      if (all_.size() >= most_) {
        const auto old = longest_alone();
        if (old == all_.end()) return later("there are too many sessions");
        leaves = old->second;
        all_.erase(old);
      }
      all_[h->session].terms = terms;  // keeps its place while it is made
    }
    if (leaves.site) ended_(*leaves.site, leaves.terms);
    std::shared_ptr<running_site> site;
    std::string problem = "it cannot be made here";
    try {
      site = make_(terms);
    } catch (const std::exception& e) {
      problem = printable(e.what());
    }
    const std::lock_guard lock(mutex_);
    if (!site) {
      all_.erase(h->session);
      return no(problem);
    }
    all_[h->session] = {site, terms, who.weak_from_this()};
    return site;
  }
  // The session that has been without a connection for the longest time. This time must be at least
  // a second, unless the session's text has ended.
  std::map<std::uint64_t, session>::iterator longest_alone() {
    auto oldest = all_.end();
    for (auto it = all_.begin(); it != all_.end(); ++it) {
      session& s = it->second;
      if (!s.alone() || (seconds_since(s.seen) < 1 && !s.site->finished())) continue;
      if (oldest == all_.end() || s.seen < oldest->second.seen) oldest = it;
    }
    return oldest;
  }

  const agree_function agree_;
  const make_function make_;
  const std::size_t most_;
  const double keep_seconds_;
  const std::function<void(running_site&, const sites::hello&)> ended_;
  std::mutex mutex_;
  std::map<std::uint64_t, session> all_;
};

}  // namespace net
SPECAGG_END
