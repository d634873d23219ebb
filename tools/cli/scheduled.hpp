// SPDX-License-Identifier: Apache-2.0
// The protocol of two sites, simulated under a scheduler that learns the acceptances by counting.
// `plan schedulers` and the experiments' part dragon-latency use this one simulation.
#pragma once
#include <array>
#include <cmath>
#include <functional>
#include <memory>

#include <specagg/error.hpp>
#include <specagg/sites/scheduler.hpp>
#include <specagg/sites/simulation.hpp>

namespace cli {

// What the paper's scheduler knows: decode times, the round trip of this moment, acceptances
// counted so far.
struct counting {
  std::function<specagg::plan::dragon()> now;  // all but the acceptances
  specagg::agreement counted = {1, 1, 1};      // one of each to begin with
  double steps = 4;

  specagg::plan::dragon setting() const {
    specagg::plan::dragon d = now();
    d.accept = {counted.both / steps, counted.only_l / steps, counted.only_r / steps};
    return d;
  }
  void observe(const specagg::sites::dragon_outcome& o) {
    counted.both += o.accepted_l && o.accepted_r;
    counted.only_l += o.accepted_l && !o.accepted_r;
    counted.only_r += !o.accepted_l && o.accepted_r;
    steps += 1;
  }
};

// Times in seconds. base: one way without what is added; delay: added to the round trip, half of it
// each way, with the paper's jitter of a fifth and period 20 pi. look_ahead 1: synchronous.
struct scheduled_setting {
  double c_l = 0.25, c_r = 0.05, base = 0.02, delay = 0;
  specagg::agreement accept = {};
  std::uint32_t tokens = 100, look_ahead = 16;
};
struct scheduled_times {
  double first = 0, all = 0;  // when the first token and when all tokens are settled
};
inline scheduled_times scheduled_run(const scheduled_setting& o, specagg::sites::scheduling how,
                                     std::uint64_t seed) {
  using namespace specagg;
  using namespace specagg::sites;
  using site = dragon_site<double, replayed_drafts, scheduler<counting>>;
  simulated_sites<double, site> world(seed);
  constexpr double pi = 3.14159265358979323846;
  // Each sequence begins at another phase of the swing, or all would begin where it makes the link
  // slower.
  const double turn = 0.6180339887498949 * double(seed);
  const simulated_link link{.delay = o.base + o.delay / 2,
                            .swing = o.delay / 10,
                            .period = 20 * pi,
                            .phase = 2 * pi * (turn - std::floor(turn))};
  world.link = {link, link};
  world.timer = 1e9;
  const auto now = [&world, &o, link] {
    const double t = link.latency(world.now());
    return plan::dragon{o.c_l, o.c_r, t, t, {}};
  };
  const auto make = [&](side at) {
    return [&, at](std::uint64_t life) {
      hello terms{.life = life, .from = at};
      terms.codec = {.vocabulary = 2};
      terms.real_bytes = 8;
      terms.look_ahead = o.look_ahead;
      terms.most_tokens = o.tokens + 1;
      terms.first = how == scheduling::r ? side::r : side::l;
      const scheduler<counting> s{how, {now}, o.look_ahead, seed};
      const std::array<token_id, 1> prompt{0};
      return std::make_unique<site>(terms, prompt, replayed_drafts{o.accept, random_streams(seed)},
                                    s);
    };
  };
  world.make_l = make(side::l);
  world.make_r = make(side::r);
  world.row = [](side, auto) { return std::vector<double>{0.5, 0.5}; };
  world.seconds = [&o](side at, std::size_t) { return at == side::l ? o.c_l : o.c_r; };
  if (!world.run(1e9)) throw error("two sites", "", "the simulation did not end");
  return {world.settled_at(1), world.settled_at(o.tokens)};
}

}  // namespace cli
