// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/scheduler.hpp>

#include <cmath>
#include <memory>

#include "sites/two_sites.hpp"
#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

dragon_outcome outcome(std::uint32_t step, float l, float r, std::size_t bytes, agreement e) {
  return {.step = step,
          .at = side::l,
          .accepted_l = true,
          .accepted_r = false,
          .seconds = {l, r},
          .bytes = {bytes, bytes},
          .expected = e};
}

struct spy {
  static constexpr bool looks_at_rows = true;
  std::shared_ptr<std::vector<dragon_outcome>> seen;
  void learned(const dragon_outcome& o) { seen->push_back(o); }
  side operator()(const dragon_outcome& o) const { return o.at; }
};

}  // namespace

TEST_CASE(
    "a live profile finds decode times, the round trip, the bandwidth and the acceptances it was "
    "shown") {
  live_profile p;
  numbers n(1);
  const agreement e{0.5, 0.2, 0.1};
  for (std::uint32_t step = 10; step < 700; ++step) {
    const double odd = n.below(10) == 0 ? 5 : 1;  // one in ten is an outlier
    p.observe(outcome(step, float((0.02 + 1e-4 * step) * odd), 0.05f, 200, e));
    const std::size_t bytes = n.below(2) ? 1000 : 0;
    p.observe_round_trip(bytes, 0.3 + double(bytes) / 1e5 + n.between(-0.01, 0.01));
  }
  const plan::dragon d = p.setting();
  CHECK(d.c_l == Approx(0.02 + 1e-4 * 699).epsilon(0.25));
  CHECK(d.c_r == Approx(0.05).epsilon(0.01));
  CHECK(p.round_trip() == Approx(0.3).epsilon(0.05));
  CHECK(d.t_l == Approx(0.15 + 200 / 1e5).epsilon(0.08));
  CHECK(d.accept.both == Approx(0.5));
  CHECK(d.accept.only_l == Approx(0.2));
  CHECK(d.accept.only_r == Approx(0.1));
  CHECK(d.accept.neither() == Approx(0.2));
}
TEST_CASE("a live profile without any observation plans with zeros, and no scheduler minds") {
  for (std::size_t how = 0; how < scheduling_names.size(); ++how) {
    live_profile p;
    scheduler<live_profile> s{scheduling(how), p, 4};
    const auto o = outcome(5, 0, 0, 0, {});
    s.learned(o);
    const side at = s(o);
    CHECK((at == side::l || at == side::r));
  }
}
TEST_CASE("a decode profile follows a model that slows down with its context") {
  decode_profile p;
  for (std::size_t t = 1; t < 4000; ++t) p.observe(t, 1e-3 + 1e-6 * double(t));
  CHECK(p.line()(4000) == Approx(5e-3).epsilon(0.01));
  CHECK(p.line()(100) == Approx(1.1e-3).epsilon(0.01));
}
TEST_CASE(
    "a line that was fitted before counts from the first token on, and only its slope changes") {
  live_profile p({decode_profile({1e-5 * 1e4, 1e4, 0.02}), decode_profile({0, 1e4, 0.005})});
  CHECK(p.setting().c_l == Approx(0.02));  // no context yet
  CHECK(p.setting().c_r == Approx(0.005));
  // l has become slower by 1e-5 s a token of context
  for (std::uint32_t step = 1; step <= 2000; ++step)
    p.observe(outcome(step, float(0.02 + 2e-5 * step), 0.005f, 0, {}));
  const plan::dragon d = p.setting();
  CHECK(d.c_l == Approx(0.02 + 2e-5 * 2000).epsilon(1e-3));
  CHECK(d.c_r == Approx(0.005).epsilon(1e-3));
  decode_profile fixed({0, 1e4, 0.02}), fitting;
  for (std::size_t t = 1; t <= 2000; ++t) {
    fixed.observe(t, 0.03);
    fitting.observe(t, 0.03);
  }
  CHECK(fixed.line().k_c == 0.02);
  CHECK(fitting.line().k_c == Approx(0.03).epsilon(1e-3));
}
TEST_CASE("the side that aggregates works out from the rows how likely each outcome was") {
  using site = dragon_site<double, independent_drafts<>, spy>;
  simulated_sites<double, site> world(1);
  std::array<std::shared_ptr<std::vector<dragon_outcome>>, 2> seen{
      std::make_shared<std::vector<dragon_outcome>>(),
      std::make_shared<std::vector<dragon_outcome>>()};
  hello terms;
  terms.codec = {.vocabulary = 6};
  terms.real_bytes = 8;
  terms.most_tokens = 40;
  terms.prompt = 3;
  const auto model = [](side s) { return toy_source<double>{6, std::uint64_t(s) + 1, 2, 3}; };
  const auto make = [&](side at) {
    return [&, at](std::uint64_t life) {
      hello h = terms;
      h.from = at;
      h.life = life;
      const std::vector<token_id> prompt{0, 1, 2};
      return std::make_unique<site>(
          h, at == side::l ? prompt : std::vector<token_id>{},
          independent_drafts<>{random_streams(1, 0, 0), random_streams(1, 0, 1)},
          spy{seen[std::size_t(at)]});
    };
  };
  world.make_l = make(side::l);
  world.make_r = make(side::r);
  world.row = [&](side at, auto text) { return toy_row(model(at), text); };
  world.seconds = [](side at, std::size_t t) {
    return at == side::l ? 0.5 : 0.25 + 0.001 * double(t);
  };
  REQUIRE(world.run(1e4));
  REQUIRE(seen[0]->size() == 37);  // l aggregated all
  for (const dragon_outcome& o : *seen[0]) {
    const std::span text(world.seen(side::l).text.data(), o.step);
    const auto a =
        agreement_of(dense_row<double>(toy_row(model(side::l), text).data(), 6),
                     dense_row<double>(toy_row(model(side::r), text).data(), 6), weigh_sites(0, 0));
    CHECK(std::fabs(o.expected.both - a.both) < 1e-12);
    CHECK(std::fabs(o.expected.only_l - a.only_l) < 1e-12);
    CHECK(o.seconds[0] == 0.5f);
    CHECK(o.seconds[1] == Approx(0.25 + 0.001 * o.step));
    CHECK(o.bytes[1] > 0);
  }
  for (const dragon_outcome& o : *seen[1]) {  // r is told
    CHECK(o.expected.both == double(o.accepted_l && o.accepted_r));
    CHECK(o.at == side::l);
  }
}
TEST_CASE(
    "a side chosen live moves between the sites, on a link that changes, and changes no token") {
  using site = dragon_site<double, shared_drafts, scheduler<live_profile>>;
  std::size_t hand_overs = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::vector<token_id> first;
    for (std::size_t how = 0; how < scheduling_names.size(); ++how) {
      simulated_sites<double, site> world(seed);
      numbers n(seed);
      const auto model = [seed](side s) {
        return toy_source<double>{5, 2 * seed + std::uint64_t(s), 2, 3};
      };
      const auto make = [&](side at) {
        return [&, at](std::uint64_t life) {
          hello h{.life = life, .from = at};
          h.codec = {.vocabulary = 5};
          h.real_bytes = 8;
          h.most_tokens = 60;
          h.prompt = 2;
          live_profile known;
          known.observe_round_trip(0, 0.5);  // which its driver measures
          return std::make_unique<site>(
              h, at == side::l ? std::vector<token_id>{0, 1} : std::vector<token_id>{},
              shared_drafts{coupled_noise(seed)},
              scheduler<live_profile>{scheduling(how), known, h.look_ahead, seed});
        };
      };
      world.make_l = make(side::l);
      world.make_r = make(side::r);
      world.row = [&](side at, auto text) { return toy_row(model(at), text); };
      trouble(world, n, 10);
      for (auto& k : world.link) {
        k.swing = k.delay / 2;
        k.period = 5;
      }
      REQUIRE(world.run(2000));
      if (how == 0) first = world.seen(side::l).text;
      CHECK(world.seen(side::l).text == first);
      CHECK(world.seen(side::r).text == first);
      CHECK(world.seen(side::l).misuses + world.seen(side::r).misuses == 0);
      if (scheduling(how) == scheduling::moving) hand_overs += world.seen(side::l).hand_overs;
    }
  }
  CHECK(hand_overs > 40);  // of `moving`
}
