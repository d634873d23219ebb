// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/dragon.hpp>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "draft/toy_vocabularies.hpp"
#include "sites/two_sites.hpp"
#include "support/allocations.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

using tokens = std::vector<token_id>;

// Every scheduler is a function of what it sees: these see the step.
struct scheduler {
  enum { stays, turns, random } how = stays;
  std::uint64_t seed = 0;
  side operator()(const dragon_outcome& o) const {
    if (how == stays) return o.at;
    if (how == turns) return o.at == side::l ? side::r : side::l;
    return side(philox({o.step, 0, 0, 0}, seed)[0] & 1);
  }
};

// Two toy models and what both sites are told.
struct setting {
  hello terms = {};
  tokens prompt = {};
  std::uint64_t seed = 0;
  double dynamic = 0;  // how much h follows the text
  std::size_t order = 2;
  bool mapped = false;  // the model of l has another vocabulary (draft/mapped.hpp)
  toy_source<double> model(side s) const {
    return {terms.codec.vocabulary, seed * 2 + std::uint64_t(s), order, 3};
  }
  std::vector<double> row(side s, std::span<const token_id> text) const {
    return mapped && s == side::l ? mapped_row_after(text, seed) : toy_row(model(s), text);
  }
  double h(side s, std::span<const token_id> text) const {
    return 0.3 * double(s) +
           dynamic * std::sin(double(text.back()) + double(s) + double(text.size()));
  }
};
setting random_setting(numbers& n, std::uint64_t seed) {
  setting s{.seed = seed};
  const std::size_t V = 2 + n.below(6);
  s.terms.codec = any_codec(n, V);
  s.terms.real_bytes = 8;
  s.terms.look_ahead = 1 + std::uint32_t(n.below(8));
  s.terms.most_tokens = 12 + std::uint32_t(n.below(20));
  if (n.below(3) == 0) s.terms.end_of_text = 1;
  s.terms.first = side(n.below(2));
  s.prompt = tokens(1 + n.below(3), 0);
  s.dynamic = n.below(2) ? 1 : 0;
  return s;
}

// What the two sites must say: one step after another, no protocol.
template <class Coupling>
tokens synchronous(const setting& s, Coupling coupling) {
  tokens text = s.prompt;
  std::vector<double> scratch(1);
  while (text.size() < s.terms.most_tokens && text.back() != s.terms.end_of_text) {
    const auto step = std::uint32_t(text.size());
    std::array<std::vector<double>, 2> p;
    std::array<token_id, 2> x = {};
    for (const side at : {side::l, side::r}) {
      auto& row = p[std::size_t(at)] = decoded_row(s.terms.codec, s.row(at, text));
      x[std::size_t(at)] = coupling.draw(at, normalise(dense_row<double>(row)), step, scratch);
    }
    struct plain_row {
      status why;
      dense_row<double> row;
    };
    const auto a = coupling.aggregate(
        step, x[0], x[1], weigh_sites(s.h(side::l, text), s.h(side::r, text)),
        [&](side at) { return plain_row{status::ok, dense_row<double>(p[std::size_t(at)])}; },
        scratch);
    if (a.token == no_token) return {};
    text.push_back(a.token);
  }
  return text;
}

template <class Coupling>
using site_of = dragon_site<double, Coupling, scheduler>;
template <class Coupling>
using world_of = simulated_sites<double, site_of<Coupling>>;

// Sites of a setting on a world; r starts with no prompt if it is to learn it.
template <class Coupling>
void populate(world_of<Coupling>& world, const setting& s, const Coupling& coupling,
              scheduler schedule, bool prompt_at_r = true) {
  const auto make = [=](side at) {
    return [=](std::uint64_t life) {
      hello terms = s.terms;
      terms.from = at;
      terms.life = life;
      const bool knows = at == side::l || prompt_at_r;
      return std::make_unique<site_of<Coupling>>(terms, knows ? s.prompt : tokens{}, coupling,
                                                 schedule);
    };
  };
  world.make_l = make(side::l);
  world.make_r = make(side::r);
  world.row = [=](side at, auto text) { return s.row(at, text); };
  world.h = [=](side at, auto text) { return s.h(at, text); };
}

independent_drafts<> independent(std::uint64_t seed) {
  return {random_streams(seed, 0, 0), random_streams(seed, 0, 1)};
}
shared_drafts shared(std::uint64_t seed) { return {coupled_noise(seed)}; }

// Seeded runs; what went wrong, by kind.
template <class Coupling>
void compare_with_synchronous(std::size_t runs, bool faults,
                              Coupling (*coupling_of)(std::uint64_t)) {
  std::size_t lives = 0, hand_overs = 0, emitted = 0, decodes = 0, wrong = 0, unfinished = 0,
              misuses = 0, unbounded = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    numbers n(seed);
    const setting s = random_setting(n, seed);
    const Coupling coupling = coupling_of(seed);
    world_of<Coupling> world(seed);
    populate(world, s, coupling, {decltype(scheduler::how)(n.below(3)), seed}, n.below(2) == 0);
    const double calm = faults ? n.between(1, 15) : 0;
    trouble(world, n, calm);
    world.check = [&] {
      for (const auto* site : {world.l(), world.r()})
        for (const side at : {side::l, side::r}) {
          unbounded += site && site->waiting(at) > s.terms.look_ahead;
          if (site && !site->problem().empty()) FAIL(site->problem());
        }
    };
    const tokens due = synchronous(s, coupling);
    // Calm links: a token takes a few round trips and two decodings; what a fault left behind, a
    // few timers.
    const bool finished = world.run(calm + 8 + 30 * 12 + 20 * world.timer);
    unfinished += !finished;
    for (const side at : {side::l, side::r}) {
      const observed_site& o = world.seen(at);
      misuses += o.misuses;
      lives += o.lives;
      hand_overs += o.hand_overs;
      emitted += o.text.size();
      decodes += o.decodes;
      wrong += finished && o.text != due;
    }
    INFO("seed " << seed << ", K " << s.terms.look_ahead << ", until " << world.now());
    REQUIRE((wrong == 0 && unfinished == 0 && misuses == 0 && unbounded == 0));
  }
  std::printf(
      "%zu runs: %zu decodes, %zu lives, %zu tokens, %zu hand-overs: no token wrong, lost or "
      "twice\n",
      runs, decodes, lives, emitted, hand_overs);
  CHECK(decodes > 40 * runs);
}

}  // namespace

TEST_CASE(
    "without faults, under every link, scheduler and look-ahead, the text is that of the "
    "synchronous loop") {
  compare_with_synchronous(600, false, independent);
  compare_with_synchronous(600, false, shared);
}
TEST_CASE(
    "losses, repetitions, reordering, cuts and restarts change no token of independent drafts") {
  compare_with_synchronous(3000, true, independent);
}
TEST_CASE(
    "losses, repetitions, reordering, cuts and restarts change no token of the Gumbel-max "
    "coupling") {
  compare_with_synchronous(3000, true, shared);
}

// ---- the exact law ------------------------------------------------------------------------------

TEST_CASE(
    "under faults the joint law of whole texts is exactly the product of eta^l p^l + eta^r p^r") {
  using coupling = independent_drafts<walked>;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    setting s{.seed = seed, .dynamic = 1, .mapped = seed > 10};
    s.terms.codec = {.vocabulary = s.mapped ? of_target.size() : seed % 2 ? 2u : 3u};
    s.terms.real_bytes = 8;
    s.terms.look_ahead = 1 + std::uint32_t(seed) % 3;
    s.terms.most_tokens = seed % 2 && !s.mapped ? 4 : 3;
    s.prompt = {0};
    std::size_t branches = 0, lives = 0, misuses = 0;
    const auto law = exact_law([&](exhaustive_chooser& tree) {
      decisions all{tree};
      numbers n(seed);
      world_of<coupling> world(seed);
      populate(world, s, coupling{{&all, 0}, {&all, 1}}, {scheduler::random, seed});
      trouble(world, n, 3);
      world.stop(side(seed & 1), 0.4, 0.1);  // and one restart that is sure to come in the middle
      REQUIRE(world.run(2000));
      ++branches;
      lives += world.seen(side::l).lives + world.seen(side::r).lives;
      misuses += world.seen(side::l).misuses + world.seen(side::r).misuses;
      return world.seen(side(seed & 1)).text;
    });
    double worst = 0, seen = 0;
    for (const auto& [text, probability] : law) {
      double due = 1;
      for (std::size_t t = 1; t < text.size(); ++t) {
        const tokens before(text.begin(), text.begin() + std::ptrdiff_t(t));
        const auto eta = weigh_sites(s.h(side::l, before), s.h(side::r, before));
        due *= target_law(eta.law(), s.row(side::l, before),
                          s.row(side::r, before))[std::size_t(text[t])];
      }
      worst = std::max(worst, std::fabs(probability - due));
      seen += due;
    }
    std::printf("V %zu, K %u: %zu branches, %.1f lives each, %zu texts, worst error %.1e\n",
                s.terms.codec.vocabulary, s.terms.look_ahead, branches,
                double(lives) / double(branches), law.size(), worst);
    CHECK(worst < 1e-12);
    CHECK(std::fabs(seen - 1) < 1e-12);
    CHECK(misuses == 0);
  }
}

// ---- one site, and what another may send it -----------------------------------------------------

namespace {

struct recorder {
  std::vector<std::vector<std::uint8_t>> sent = {};
  std::vector<decode_order> orders = {};
  tokens emitted = {};
  void send(std::span<const std::uint8_t> b) { sent.emplace_back(b.begin(), b.end()); }
  void decode(const decode_order& o) { orders.push_back(o); }
  void emit(std::uint32_t, token_id x) { emitted.push_back(x); }
  void aggregates(side) {}
};
// Site r, which aggregates, two tokens of look-ahead, connected and greeted.
struct lone_site {
  explicit lone_site(std::uint32_t most_tokens = 20) : terms(terms_of(most_tokens)) {}
  static hello terms_of(std::uint32_t most_tokens) {
    hello h{.from = side::r, .kind = protocol::dragon_shared};
    h.codec = {.vocabulary = 3};
    h.real_bytes = 8;
    h.look_ahead = 2;
    h.most_tokens = most_tokens;
    h.first = side::r;
    return h;
  }
  hello terms;
  const tokens prompt{0};
  shared_drafts noise{coupled_noise(1)};
  recorder sink = {};
  dragon_site<double, shared_drafts> site{terms, prompt, noise};
  template <class M>
  void hears(const M& m) {
    std::vector<std::uint8_t> bytes(most_message_bytes(terms));
    bytes.resize(encode(m, terms, bytes));
    site.received(bytes, sink);
  }
  void greet() {
    hello other = terms;
    other.from = side::l;
    other.life = 9;
    site.connected(sink);
    hears(other);
  }
  // Its own draft of the next step, from a row that makes it `x`.
  void drafts(token_id x) {
    std::vector<double> row(3);
    row[std::size_t(x)] = 1;
    site.decoded(sink.orders.back().ticket, row, 0, 0, sink);
  }
  // l's draft of a step, from a row that makes it `x`.
  drafted says(std::uint32_t epoch, std::uint32_t step, token_id x) {
    std::vector<double> row(3);
    row[std::size_t(x)] = 1;
    return {epoch, step, x, 0, 0, coded(row)};
  }
  std::span<const std::uint8_t> coded(const std::vector<double>& row) {
    std::vector<token_id> ids(3);
    std::vector<double> mass(3);
    bytes.resize(row_bytes(terms));
    return std::span(bytes).first(encode(terms.codec, row, bytes, ids, mass).bytes);
  }
  // The connection ends, and both ends meet again.
  void meets_again() {
    site.disconnected();
    greet();
  }
  std::vector<std::uint8_t> bytes = {};
};

}  // namespace

TEST_CASE("what both sites drafted is settled. Where they differ, the noise chooses by both rows") {
  lone_site r;
  r.greet();
  r.drafts(2);
  r.hears(r.says(1, 1, 2));
  CHECK(r.sink.emitted == tokens{2});
  r.drafts(1);
  r.hears(r.says(1, 2, 0));
  REQUIRE(r.sink.emitted.size() == 2);
  CHECK((r.sink.emitted[1] == 0 || r.sink.emitted[1] == 1));
  CHECK(r.site.problem() == "");
}
TEST_CASE(
    "a draft that is not valid is not kept: the connection ends with the reason, and the good one "
    "is taken") {
  using bytes = std::span<const std::uint8_t>;
  struct bad {
    std::string why;
    std::function<drafted(drafted)> make;
  };
  const std::vector<std::uint8_t> longer(23, 0), wrong(24, 0xff);
  for (const bad& b : std::vector<bad>{{"draft of step 1: invalid_row",
                                        [](drafted d) {
                                          d.row = bytes();
                                          return d;
                                        }},
                                       {"draft of step 1: invalid_row",
                                        [](drafted d) {
                                          d.row = d.row.first(23);
                                          return d;
                                        }},
                                       {"draft of step 1: invalid_row",
                                        [&](drafted d) {
                                          d.row = longer;
                                          return d;
                                        }},
                                       {"draft of step 1: invalid_row",
                                        [&](drafted d) {
                                          d.row = wrong;
                                          return d;
                                        }},
                                       {"malformed",
                                        [](drafted d) {
                                          d.h = NAN;
                                          return d;
                                        }},
                                       {"malformed",
                                        [](drafted d) {
                                          d.h = INFINITY;
                                          return d;
                                        }},
                                       {"malformed", [](drafted d) {
                                          d.seconds = NAN;
                                          return d;
                                        }}}) {
    lone_site r;
    INFO(b.why);
    r.greet();
    r.drafts(2);
    r.hears(b.make(r.says(1, 1, 2)));
    CHECK(r.site.problem().find(b.why) != std::string::npos);
    CHECK(r.site.waiting(side::l) == 0);
    r.meets_again();
    CHECK(r.site.problem() == "");
    r.hears(r.says(1, 1, 2));
    CHECK(r.site.problem() == "");
    CHECK(r.sink.emitted == tokens{2});
  }
}
TEST_CASE("a draft of which no token can be made is asked for again at the next connection") {
  // it has no documents, and l says that it has none either: together they have no law
  lone_site r;
  r.greet();
  std::vector<double> row{0, 1, 0};
  r.site.decoded(r.sink.orders.back().ticket, row, -INFINITY, 0, r.sink);
  drafted none = r.says(1, 1, 2);
  none.h = -INFINITY;
  r.hears(none);
  CHECK(r.site.problem() == "aggregation at step 1: undefined_target");
  r.meets_again();
  CHECK(r.site.waiting(side::l) == 0);
  r.hears(r.says(1, 1, 2));
  CHECK(r.site.problem() == "");
  CHECK(r.sink.emitted == tokens{2});
}
TEST_CASE("an epoch that no later message confirms is forgotten with its connection") {
  lone_site r;
  r.greet();
  r.drafts(2);
  r.hears(r.says(2, 2, 1));
  CHECK(r.site.epoch(side::l) == 2);
  r.meets_again();
  r.hears(r.says(1, 1, 2));
  CHECK(r.sink.emitted == tokens{2});
}
TEST_CASE(
    "an h of its own that is no number ends the connection, and is asked for again at the next") {
  lone_site r;
  r.greet();
  const std::size_t orders = r.sink.orders.size();
  r.site.decoded(r.sink.orders.back().ticket, std::vector<double>{0, 1, 0}, NAN, 0, r.sink);
  CHECK(r.site.problem() == "h of step 1 is not below infinity");
  r.meets_again();
  CHECK(r.sink.orders.size() == orders + 1);
}
TEST_CASE("weights are those of the difference of h, however large both are") {
  const double h_l = 1000000.03, h_r = 999999.97;
  const site_weights due = weigh_sites(h_l, h_r),
                     rounded = weigh_sites(double(float(h_l)), double(float(h_r)));
  CHECK(due.l == Approx(0.5149955));
  const std::vector<double> row_l{1, 0, 0}, row_r{0, 1, 0};
  lone_site r(2000);
  r.greet();
  std::size_t wrong = 0, would_differ = 0;
  for (std::uint32_t step = 1; step < r.terms.most_tokens; ++step) {
    r.site.decoded(r.sink.orders.back().ticket, row_r, h_r, 0, r.sink);
    drafted d = r.says(r.site.epoch(side::l), step, 0);
    d.h = h_l;
    r.hears(d);
    REQUIRE(r.sink.emitted.size() == step);
    const auto token = [&](const site_weights& eta) {
      return aggregate_shared(step, 0, dense_row<double>(row_l), 1, dense_row<double>(row_r), eta,
                              r.noise.noise)
          .token;
    };
    wrong += r.sink.emitted.back() != token(due);
    would_differ += token(due) != token(rounded);
  }
  CHECK(wrong == 0);
  CHECK(would_differ > 10);
}
TEST_CASE("drafts of an earlier epoch, of a settled step and beyond the look-ahead are dropped") {
  lone_site r;
  r.greet();
  for (std::uint32_t step = 0; step < 20; ++step)
    if (step != 1) r.hears(r.says(0, step, 1));
  CHECK(r.site.waiting(side::l) == 0);
  r.hears(r.says(1, 1, 1));
  CHECK(r.site.waiting(side::l) == 1);  // step 2 was of epoch 0
  r.hears(r.says(1, 2, 2));
  r.hears(r.says(1, 3, 0));  // would lie where step 1 does
  CHECK(r.site.waiting(side::l) == 2);
  CHECK(r.site.problem() == "");
}
TEST_CASE(
    "a text that differs from the settled one, and a message of another protocol, end the "
    "connection clearly") {
  lone_site r;
  r.greet();
  settled_text other{.first = 0, .count = 1};
  other.tokens[0] = 2;
  r.hears(other);
  CHECK(r.site.problem() == "token 0: 0 here, 2 there");
  r.site.disconnected();
  r.greet();
  CHECK(r.site.problem().empty());  // a new connection begins anew
  r.hears(split_answer{});
  CHECK(r.site.problem() == "a message of another protocol");
  CHECK(r.site.text() == tokens{0});
}
TEST_CASE("before hello, and after a refusal, a site listens to nothing and decides on its own") {
  lone_site r;
  r.hears(r.says(1, 1, 1));
  r.site.connected(r.sink);
  r.hears(r.says(1, 1, 1));
  CHECK(r.site.waiting(side::l) == 0);
  hello other = r.terms;
  r.hears(other);
  CHECK(r.site.problem() == "side: both ends are the server");
  other.from = side::l;
  r.hears(other);
  r.hears(r.says(1, 1, 1));
  CHECK(r.site.waiting(side::l) == 0);
}
TEST_CASE("a row that is none ends the connection, and is asked for again at the next") {
  lone_site r;
  r.greet();
  const std::size_t orders = r.sink.orders.size();
  r.site.decoded(r.sink.orders.back().ticket, std::vector<double>{NAN, 0, 0}, 0, 0, r.sink);
  CHECK(r.site.problem() == "row of step 1: invalid_row");
  r.greet();
  CHECK(r.sink.orders.size() == orders + 1);
}
TEST_CASE(
    "of a side that comes back with empty memory nothing is kept, and its epoch is no later than "
    "the text") {
  lone_site r;
  r.greet();
  r.hears(r.says(2, 2, 1));  // l knows of a rejection at step 1 that was never told
  CHECK(r.site.epoch(side::l) == 2);
  hello other = r.terms;
  other.from = side::l;
  other.life = 10;
  r.site.disconnected();
  r.site.connected(r.sink);
  r.hears(other);
  CHECK(r.site.epoch(side::l) == 1);
  r.hears(r.says(1, 1, 1));
  CHECK(r.site.waiting(side::l) == 1);
  other.life = 11;
  r.site.disconnected();
  r.site.connected(r.sink);
  r.hears(other);
  CHECK(r.site.waiting(side::l) == 0);
}
TEST_CASE(
    "an order names how much of the model's text stands: rolled back to the rejected draft, no "
    "further") {
  lone_site r;
  r.greet();
  r.drafts(2);
  r.drafts(2);
  CHECK(r.sink.orders.size() == 2);  // two of look-ahead
  settled_text outcome{.first = 1, .count = 2, .epoch = {1, 3}, .next = side::l};
  outcome.tokens[0] = 2;
  outcome.tokens[1] = 1;
  r.hears(outcome);
  CHECK(r.sink.emitted == tokens{2, 1});
  CHECK(r.sink.orders.size() == 3);
  CHECK(r.sink.orders.back().keep == 2);
  CHECK(r.sink.orders.back().step == 3);
  CHECK(r.site.epoch(side::r) == 3);
  CHECK(r.site.epoch(side::l) == 1);
}
TEST_CASE(
    "a site allocates nothing once it is made: drafts, aggregation, messages, hand-overs, catching "
    "up") {
  struct wire_between {  // the last messages, in memory of its own
    std::array<std::array<std::uint8_t, 2048>, 64> bytes = {};
    std::array<std::size_t, 64> size = {};
    std::size_t begin = 0, end = 0, emitted = 0;
    decode_order order = {};
    bool ordered = false;
    void send(std::span<const std::uint8_t> b) {
      std::copy(b.begin(), b.end(), bytes[end % 64].begin());
      size[end++ % 64] = b.size();
    }
    void decode(const decode_order& o) {
      order = o;
      ordered = true;
    }
    void emit(std::uint32_t, token_id) { ++emitted; }
    void aggregates(side) {}
  };
  hello terms;
  terms.codec = {.vocabulary = 3};
  terms.real_bytes = 8;
  terms.most_tokens = 400;
  const tokens prompt{0};
  const independent_drafts<> coupling = independent(4);
  const scheduler turns{scheduler::turns};
  const auto make = [&](side at) {
    hello own = terms;
    own.from = at;
    return site_of<independent_drafts<>>(own, at == side::l ? prompt : tokens{}, coupling, turns);
  };
  std::array sites{make(side::l), make(side::r)};
  std::array<wire_between, 2> from;
  const std::vector<double> row{0.5, 0.25, 0.25};
  const std::size_t before = allocations;
  for (std::size_t s : {0u, 1u}) sites[s].connected(from[s]);
  for (int i = 0; i < 20000; ++i)
    for (std::size_t s : {0u, 1u}) {
      wire_between &in = from[1 - s], &out = from[s];
      if (out.ordered) {
        out.ordered = false;
        sites[s].decoded(out.order.ticket, row, 0, 0, out);
      } else if (in.begin < in.end) {
        const std::size_t at = in.begin++ % 64;
        // the others are lost
        if (i % 11 > 0) sites[s].received(std::span(in.bytes[at]).first(in.size[at]), out);
      }
      if (i % 32 == 0) sites[s].tick(out);
    }
  const std::size_t made = allocations - before;
  CHECK(made == 0);
  CHECK(sites[0].problem() == "");
  CHECK(sites[1].problem() == "");
  CHECK((sites[0].finished() && sites[1].finished()));
  CHECK(sites[0].text() == sites[1].text());
  CHECK(from[1].emitted == 400);
}
