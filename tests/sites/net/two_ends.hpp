// SPDX-License-Identifier: Apache-2.0
// Two sites with toy models on a real transport, and what they must say.
#pragma once
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <specagg/audit/toy_source.hpp>
#include <specagg/sites/net/runner.hpp>
#include <specagg/sites/simulation.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::sites;
using tokens = std::vector<token_id>;
using namespace std::chrono_literals;

inline double seconds_since(net::clock::time_point t) {
  return std::chrono::duration<double>(net::clock::now() - t).count();
}
// Whether it becomes true in time. The time is long, as machines are busy.
inline bool soon(const std::function<bool()>& what, double seconds = 20) {
  for (const auto began = net::clock::now(); seconds_since(began) < seconds;
       std::this_thread::sleep_for(2ms))
    if (what()) return true;
  return what();
}
// Calls f every few milliseconds on a thread of its own.
class every_so_often {
 public:
  explicit every_so_often(std::function<void()> f)
      : thread_([this, f = std::move(f)] {
          for (; !quit_; std::this_thread::sleep_for(3ms)) f();
        }) {}
  ~every_so_often() {
    quit_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> quit_ = false;
  std::thread thread_;
};

// What a session is made of, at both ends.
struct setting {
  hello terms = {};
  tokens prompt = {0};
  std::uint64_t seed = 1;
  scheduling how = scheduling::recursion;
  double dynamic = 0;  // how much h follows the text

  toy_source<float> model(side s) const {
    return {terms.codec.vocabulary, seed * 2 + std::uint64_t(s), 2, 3};
  }
  double h(side s, std::span<const token_id> text) const {
    return 0.3 * double(s) +
           dynamic * std::sin(double(text.back()) + double(s) + double(text.size()));
  }
  hello at(side s, std::uint64_t life) const {
    hello h = terms;
    h.from = s;
    h.life = life;
    h.prompt = std::uint32_t(prompt.size());
    h.seed_hash = hash_of_seed(seed, h.session);
    return h;
  }
};
inline setting some_setting(std::uint64_t seed, protocol kind, std::uint32_t look_ahead,
                            std::uint32_t most = 24) {
  setting s{.seed = seed, .how = scheduling(seed % 6), .dynamic = double(seed % 2)};
  s.terms.kind = kind;
  s.terms.session = seed * 77;
  s.terms.look_ahead = look_ahead;
  s.terms.most_tokens = most;
  s.terms.codec = {.vocabulary = 5 + seed % 11};
  using values = row_codec::values;
  s.terms.codec.format = kind == protocol::dsd_block ? values::counts : values(seed % 3);
  if (s.terms.codec.format == values::counts) {
    s.terms.codec.top_k = 3;
    s.terms.codec.total = 20;
  }
  s.terms.first = side(seed / 2 % 2);
  s.prompt = tokens(1 + seed % 3, 0);
  return s;
}

// A toy model that may take its time, look whether it is still wanted, and fail.
struct toy_model {
  toy_model(setting s, side where) : of(std::move(s)), at(where) {}
  setting of;
  side at;
  double seconds = 0;
  std::size_t fails_at = ~std::size_t(0);  // of text
  bool throws = false;
  std::atomic<int> seen = 0, stopped = 0;

  std::size_t vocab_size() const { return of.terms.codec.vocabulary; }
  status see(std::span<const token_id> text, std::span<float> logits, double& h,
             const std::atomic<bool>& stop) {
    ++seen;
    for (const auto began = net::clock::now(); seconds_since(began) < seconds;
         std::this_thread::sleep_for(1ms))
      if (stop) {
        ++stopped;
        return status::stopped;
      }
    if (text.size() >= fails_at) {
      if (throws) throw std::runtime_error("the index is gone");
      return status::context_full;
    }
    const std::size_t V = vocab_size(), rows = logits.size() / V;
    for (std::size_t i = 0; i < rows; ++i)
      of.model(at).row(text.first(text.size() - rows + 1 + i), logits.subspan(i * V, V));
    h = of.h(at, text);
    return status::ok;
  }
};

// What was emitted, and whether each position came once, in order.
struct emissions final : net::observer {
  std::mutex mutex;
  std::uint32_t next;
  tokens text;
  std::atomic<int> out_of_order = 0, connections = 0;
  explicit emissions(std::size_t first) : next(std::uint32_t(first)) {}
  void emitted(std::uint32_t position, token_id x) override {
    const std::lock_guard lock(mutex);
    out_of_order += position != next++;
    text.push_back(x);
  }
  void connection(bool made) override { connections += made; }
};

// Both sites' types of a setting: f.operator()<L, R>(coupling...).
struct running_end {
  std::shared_ptr<toy_model> model;
  std::shared_ptr<emissions> watch;
  std::shared_ptr<live_profile> profile;
  std::shared_ptr<net::running_site> site;
};
inline running_end run(const setting& s, side at, std::uint64_t life = 1,
                       std::function<void(toy_model&)> change = {}) {
  running_end e{std::make_shared<toy_model>(s, at),
                std::make_shared<emissions>(at == side::l ? s.prompt.size() : 0),
                std::make_shared<live_profile>(), nullptr};
  if (change) change(*e.model);
  const hello terms = s.at(at, life);
  const tokens prompt = at == side::l ? s.prompt : tokens{};
  const auto make = [&]<class Site>(std::unique_ptr<Site> site) {
    e.site = std::make_shared<net::runner<Site, toy_model>>(std::move(site), e.model, terms,
                                                            sampling{}, e.profile, e.watch);
  };
  using who = scheduler<net::watched_profile>;
  const who schedule{s.how, {e.profile, e.watch.get()}, terms.look_ahead, s.seed};
  const random_streams l(s.seed, terms.session, 0), r(s.seed, terms.session, 1);
  const coupled_noise noise(s.seed, terms.session);
  if (terms.kind == protocol::dragon)
    make(std::make_unique<dragon_site<float, independent_drafts<>, who>>(
        terms, prompt, independent_drafts<>{l, r}, schedule));
  else if (terms.kind == protocol::dragon_shared)
    make(std::make_unique<dragon_site<float, shared_drafts, who>>(terms, prompt,
                                                                  shared_drafts{noise}, schedule));
  else if (at == side::l) make(std::make_unique<split_device<float>>(terms, prompt, l, noise));
  else make(std::make_unique<split_server<float>>(terms, prompt, r, noise));
  return e;
}

// The text on the simulated network, where nothing goes wrong.
template <class L, class R = L, class MakeL, class MakeR>
tokens simulate(const setting& s, MakeL make_l, MakeR make_r) {
  simulated_sites<float, L, R> world(1);
  world.make_l = [&](std::uint64_t life) { return make_l(s.at(side::l, life)); };
  world.make_r = [&](std::uint64_t life) { return make_r(s.at(side::r, life)); };
  world.row = [&](side at, auto text) {
    std::vector<float> logits(s.terms.codec.vocabulary), p;
    s.model(at).row(text, logits);
    const auto row = normalise(processed_row<float>(std::span<const float>(logits), sampling{}));
    REQUIRE(row.why() == status::ok);
    for (std::size_t v = 0; v < logits.size(); ++v) p.push_back(row[v]);
    return p;
  };
  world.h = [&](side at, auto text) { return s.h(at, text); };
  world.seconds = [](side, std::size_t) { return 0.01; };
  REQUIRE(world.run(1e4));
  return world.l()->text();
}
inline tokens text_due(const setting& s) {
  const random_streams l(s.seed, s.terms.session, 0), r(s.seed, s.terms.session, 1);
  const coupled_noise noise(s.seed, s.terms.session);
  const auto dragon = [&](auto coupling) {
    using site = dragon_site<float, decltype(coupling)>;
    const auto make = [&](const hello& h) { return std::make_unique<site>(h, s.prompt, coupling); };
    return simulate<site>(s, make, make);
  };
  if (s.terms.kind == protocol::dragon) return dragon(independent_drafts<>{l, r});
  if (s.terms.kind == protocol::dragon_shared) return dragon(shared_drafts{noise});
  return simulate<split_device<float>, split_server<float>>(
      s,
      [&](const hello& h) { return std::make_unique<split_device<float>>(h, s.prompt, l, noise); },
      [&](const hello& h) { return std::make_unique<split_server<float>>(h, s.prompt, r, noise); });
}
