// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/dragon_decode.hpp>

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include <specagg/sites/documents.hpp>

#include "decode/toy_text.hpp"
#include "sites/two_sites.hpp"
#include "support/allocations.hpp"

using namespace specagg;
using namespace specagg::sites;
using sites::independent_drafts;
using sites::shared_drafts;

namespace {

using tokens = std::vector<token_id>;
constexpr std::size_t V = 3;

toy_source<double> model_of(side s) { return {V, 1 + std::uint64_t(s)}; }
// Weights that follow the text.
double h_after(side s, std::span<const token_id> text) {
  return std::sin(double(text.back()) + 2 * double(s) + double(text.size()));
}
site_weights weights_of(std::span<const token_id> text) {
  return weigh_sites(h_after(side::l, text), h_after(side::r, text));
}
const auto dynamic = [](std::span<const token_id> text) { return weights_of(text); };

// pi after a text, by the policy that has been proved and audited elsewhere.
std::vector<double> law_after(const tokens& text, const site_weights& eta,
                              const sampling& sample = {}) {
  return target_law(eta.law(), probabilities(model_of(side::l), text, sample),
                    probabilities(model_of(side::r), text, sample));
}

independent_drafts<> independent(std::uint64_t seed) {
  return {random_streams(seed, 0, 0), random_streams(seed, 0, 1)};
}

// A text of token 0 and what two models write after it.
struct writer {
  tokens buffer = tokens(64);
  text t{buffer, 1};
  dragon_workspace<double> work{V};
  tokens written() const { return {buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size)}; }
};

}  // namespace

TEST_CASE("every text of two sites has exactly the law that is the product of pi") {
  for (const std::size_t length : {1u, 2u, 3u})
    for (const bool follows : {false, true})
      for (const token_id end : {no_token, token_id(1)}) {
        const site_weights fixed = weigh_sites(0.3, -0.4);
        const sampling sample{.temperature = follows ? 0.7 : 1.0};
        const auto law = exact_law([&](exhaustive_chooser& tree) {
          decisions all{tree};
          independent_drafts<walked> drafts{{&all, 0}, {&all, 1}};
          writer w{.work = dragon_workspace<double>(V, {sample, end})};
          auto l = model_of(side::l), r = model_of(side::r);
          const status s = follows ? dragon_decode(l, r, dynamic, drafts,
                                                   {.text = w.t, .most = length, .work = w.work})
                                   : dragon_decode(l, r, fixed, drafts,
                                                   {.text = w.t, .most = length, .work = w.work});
          REQUIRE(s == status::ok);
          REQUIRE(l.misuses + r.misuses == 0);
          return w.written();
        });
        const double worst = worst_joint_error(law, length, end, [&](const tokens& text) {
          return law_after(text, follows ? weights_of(text) : fixed, sample);
        });
        CHECK(worst < 1e-12);
      }
}

namespace {

// The text of the protocol: two sites on links with faults.
template <class Coupling>
tokens by_protocol(std::uint64_t seed, const Coupling& drafts, std::uint32_t size) {
  using site = sites::dragon_site<double, Coupling>;
  sites::simulated_sites<double, site> world(seed);
  sites::hello terms{.codec = {.vocabulary = V}, .real_bytes = 8, .most_tokens = size};
  const auto make = [=](side at) {
    return [=](std::uint64_t life) {
      sites::hello own = terms;
      own.from = at;
      own.life = life;
      return std::make_unique<site>(own, tokens{0}, drafts);
    };
  };
  world.make_l = make(side::l);
  world.make_r = make(side::r);
  world.row = [](side at, auto text) { return toy_row(model_of(at), text); };
  world.h = [](side at, auto text) { return h_after(at, text); };
  numbers n(seed);
  trouble(world, n, 5);
  REQUIRE(world.run(1000));
  return world.l()->text();
}

template <class Coupling>
void compare_with_protocol(Coupling (*drafts_of)(std::uint64_t)) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    writer w;
    auto l = model_of(side::l), r = model_of(side::r);
    auto drafts = drafts_of(seed);
    REQUIRE(dragon_decode(l, r, dynamic, drafts, {.text = w.t, .most = 23, .work = w.work}) ==
            status::ok);
    INFO("seed " << seed);
    REQUIRE(w.t.size == 24);
    CHECK(by_protocol(seed, drafts_of(seed), 24) ==
          tokens(w.buffer.begin(), w.buffer.begin() + 24));
  }
}

}  // namespace

TEST_CASE("with one seed dragon_decode and the protocol on bad links emit the same tokens") {
  compare_with_protocol<independent_drafts<>>(independent);
  compare_with_protocol<shared_drafts>(
      [](std::uint64_t seed) { return shared_drafts{coupled_noise(seed)}; });
}

TEST_CASE("a round tells the drafts, the weights, and whose draft the token confirmed") {
  writer w;
  auto l = model_of(side::l), r = model_of(side::r);
  auto drafts = independent(4);
  std::size_t rounds = 0, accepted = 0, emitted = 0;
  const auto accept = [&](const emission& e) {
    const tokens before(w.buffer.begin(), w.buffer.begin() + std::ptrdiff_t(w.t.size) - 1);
    const auto pi = law_after(before, weights_of(before));
    CHECK(e.log_pi == Approx(std::log(pi[std::size_t(e.token)])));
    CHECK(e.log_p ==
          Approx(std::log(probabilities(model_of(side::r), before)[std::size_t(e.token)])));
    CHECK(e.why == status::ok);
    accepted += e.from == origin::accepted;
    ++emitted;
    return true;
  };
  std::size_t confirmed = 0;
  const auto watch = [&](const dragon_result& result, const auto& work) {
    const token_id x = w.buffer[w.t.size - 1];
    const tokens before(w.buffer.begin(), w.buffer.begin() + std::ptrdiff_t(w.t.size) - 1);
    ++rounds;
    CHECK(result.emitted == 1);
    CHECK(result.accepted_l == (result.drafted[0] == x));
    CHECK(result.accepted_r == (result.drafted[1] == x));
    CHECK(result.weights.l == weights_of(before).l);
    confirmed += result.accepted_l || result.accepted_r;
    // what a study of acceptance reads
    const agreement due = agreement_of(work.rows[0], work.rows[1], result.weights);
    CHECK((due.both > 0 && due.both + due.only_l + due.only_r < 1));
  };
  REQUIRE(dragon_decode(
              l, r, dynamic, drafts,
              {.text = w.t, .most = 60, .work = w.work, .accept = accept, .after_round = watch}) ==
          status::ok);
  CHECK((rounds == 60 && emitted == 60));
  CHECK(confirmed == accepted);
  CHECK((accepted > 0 && accepted < 60));
}

TEST_CASE("a site that fails loses no token: the next call goes on as if nothing had happened") {
  writer good;
  auto l = model_of(side::l), r = model_of(side::r);
  auto drafts = independent(9);
  REQUIRE(dragon_decode(l, r, dynamic, drafts, {.text = good.t, .most = 12, .work = good.work}) ==
          status::ok);
  for (std::size_t at = 0; at < 12; ++at)
    for (const side bad : {side::l, side::r})
      for (const bool nan : {false, true}) {
        writer w;
        faulty<double> models[2] = {{V, 1}, {V, 2}};
        auto& failing = models[std::size_t(bad)];
        (nan ? failing.nan_at : failing.fail_at) = at;
        auto same = independent(9);
        const auto go_on = [&](std::size_t most) {
          return dragon_decode(models[0], models[1], dynamic, same,
                               {.text = w.t, .most = most, .work = w.work});
        };
        REQUIRE(go_on(12) == (nan ? status::invalid_row : status::model_failed));
        REQUIRE(w.t.size == 1 + at);
        for (const auto& m : models) CHECK(m.position() <= w.t.size);
        REQUIRE(go_on(12 - at) == status::ok);
        CHECK(w.written() == good.written());
        CHECK(models[0].misuses + models[1].misuses == 0);
      }
}
TEST_CASE("weights that throw leave the text as it was") {
  writer w;
  auto l = model_of(side::l), r = model_of(side::r);
  auto drafts = independent(9);
  std::size_t asked = 0;
  const auto weights = [&](std::span<const token_id>) {
    if (asked++ == 3) throw std::runtime_error("no index");
    return weigh_sites(0, 0);
  };
  CHECK_THROWS_AS(dragon_decode(l, r, weights, drafts, {.text = w.t, .most = 9, .work = w.work}),
                  std::runtime_error);
  CHECK(w.t.size == 4);
  CHECK(dragon_decode(l, r, weights, drafts, {.text = w.t, .most = 6, .work = w.work}) ==
        status::ok);
  writer other;
  auto again = independent(9);
  CHECK(dragon_decode(l, r, weigh_sites(0, 0), again,
                      {.text = other.t, .most = 9, .work = other.work}) == status::ok);
  CHECK(w.written() == other.written());
}
TEST_CASE("what cannot be decoded gets a status, and no token") {
  const double inf = std::numeric_limits<double>::infinity();
  const auto ends = [](std::size_t size, double h, std::size_t v_r, std::size_t room, auto drafts) {
    writer w;
    w.t.size = size;
    auto l = model_of(side::l);
    toy_source<double> r(v_r, 2, 2, 3, room);
    const status s =
        dragon_decode(l, r, weigh_sites(h, h), drafts, {.text = w.t, .most = 4, .work = w.work});
    CHECK((s == status::ok ? w.t.size == size + 4 : w.t.size == std::max<std::size_t>(size, room)));
    return s;
  };
  CHECK(ends(1, 0, V, 64, independent(1)) == status::ok);
  CHECK(ends(0, 0, V, 0, independent(1)) == status::invalid_parameter);
  CHECK(ends(1, 0, 4, 0, independent(1)) == status::vocabulary_mismatch);
  CHECK(ends(1, 0, V, 3, independent(1)) == status::context_full);
  // no documents at either site: no law, even where both drafted the same token
  for (std::uint64_t seed = 1; seed < 9; ++seed) {
    writer w;
    auto l = model_of(side::l), r = model_of(side::l);  // the same rows
    shared_drafts same{coupled_noise(seed)};
    CHECK(dragon_decode(l, r, weigh_sites(-inf, -inf), same,
                        {.text = w.t, .most = 4, .work = w.work}) == status::undefined_target);
    CHECK(w.t.size == 1);
  }
  // weights of another sum than 1: no law
  for (const site_weights none : {site_weights{.l = 0.1, .r = 0.1},
                                  {.l = 2, .r = 3},
                                  {.l = 0, .r = 0},
                                  {.l = -1, .r = 2},
                                  {.l = inf, .r = 0}}) {
    writer w;
    auto l = model_of(side::l), r = model_of(side::r);
    shared_drafts same{coupled_noise(1)};
    auto apart = independent(1);
    CHECK(dragon_decode(l, r, none, same, {.text = w.t, .most = 4, .work = w.work}) ==
          status::undefined_target);
    CHECK(dragon_decode(l, r, none, apart, {.text = w.t, .most = 4, .work = w.work}) ==
          status::undefined_target);
    CHECK(w.t.size == 1);
  }
}
namespace {

struct without_2 : no_processor {
  template <class T>
  void apply(std::span<T> logits) const {
    logits[2] = -std::numeric_limits<T>::infinity();
  }
};

}  // namespace

TEST_CASE("accept() and the end of the text end it. A processor applies to both sites") {
  writer w;
  auto l = model_of(side::l), r = model_of(side::r);
  auto drafts = independent(3);
  without_2 bans;
  std::size_t left = 7;
  CHECK(dragon_decode(l, r, dynamic, drafts,
                      {.text = w.t,
                       .most = 40,
                       .work = w.work,
                       .processor = bans,
                       .accept = [&](const emission&) { return --left > 0; }}) == status::ok);
  CHECK(w.t.size == 8);
  for (const token_id x : w.written()) CHECK(x != 2);
  writer ended;
  ended.work.options.end_of_text = 1;
  CHECK(dragon_decode(l, r, dynamic, drafts, {.text = ended.t, .most = 40, .work = ended.work}) ==
        status::ok);
  CHECK(ended.buffer[ended.t.size - 1] == 1);
  CHECK(ended.t.size < 41);
}
TEST_CASE("two sites with documents: the weights are those of their documents") {
  using model = toy_source<float>;
  std::vector<model> device, cloud;
  for (std::uint64_t d = 0; d < 3; ++d) {  // rows depend on 8 tokens, so on the document
    device.emplace_back(V, 5, 8);
    cloud.emplace_back(V, 5, 8);
    REQUIRE(device.back().extend(tokens(4, token_id(d)), {}) == status::ok);
    REQUIRE(cloud.back().extend(tokens{token_id(d), 0, 1}, {}) == status::ok);
  }
  const auto scores = [](double nats) {
    return [nats](std::span<const token_id> text, std::span<double> R) {
      for (std::size_t d = 0; d < R.size(); ++d) R[d] = nats + 0.1 * double(d * text.size());
    };
  };
  site_source l{std::span(device), scores(1)};
  site_source r{std::span(cloud), scores(0.5)};
  tokens buffer(32);
  text t{buffer, 1};
  dragon_options options;
  dragon_workspace<float> work(V, options);
  auto drafts = independent(2);
  std::size_t rounds = 0;
  const auto watch = [&](const dragon_result& result, const auto&) {
    const double h = 0.1 * double(t.size - 1);  // of the text before this token
    const double sum = 1 + std::exp(h) + std::exp(2 * h);
    CHECK(result.weights.l ==
          Approx(std::exp(1.0) * sum / (std::exp(1.0) * sum + std::exp(0.5) * sum)));
    ++rounds;
  };
  const auto weights = [&](auto&&) { return weigh_sites(l.h(), r.h()); };
  CHECK(dragon_decode(l, r, weights, drafts,
                      {.text = t, .most = 20, .work = work, .after_round = watch}) == status::ok);
  CHECK(rounds == 20);

  // l has nothing that is relevant: pi is p^r
  const auto none = [](auto&&, std::span<double> R) {
    for (double& x : R) x = -std::numeric_limits<double>::infinity();
  };
  REQUIRE(r.rollback(0) == status::ok);
  site_source alone{std::span(device), none};
  t.size = 1;
  const auto as_r = [&](const emission& e) {
    CHECK(e.log_pi == Approx(e.log_p));
    return true;
  };
  const auto no_l = [&](auto&&) { return weigh_sites(alone.h(), r.h()); };
  CHECK(dragon_decode(alone, r, no_l, drafts,
                      {.text = t, .most = 20, .work = work, .accept = as_r}) == status::ok);
  CHECK(t.size == 21);
}
TEST_CASE("dragon_decode does not allocate") {
  writer w;
  auto l = model_of(side::l), r = model_of(side::r);
  auto drafts = independent(3);
  CHECK(dragon_decode(l, r, dynamic, drafts, {.text = w.t, .most = 30, .work = w.work}) ==
        status::ok);
  w.t.size = 1;  // the models have grown
  const std::size_t before = allocations;
  CHECK(dragon_decode(l, r, dynamic, drafts, {.text = w.t, .most = 30, .work = w.work}) ==
        status::ok);
  CHECK(allocations == before);
}
