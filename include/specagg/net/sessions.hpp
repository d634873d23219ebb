// SPDX-License-Identifier: Apache-2.0
// A server for many devices: one site for each session, whatever connections come and go. Bounded: so many sessions,
// each of the memory its site was made with.
//
// A session is named by 64 bits that its device draws at random: who knows them may go on with it (behind the
// transport's own checks). Whoever proposes something else under its name is refused, and the session is not disturbed.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/net/runner.hpp>
#include <specagg/net/transport.hpp>

SPECAGG_BEGIN
namespace net {

class sessions {
 public:
  // A site, and the hello it will say.
  struct made {
    std::shared_ptr<running_site> site;
    hello terms;
  };
  // For what a device proposes: its hello. Throws specagg::error, whose text goes to the device.
  using make_function = std::function<made(const hello& proposed)>;

  // most: sessions at a time. keep_seconds: how long one is kept without a connection. ended(site, terms): it is no
  // longer kept; called by tick() and by the destructor.
  sessions(make_function make, std::size_t most, double keep_seconds,
           std::function<void(running_site&, const hello&)> ended)
      : make_(std::move(make)), most_(most), keep_seconds_(keep_seconds), ended_(std::move(ended)) {}
  ~sessions() {
    for (auto& [id, s] : all_)
      if (s.site) ended_(*s.site, s.terms);
  }

  std::shared_ptr<listener> accept(const std::shared_ptr<outlet>& out) { return std::make_shared<peer>(*this, out); }

  // Every 20 ms or so.
  void tick() {
    std::vector<session> gone, here;
    {
      const std::lock_guard lock(mutex_);
      const auto now = clock::now();
      for (auto it = all_.begin(); it != all_.end();) {
        session& s = it->second;
        if (!s.site || s.site->online()) s.seen = now;
        const bool old = std::chrono::duration<double>(now - s.seen).count() > keep_seconds_;
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
  struct session {
    std::shared_ptr<running_site> site;  // none: it is being made
    hello terms;
    clock::time_point seen = clock::now();
  };
  // A connection: nobody until it has said hello.
  struct peer final : listener {
    sessions& all;
    std::shared_ptr<outlet> out;
    std::shared_ptr<running_site> site = {};
    peer(sessions& s, std::shared_ptr<outlet> o) : all(s), out(std::move(o)) {}
    void received(std::span<const std::uint8_t> bytes) override {
      if (!site && !(site = all.enter(bytes, *out))) return;
      if (!known) known = true, site->connected(out);
      site->received(out.get(), bytes);
    }
    void closed(const std::string&) override {
      if (site) site->disconnected(out.get());
    }
    bool known = false;
  };

  std::shared_ptr<running_site> enter(std::span<const std::uint8_t> bytes, outlet& out) {
    message m;
    const wire w = decode(bytes, hello{}, m);
    const auto* h = std::get_if<hello>(&m);
    const auto refuse = [&](const std::string& why) {
      std::array<std::uint8_t, 2 + most_text_in_message> buffer;
      if (const std::size_t n = encode(refusal{short_text(why)}, hello{}, buffer); n > 0)
        out.send(std::span<const std::uint8_t>(buffer).first(n));
      out.close(why);
      return nullptr;
    };
    if (w != wire::ok) return refuse("the first message: " + std::string(name(w)));
    if (!h || !valid(*h)) return refuse("the first message is no valid hello");
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = all_.find(h->session); found != all_.end()) {
        if (!found->second.site) return refuse("the session is just being made");
        const std::string difference = first_difference(found->second.terms, *h);
        if (!difference.empty()) return refuse(difference);
        return found->second.site;
      }
      if (all_.size() >= most_) {  // one that has ended makes room
        const auto ended = std::find_if(all_.begin(), all_.end(), [](auto& s) {
          return s.second.site && !s.second.site->online() && s.second.site->finished();
        });
        if (ended == all_.end()) return refuse("there are too many sessions");
        ended_(*ended->second.site, ended->second.terms), all_.erase(ended);
      }
      all_[h->session] = {};  // its place, while it is made
    }
    made fresh;
    std::string problem;
    try {
      fresh = make_(*h);
      problem = first_difference(fresh.terms, *h);
    } catch (const std::exception& e) {
      problem = e.what();
    }
    const std::lock_guard lock(mutex_);
    if (!problem.empty()) {
      all_.erase(h->session);
      return refuse(problem);
    }
    all_[h->session] = {fresh.site, fresh.terms};
    return fresh.site;
  }

  const make_function make_;
  const std::size_t most_;
  const double keep_seconds_;
  const std::function<void(running_site&, const hello&)> ended_;
  std::mutex mutex_;
  std::map<std::uint64_t, session> all_;
};

}  // namespace net
SPECAGG_END
