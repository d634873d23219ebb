// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/dssd.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "draft/toy_vocabularies.hpp"
#include "sites/two_sites.hpp"
#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

using tokens = std::vector<token_id>;

struct setting {
  hello terms = {};
  tokens prompt = {0};
  std::uint64_t seed = 0;
  bool holes = false;   // the device's rows are NaN after some texts
  bool mapped = false;  // its model has another vocabulary (draft/mapped.hpp)
  toy_source<double> model(side s) const {
    return {terms.codec.vocabulary, seed * 2 + std::uint64_t(s), 2, 3};
  }
  // The rows of which the law is made: what each end sees of the other's is decoded.
  std::vector<double> device_row(std::span<const token_id> text) const {
    const bool hole = holes && (text.size() + std::size_t(text.back())) % 3 == 1;
    if (hole) return std::vector(terms.codec.vocabulary, std::nan(""));
    return mapped ? mapped_row_after(text, seed) : toy_row(model(side::l), text);
  }
  std::vector<double> q(const tokens& text) const {
    const auto row = device_row(text);
    return terms.kind == protocol::dsd || terms.kind == protocol::dsd_block
               ? decoded_row(terms.codec, row)
               : row;
  }
  std::vector<double> p(const tokens& text) const {
    const auto row = toy_row(model(side::r), text);
    return terms.kind == protocol::dssd ? decoded_row(terms.codec, row) : row;
  }
};
setting random_setting(numbers& n, std::uint64_t seed) {
  setting s{.seed = seed};
  s.terms.kind = protocol(std::size_t(protocol::dsd) + n.below(4));
  s.terms.codec = any_codec(n, 2 + n.below(6));
  s.terms.real_bytes = 8;
  s.terms.look_ahead = 1 + std::uint32_t(n.below(8));
  s.terms.most_tokens = 12 + std::uint32_t(n.below(20));
  if (n.below(3) == 0) s.terms.end_of_text = 1;
  s.holes = n.below(3) == 0;
  s.prompt = tokens(1 + n.below(3), 0);
  return s;
}
// One machine, one loop of drafting and verification.
tokens on_one_machine(const setting& s) {
  tokens text = s.prompt;
  random_streams chooser(s.seed);
  const coupled_verifier coupled{coupled_noise(s.seed)};
  std::vector<double> scratch(verify_scratch(s.terms.codec.vocabulary, s.terms.look_ahead));
  while (text.size() < s.terms.most_tokens && text.back() != s.terms.end_of_text) {
    const auto start = std::uint32_t(text.size());
    std::vector<std::vector<double>> q, p;
    tokens longer = text;
    while (q.size() < s.terms.look_ahead && longer.size() < s.terms.most_tokens &&
           (q.empty() || longer.back() != s.terms.end_of_text)) {
      const auto next = s.q(longer);
      const auto row = normalise(as_row(next));
      if (row.why() != status::ok) break;
      q.push_back(next);
      p.push_back(s.p(longer));
      const moment m{stream::draft, std::uint32_t(longer.size()), start};
      longer.push_back(s.terms.kind == protocol::split_shared ? race(row, coupled.noise, m.position)
                                                              : draw(row, m, chooser, scratch));
    }
    p.push_back(s.p(longer));
    std::vector<emission> out(q.size() + 1);
    const draft d{std::span(longer).subspan(start), start, s.terms.end_of_text,
                  longer.size() < s.terms.most_tokens};
    const verdict v = s.terms.kind == protocol::split_shared
                          ? verify_coupled(coupled_draft{d}, q, p, lossless{}, coupled.noise, out)
                      : s.terms.kind == protocol::dsd_block
                          ? verify_block(d, q, p, lossless{}, chooser, out, scratch)
                          : verify_token(d, q, p, lossless{}, chooser, out, scratch);
    if (v.why != status::ok) return {};
    for (std::size_t i = 0; i < v.emitted; ++i) text.push_back(out[i].token);
  }
  return text;
}

template <class Chooser>
using world_of =
    simulated_sites<double, split_device<double, Chooser>, split_server<double, Chooser>>;
template <class Chooser>
void populate(world_of<Chooser>& world, const setting& s, const Chooser& device,
              const Chooser& server, bool prompt_at_server = true) {
  const auto own = [s](side at, std::uint64_t life) {
    hello terms = s.terms;
    terms.from = at;
    terms.life = life;
    return terms;
  };
  world.make_l = [=](std::uint64_t life) {
    return std::make_unique<split_device<double, Chooser>>(own(side::l, life), s.prompt, device,
                                                           coupled_noise(s.seed));
  };
  world.make_r = [=](std::uint64_t life) {
    return std::make_unique<split_server<double, Chooser>>(
        own(side::r, life), prompt_at_server ? s.prompt : tokens{}, server, coupled_noise(s.seed));
  };
  world.row = [=](side at, auto text) {
    return at == side::l ? s.device_row(text) : toy_row(s.model(at), text);
  };
}

void compare_with_one_machine(std::size_t runs, bool faults) {
  std::size_t lives = 0, emitted = 0;
  std::array<std::size_t, 6> kinds = {};
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    numbers n(seed);
    const setting s = random_setting(n, seed);
    world_of<random_streams> world(seed);
    populate(world, s, random_streams(seed), random_streams(seed), n.below(2) == 0);
    const double calm = faults ? n.between(1, 15) : 0;
    trouble(world, n, calm);
    world.check = [&] {
      if (world.l() && !world.l()->problem().empty()) FAIL("device: " << world.l()->problem());
      if (world.r() && !world.r()->problem().empty()) FAIL("server: " << world.r()->problem());
    };
    const tokens due = on_one_machine(s);
    INFO("seed " << seed << ", " << name(s.terms.kind) << ", gamma " << s.terms.look_ahead);
    const bool finished = world.run(calm + 8 + 30 * 20 + 40 * world.timer);
    INFO("until " << world.now());
    REQUIRE(finished);
    for (const side at : {side::l, side::r}) {
      const observed_site& o = world.seen(at);
      REQUIRE(o.text == due);
      REQUIRE(o.misuses == 0);
      lives += o.lives;
      emitted += o.text.size();
    }
    ++kinds[std::size_t(s.terms.kind)];
  }
  std::printf(
      "%zu runs (dsd %zu, block %zu, dssd %zu, shared %zu): %zu lives, %zu tokens, none wrong, "
      "lost or twice\n",
      runs, kinds[2], kinds[3], kinds[4], kinds[5], lives, emitted);
}

}  // namespace

TEST_CASE(
    "split verification without faults emits the text of one machine, on both ends, in every "
    "protocol") {
  compare_with_one_machine(800, false);
}
TEST_CASE(
    "losses, repetitions, reordering, cuts and restarts of device or server change no token") {
  compare_with_one_machine(5000, true);
}
TEST_CASE(
    "under faults the joint law of whole texts is exactly that of p, in every protocol with "
    "independent noise") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    setting s{.seed = seed, .mapped = seed > 9};
    s.terms.kind = protocol(std::size_t(protocol::dsd) + seed % 3);
    s.terms.codec = {.vocabulary = s.mapped ? of_target.size() : seed % 2 ? 2u : 3u};
    if (seed > 6 && !s.mapped) {
      s.terms.codec.format = row_codec::values::counts;
      s.terms.codec.top_k = 2;
      s.terms.codec.total = 5;
    }
    s.terms.real_bytes = 8;
    s.terms.look_ahead = 1 + std::uint32_t(seed) % 3;
    s.terms.most_tokens = s.mapped ? 4 : seed % 2 ? 5 : 4;
    s.holes = seed % 3 == 0;
    std::size_t branches = 0, lives = 0;
    const auto law = exact_law([&](exhaustive_chooser& tree) {
      decisions all{tree};
      numbers n(seed);
      world_of<walked> world(seed);
      populate(world, s, walked{&all, 0}, walked{&all, 1});
      trouble(world, n, 3);
      world.stop(seed % 2 ? side::l : side::r, 0.4, 0.1);
      world.stop(side::l, 1.2, 0.1);
      REQUIRE(world.run(2000));
      ++branches;
      lives += world.seen(side::l).lives + world.seen(side::r).lives;
      return world.seen(side(seed & 1)).text;
    });
    double worst = 0, seen = 0;
    for (const auto& [text, probability] : law) {
      double due = 1;
      for (std::size_t t = 1; t < text.size(); ++t)
        due *= s.p(tokens(text.begin(), text.begin() + std::ptrdiff_t(t)))[std::size_t(text[t])];
      worst = std::max(worst, std::fabs(probability - due));
      seen += due;
    }
    std::printf(
        "%-9s V %zu, gamma %u: %zu branches, %.1f lives each, %zu texts, worst error %.1e\n",
        name(s.terms.kind).data(), s.terms.codec.vocabulary, s.terms.look_ahead, branches,
        double(lives) / double(branches), law.size(), worst);
    CHECK(worst < 1e-12);
    CHECK(std::fabs(seen - 1) < 1e-12);
  }
}

TEST_CASE("a round takes gamma decodings, a scoring, a round trip and its bytes") {
  setting s{.seed = 3};
  s.terms.kind = protocol::split_shared;
  s.terms.codec = {.vocabulary = 20};
  s.terms.real_bytes = 8;
  s.terms.look_ahead = 5;
  s.terms.most_tokens = 100;
  world_of<random_streams> world(1);
  populate(world, s, random_streams(3), random_streams(3));
  world.seconds = [](side at, std::size_t) { return at == side::l ? 0.1 : 0.25; };
  world.link[0] = {.delay = 0.03, .bytes_per_second = 100};
  world.link[1] = {.delay = 0.02, .bytes_per_second = 400};
  world.timer = 1e9;
  REQUIRE(world.run(1e4));
  const double due = 5 * 0.1 + 0.25 + 0.05 + (4 + 5 + 4) / 100.0 + (5 + 4) / 400.0;
  const auto& at = world.seen(side::l).emitted_at;  // all tokens of a round at once
  double last = at[1];
  std::size_t rounds = 1;
  for (std::size_t t = 2; t + 6 < at.size(); ++t)
    if (at[t] != at[t - 1]) {
      CHECK(at[t] - last == Approx(due));
      last = at[t];
      ++rounds;
    }
  CHECK(rounds > 15);
  CHECK(world.seen(side::r).decodes >= rounds);
}

// ---- one end, and what another may send it ------------------------------------------------------

namespace {

struct recorder {
  std::vector<message> sent = {};
  hello terms = {};
  std::vector<decode_order> orders = {};
  std::vector<score_order> scorings = {};
  tokens emitted = {};
  void send(std::span<const std::uint8_t> b) {
    message m;
    REQUIRE(decode(b, terms, m) == wire::ok);
    sent.push_back(m);
  }
  void decode(const decode_order& o) { orders.push_back(o); }
  void score(const score_order& o) { scorings.push_back(o); }
  void emit(std::uint32_t, token_id x) { emitted.push_back(x); }
  static wire decode(std::span<const std::uint8_t> b, const hello& terms, message& m) {
    return specagg::sites::decode(b, terms, m);
  }
};
// A device or a server of DSSD, gamma 2, connected and greeted; rows are given as they are asked
// for.
template <class Site>
struct lone_end {
  hello terms;
  const tokens prompt{0};
  recorder sink = {};
  Site site;
  explicit lone_end(side from) : lone_end(terms_of(from)) {}
  explicit lone_end(const hello& own)
      : terms(own), sink{.terms = terms}, site(terms, prompt, random_streams(1)) {
    site.start(sink);
    site.connected(sink);
    hello other = terms;
    other.from = terms.from == side::l ? side::r : side::l;
    hears(other);
  }
  static hello terms_of(side from) {
    hello h{.life = 1 + std::uint64_t(from), .from = from, .kind = protocol::dssd};
    h.codec = {.vocabulary = 3};
    h.real_bytes = 8;
    h.look_ahead = 2;
    h.most_tokens = 20;
    return h;
  }
  template <class M>
  void hears(const M& m) {
    std::vector<std::uint8_t> bytes(most_message_bytes(terms));
    bytes.resize(encode(m, terms, bytes));
    site.received(bytes, sink);
  }
  template <class M>
  const M& last() const {
    REQUIRE(std::get_if<M>(&sink.sent.back()));
    return std::get<M>(sink.sent.back());
  }
};
split_request request(std::uint32_t start, const tokens& y, token_id correction = no_token) {
  split_request r{.start = start, .correction = correction, .count = y.size()};
  for (std::size_t j = 0; j < y.size(); ++j) {
    r.tokens[j] = y[j];
    r.probabilities[j] = 0.5;
  }
  return r;
}
const std::vector<std::vector<double>> sure{{0, 1, 0}, {0, 1, 0}, {0, 0, 1}};  // p: 1, 1, 2

}  // namespace

TEST_CASE(
    "a server verifies a round once, answers it as often as asked, and no other draft in its "
    "place") {
  lone_end<split_server<double>> e(side::r);
  e.hears(request(1, {1, 1}));
  REQUIRE(e.sink.scorings.size() == 1);
  e.hears(request(1, {1, 1}));  // still at it
  CHECK(e.sink.scorings.size() == 1);
  e.site.scored(e.sink.scorings[0].ticket, sure, e.sink);
  CHECK(e.sink.emitted == tokens{1, 1, 2});
  const std::size_t sent = e.sink.sent.size();
  e.hears(request(1, {1, 1}));
  CHECK(e.sink.sent.size() == sent + 1);
  CHECK((e.last<split_answer>().accepted == 2 && e.last<split_answer>().token == 2));
  CHECK(e.sink.emitted == tokens{1, 1, 2});
  e.hears(request(1, {1, 0}));
  CHECK(e.site.problem() == "draft at position 1: another was sent before");
}
TEST_CASE(
    "rows that are not valid are refused before anything is kept, and the good repeat is "
    "verified") {
  const std::vector<double> row{0, 1, 0};
  hello terms = lone_end<split_server<double>>::terms_of(side::r);
  terms.kind = protocol::dsd;
  std::vector<std::uint8_t> good(2 * row_bytes(terms));
  std::vector<token_id> ids(3);
  std::vector<double> mass(3);
  for (std::size_t j = 0; j < 2; ++j)
    REQUIRE(
        encode(terms.codec, row, std::span(good).subspan(j * row_bytes(terms)), ids, mass).why ==
        status::ok);
  std::vector<std::uint8_t> nan = good;
  std::fill(nan.begin() + 24, nan.begin() + 32, std::uint8_t(0xff));
  for (const auto& bad :
       {std::span<const std::uint8_t>(), std::span<const std::uint8_t>(good).first(47),
        std::span<const std::uint8_t>(good).first(24), std::span<const std::uint8_t>(nan)}) {
    lone_end<split_server<double>> e(terms);
    // with the token before it, which the server does not have yet
    split_request r = request(2, {1, 1}, 2);
    r.rows = bad;
    e.hears(r);
    CHECK(e.site.problem() == "draft at position 2: invalid_row");
    CHECK(e.sink.emitted.empty());
    CHECK(e.sink.scorings.empty());
    hello device = terms;
    device.from = side::l;
    e.site.disconnected();
    e.site.connected(e.sink);
    e.hears(device);
    r.rows = good;
    e.hears(r);
    CHECK(e.site.problem() == "");
    CHECK(e.sink.emitted == tokens{2});
    REQUIRE(e.sink.scorings.size() == 1);
    e.site.scored(e.sink.scorings[0].ticket, sure, e.sink);
    CHECK(e.sink.emitted == tokens{2, 1, 1, 2});
  }
}
TEST_CASE(
    "a server asks for text it lacks, and gives a device that restarted the text up to the last "
    "round") {
  lone_end<split_server<double>> e(side::r);
  e.hears(request(3, {1}));
  CHECK(e.last<progress>().size == 1);
  settled_text m{.first = 1, .count = 2};
  m.tokens[0] = 2;
  m.tokens[1] = 1;
  e.hears(m);
  e.hears(request(3, {1, 1}));
  REQUIRE(e.sink.scorings.size() == 1);
  e.site.scored(e.sink.scorings[0].ticket, sure, e.sink);
  CHECK(e.site.text() == tokens{0, 2, 1, 1, 1, 2});
  e.hears(request(1, {1, 1}));
  CHECK(e.last<settled_text>().first == 1);
  // not the tokens of the round: its draft is part of their law
  CHECK(e.last<settled_text>().count == 2);
  e.hears(progress{.size = 1});
  CHECK(e.last<settled_text>().count == 2);
}
TEST_CASE("a server refuses drafts of another text and after the end") {
  {
    lone_end<split_server<double>> e(side::r);
    settled_text m{.first = 1, .count = 1};
    e.hears(m);
    e.hears(request(2, {1}, 2));  // the correction would be token 1, which is 0
    CHECK(e.site.problem() == "draft at position 2: there is other text");
  }
  lone_end<split_server<double>> e(side::r);
  e.hears(request(0, {1}));
  CHECK(e.sink.scorings.empty());
  CHECK(e.site.text() == tokens{0});
}
TEST_CASE(
    "a device takes rows as any distribution: probabilities, or a softmax that nobody has "
    "normalised") {
  const std::vector<double> logits{0.5, 2, -1}, p{0, 0, 1};
  const auto row = normalise(softmax_row<double>(logits));
  std::vector<double> probabilities(3);
  REQUIRE(row.why() == status::ok);
  for (std::size_t v = 0; v < 3; ++v) probabilities[v] = row[v];
  const auto after_a_rejection = [&](const auto& q) {
    lone_end<split_device<double>> d(side::l);
    for (int i = 0; i < 2; ++i) d.site.decoded(d.sink.orders.back().ticket, q, 0, 0, d.sink);
    std::vector<std::uint8_t> bytes(d.terms.codec.template max_bytes<double>());
    std::vector<token_id> ids(3);
    std::vector<double> mass(3);
    bytes.resize(encode(d.terms.codec, p, bytes, ids, mass).bytes);
    // the residual is the device's: token 2
    d.hears(split_answer{1, 0, no_token, status::ok, bytes});
    CHECK(d.site.problem() == "");
    return d.sink.emitted;
  };
  CHECK(after_a_rejection(probabilities) == tokens{2});
  CHECK(after_a_rejection(softmax_row<double>(logits)) == tokens{2});
}
TEST_CASE(
    "a device sends what it drafted before a row that nothing can be drawn from, be it nothing at "
    "all") {
  const std::vector<double> good{0, 1, 0}, bad(3, std::nan("")), heavy{0, 2, 0};
  for (const auto& row : {bad, heavy})
    for (std::size_t before = 0; before < 2; ++before) {
      lone_end<split_device<double>> d(side::l);
      for (std::size_t i = 0; i <= before; ++i)
        d.site.decoded(d.sink.orders.back().ticket, i < before ? good : row, 0, 0, d.sink);
      CHECK(d.last<split_request>().count == before);
      d.hears(split_answer{1, std::uint32_t(before), 2, status::ok, {}});
      CHECK(d.site.problem() == "");
      CHECK(d.sink.emitted == (before ? tokens{1, 2} : tokens{2}));
      CHECK(d.sink.orders.back().step == 2 + before);  // and drafts on
    }
  lone_end<split_server<double>> e(side::r);
  e.hears(request(1, {}));
  e.site.scored(e.sink.scorings.at(0).ticket, sure, e.sink);
  CHECK(e.sink.emitted == tokens{1});
}
TEST_CASE(
    "a server whose own row is invalid keeps what it accepted before, and so does the device. Both "
    "say why") {
  auto rows = sure;
  rows[1].assign(3, std::nan(""));
  lone_end<split_server<double>> e(side::r);
  e.hears(request(1, {1, 1}));
  e.site.scored(e.sink.scorings.at(0).ticket, rows, e.sink);
  CHECK(e.sink.emitted == tokens{1});
  CHECK(e.site.problem() == "draft at position 1: invalid_row");
  // Connected again, both go on after what was accepted.
  e.site.disconnected();
  e.site.connected(e.sink);
  e.hears(e.terms_of(side::l));
  e.hears(request(2, {1}));
  REQUIRE(e.sink.scorings.size() == 2);
  e.site.scored(e.sink.scorings[1].ticket, sure, e.sink);
  CHECK(e.sink.emitted == tokens{1, 1, 1});
  lone_end<split_device<double>> d(side::l);
  for (int i = 0; i < 2; ++i) d.site.decoded(d.sink.orders.back().ticket, sure[0], 0, 0, d.sink);
  d.hears(split_answer{1, 1, no_token, status::invalid_row, {}});
  CHECK(d.sink.emitted == tokens{1});
  CHECK(d.site.problem() == "answer at position 1: invalid_row");
  const std::size_t asked = d.sink.orders.size();
  d.site.disconnected();
  d.site.connected(d.sink);
  d.hears(d.terms_of(side::r));
  REQUIRE(d.sink.orders.size() == asked + 1);
  CHECK(d.sink.orders.back().step == 2);
  CHECK(d.site.problem() == "");
}
TEST_CASE("a device takes the answer to its round only, once, and refuses one that is none") {
  const std::vector<double> row{0, 1, 0};
  const auto drafted_two = [&](lone_end<split_device<double>>& d) {
    for (int i = 0; i < 2; ++i) d.site.decoded(d.sink.orders.back().ticket, row, 0, 0, d.sink);
    REQUIRE(d.last<split_request>().count == 2);
  };
  lone_end<split_device<double>> d(side::l);
  drafted_two(d);
  d.hears(split_answer{4, 2, 2, status::ok, {}});
  CHECK(d.sink.emitted.empty());
  d.hears(split_answer{1, 2, 2, status::ok, {}});
  d.hears(split_answer{1, 2, 2, status::ok, {}});
  CHECK(d.sink.emitted == tokens{1, 1, 2});
  CHECK(d.sink.orders.back().keep == 2);  // its model has seen one of the two drafted tokens
  for (const split_answer& bad :
       {split_answer{1, 1, no_token, status::ok, {}}, split_answer{1, 2, no_token, status::ok, {}},
        split_answer{1, 0, no_token, status::invalid_row, {}}}) {
    lone_end<split_device<double>> other(side::l);
    drafted_two(other);
    other.hears(bad);
    CHECK(other.site.problem().substr(0, 20) == "answer at position 1");
    CHECK(other.sink.emitted.empty());
  }
}
TEST_CASE("tokens of an order that a message has taken back, and after it, are no tokens") {
  lone_end<split_server<double>> e(side::r);
  e.hears(request(1, {1, 1}));
  CHECK(e.sink.scorings.at(0).end == 3);
  CHECK((e.site.token(0) == 0 && e.site.token(1) == 1 && e.site.token(2) == 1 &&
         e.site.token(3) == no_token));
  settled_text m{.first = 1, .count = 1};
  m.tokens[0] = 2;
  e.hears(m);
  CHECK(e.site.text() == tokens{0, 2});
  CHECK((e.site.token(0) == 0 && e.site.token(1) == 2 && e.site.token(2) == no_token &&
         e.site.token(3) == no_token));
  lone_end<split_device<double>> d(side::l);
  d.site.decoded(d.sink.orders.back().ticket, sure[0], 0, 0, d.sink);
  CHECK((d.site.token(0) == 0 && d.site.token(1) == 1 && d.site.token(2) == no_token));
}
TEST_CASE("a row that is kept has the bits that are read from it, for any size") {
  numbers n(1);
  for (const std::size_t size : {1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 2500u}) {
    std::vector<float> logits(size), kept(size + 1, 7);
    for (float& l : logits) l = float(n.between(-9, 9));
    const auto row = normalise(processed_row<float>(logits, {.temperature = 0.7, .top_k = 900}));
    REQUIRE(row.why() == status::ok);
    sites::detail::write_row(row, kept.data());
    std::size_t differ = 0;
    for (std::size_t v = 0; v < size; ++v) differ += !same(kept[v], row[v]);
    CHECK((differ == 0 && kept[size] == 7));
  }
}
