// SPDX-License-Identifier: Apache-2.0
// Two sites on a simulated network with a virtual clock. Every run can be repeated from its seed.
// Models are callables with a stated cost in seconds, so links, schedulers and the figures of
// papers can be tested without a network or a model. For tests and analysis: allocates.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <specagg/plan/dragon.hpp>
#include <specagg/sites/dragon.hpp>
#include <specagg/sites/dssd.hpp>

SPECAGG_BEGIN
namespace sites {

// Runs events at their times. Events of the same time run in the order in which they were added.
class virtual_clock {
 public:
  double now() const { return now_; }  // seconds
  void at(double time, std::function<void()> action) {
    queue_.push_back({std::max(time, now_), announced_++, std::move(action)});
    std::push_heap(queue_.begin(), queue_.end(), later);
  }
  // Runs the next event. False if no event is due up to `until`.
  bool step(double until) {
    if (queue_.empty() || queue_.front().time > until) return false;
    std::pop_heap(queue_.begin(), queue_.end(), later);
    event e = std::move(queue_.back());
    queue_.pop_back();
    now_ = e.time;
    e.action();
    return true;
  }

 private:
  struct event {
    double time;
    std::uint64_t order;
    std::function<void()> action;
  };
  static bool later(const event& a, const event& b) {
    return a.time > b.time || (a.time == b.time && a.order > b.order);
  }
  std::vector<event> queue_;
  std::uint64_t announced_ = 0;
  double now_ = 0;
};

// One direction of a link. A message arrives delay + swing sin(2 pi now / period + phase) seconds,
// and a uniform part of `jitter`, after its last byte was sent. Messages arrive in order. A
// reordered message is late by another `delay` (and jitter), and other messages overtake it.
struct simulated_link {
  double delay = 0, jitter = 0, swing = 0, period = 1, phase = 0;
  double bytes_per_second = 0;                   // 0: no limit
  double lost = 0, repeated = 0, reordered = 0;  // probabilities
  double latency(double now) const {             // without the jitter
    constexpr double pi = 3.14159265358979323846;
    return std::max(0.0, delay + swing * std::sin(2 * pi * now / period + phase));
  }
};

// The record of one side.
struct observed_site {
  std::vector<token_id> text;                      // emitted in its present life
  std::vector<double> emitted_at;                  // the first time, in any life
  std::size_t lives = 0, messages = 0, bytes = 0;  // sent
  std::size_t hand_overs = 0, decodes = 0;
  // emissions out of order, or orders that would show the model another text
  std::size_t misuses = 0;
};

// L and R: sites of dragon.hpp or dssd.hpp, or your own type with the same events. T: the type of
// the rows' numbers.
template <class T, class L, class R = L>
class simulated_sites {
 public:
  using text_view = std::span<const token_id>;
  // Make a site with empty memory; `life` is its hello's.
  std::function<std::unique_ptr<L>(std::uint64_t life)> make_l;
  std::function<std::unique_ptr<R>(std::uint64_t life)> make_r;
  // the row after a text
  std::function<std::vector<T>(side, text_view)> row;
  std::function<double(side, text_view)> h = [](side, text_view) { return 0.0; };  // aggregate.hpp
  // of a decoding after a text of this many tokens
  std::function<double(side, std::size_t)> seconds;
  std::array<simulated_link, 2> link;  // from l, from r
  double timer = 1;

  explicit simulated_sites(std::uint64_t seed) : noise_(seed) {}

  // Schedules faults.
  void cut(double at, double lasts) { outage(at, lasts, cuts_); }
  void stop(side s, double at, double lasts) { outage(at, lasts, stops_[std::size_t(s)]); }
  void calm_from(double at) {  // from then on links lose, repeat and reorder nothing
    clock_.at(at, [this] {
      for (simulated_link& l : link) l.lost = l.repeated = l.reordered = 0;
    });
  }

  // Runs the simulation. True if both sites finished before `until`, after all faults had ended.
  [[nodiscard]] bool run(double until) {
    change();
    tick();
    while (!(pending_ == 0 && l_.site && r_.site && l_.site->finished() && r_.site->finished()))
      if (!clock_.step(until)) return false;
    return true;
  }
  // The record of a side, over all its lives.
  const observed_site& seen(side s) const { return s == side::l ? l_.seen : r_.seen; }
  // The sites; null while they are stopped.
  const L* l() const { return l_.site.get(); }
  const R* r() const { return r_.site.get(); }
  double now() const { return clock_.now(); }  // seconds
  // The time when a token was first known to either side.
  double settled_at(std::size_t step) const {
    double first = std::numeric_limits<double>::infinity();
    for (const auto* e : {&l_.seen.emitted_at, &r_.seen.emitted_at})
      if (step < e->size()) first = std::min(first, (*e)[step]);
    return first;
  }
  std::function<void()> check = [] {};  // called after every event of a site

 private:
  // A site, its model, and the sink of its actions.
  template <class Site>
  struct actor {
    simulated_sites& world;
    side me;
    std::unique_ptr<Site> site = {};
    std::vector<token_id> context = {};  // what its model has seen
    observed_site seen = {};

    void born(std::unique_ptr<Site> s) {
      site = std::move(s);
      context.clear();
      ++seen.lives;
      seen.text.assign(site->text().begin(), site->text().end());
      site->start(*this);
    }
    void send(std::span<const std::uint8_t> bytes) {
      ++seen.messages;
      seen.bytes += bytes.size();
      world.transmit(me, bytes);
    }
    void emit(std::uint32_t step, token_id x) {
      seen.misuses += step != seen.text.size();
      seen.text.push_back(x);
      if (seen.emitted_at.size() <= step) seen.emitted_at.resize(step + 1, world.now());
    }
    void aggregates(side) { ++seen.hand_overs; }
    // Makes the model's text the site's first `end` tokens; the model may keep the first `keep`
    // tokens that it has seen.
    void see(std::uint32_t keep, std::uint32_t end) {
      context.resize(std::min<std::size_t>(context.size(), keep));
      for (auto i = std::uint32_t(context.size() - std::min<std::size_t>(context.size(), 256));
           i < end; ++i)
        if (i < context.size()) seen.misuses += context[i] != site->token(i);
        else context.push_back(site->token(i));
    }
    void decode(const decode_order& o) {
      see(o.keep, o.step);
      ++seen.decodes;
      const double takes = world.seconds(me, o.step);
      later(takes, [this, o, takes, row = world.row(me, context), h = world.h(me, context)] {
        site->decoded(o.ticket, row, h, takes, *this);
      });
    }
    // Computes all rows of a draft at once.
    void score(const score_order& o) {
      see(o.keep, o.end);
      ++seen.decodes;
      std::vector<std::vector<T>> rows;
      for (std::size_t n = o.start; n <= o.end; ++n)
        rows.push_back(world.row(me, text_view(context).first(n)));
      later(world.seconds(me, o.start),
            [this, o, rows = std::move(rows)] { site->scored(o.ticket, rows, *this); });
    }
    // Runs f after a delay, if the site is still in the same life.
    void later(double delay, auto f) {
      world.clock_.at(world.now() + delay, [this, life = seen.lives, f = std::move(f)] {
        if (site && life == seen.lives) {
          f();
          world.check();
        }
      });
    }
  };

  double uniform() {
    ++drawn_;
    return noise_.uniform({stream::side, std::uint32_t(drawn_), std::uint32_t(drawn_ >> 32)});
  }
  void transmit(side from, std::span<const std::uint8_t> bytes) {
    const simulated_link& k = link[std::size_t(from)];
    if (!connected_) return;
    const auto way = std::size_t(from);
    const double rate = k.bytes_per_second;
    free_[way] = std::max(free_[way], now()) + (rate > 0 ? double(bytes.size()) / rate : 0);
    if (uniform() < k.lost) return;
    const int copies = uniform() < k.repeated ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      double arrives = free_[way] + k.latency(now()) + k.jitter * uniform();
      if (uniform() < k.reordered) arrives += k.delay + k.jitter * uniform();
      else arrives = last_[way] = std::max(last_[way], arrives);
      clock_.at(arrives, [this, from, on = connection_,
                          copy = std::vector<std::uint8_t>(bytes.begin(), bytes.end())] {
        if (!connected_ || connection_ != on) return;
        from == side::l ? r_.site->received(copy, r_) : l_.site->received(copy, l_);
        check();
      });
    }
  }
  void outage(double at, double lasts, int& counter) {
    pending_ += 2;
    for (const auto& [time, by] : {std::pair{at, 1}, {at + lasts, -1}})
      clock_.at(time, [this, &counter, step = by] {
        --pending_;
        counter += step;
        change();
      });
  }
  // Updates the sites and the connection between them after a fault began or ended.
  void change() {
    const bool good = cuts_ == 0 && stops_[0] == 0 && stops_[1] == 0;
    if (connected_ && !good) {
      connected_ = false;
      l_.site->disconnected();
      r_.site->disconnected();
    }
    if (stops_[0] > 0) l_.site.reset();
    else if (!l_.site) l_.born(make_l(++lives_));
    if (stops_[1] > 0) r_.site.reset();
    else if (!r_.site) r_.born(make_r(++lives_));
    if (!connected_ && good) {
      connected_ = true;
      ++connection_;
      free_ = last_ = {};
      l_.site->connected(l_);
      r_.site->connected(r_);
    }
    check();
  }
  void tick() {
    if (l_.site) l_.site->tick(l_);
    if (r_.site) r_.site->tick(r_);
    check();
    clock_.at(now() + timer, [this] { tick(); });
  }

  virtual_clock clock_;
  random_streams noise_;
  std::uint64_t drawn_ = 0, lives_ = 0, connection_ = 0;
  actor<L> l_{*this, side::l};
  actor<R> r_{*this, side::r};
  std::array<double, 2> free_ = {}, last_ = {};
  std::array<int, 2> stops_ = {};
  int cuts_ = 0, pending_ = 0;
  bool connected_ = false;
};

// Drafts whose acceptance is drawn from a joint distribution instead of decided by rows. It is the
// same for every scheduler and site under one seed. Figures about time need no more. Token 0 is the
// token of every step; a draft that will be rejected is token 1.
struct replayed_drafts {
  agreement accept;
  random_streams noise;
  std::uint32_t first = 1;  // the step with number 0 for plan::accepted_at
  token_id draw(side s, const Row auto&, std::uint32_t step, std::span<double>) const {
    return token_id(!plan::accepted_at(accept, noise, step - first)[std::size_t(s)]);
  }
  aggregation aggregate(std::uint32_t, token_id x_l, token_id x_r, const site_weights&, auto&&,
                        std::span<double>) const {
    return {0, x_l == 0, x_r == 0, status::ok};
  }
};

}  // namespace sites
SPECAGG_END
