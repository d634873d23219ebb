// SPDX-License-Identifier: Apache-2.0
// Many texts that share rounds: each is the text that it is alone.
#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <specagg/decode/together.hpp>
#include <specagg/decoders.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

using policies = any_of<lossless, token_v3, ensemble>;

// What one text is asked for, when it comes, and when it is cancelled.
struct order {
  std::uint64_t seed;
  std::vector<token_id> prompt;
  std::size_t most, come, cancelled;  // rounds
  decode_options how;
  policies policy = lossless{};
  penalty_options penalty = {};
  token_id last_of = 0;  // not accepted as anything but the last: multiples of it
};
std::vector<order> orders(std::size_t count, std::size_t vocab, unsigned seed, bool any_policy) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<order> all;
  for (std::size_t i = 0; i < count; ++i) {
    order o{.seed = seed + i,
            .prompt = test::some_tokens(1 + below(9), vocab, unsigned(random())),
            .most = below(20),
            .come = i / 3,
            .cancelled = below(4) ? 1000 : i / 3 + below(6),
            .how = {.gamma = below(6), .acceptances = below(2) == 0}};
    o.how.sample.temperature = double(below(4)) / 2;  // 0 too
    if (below(3) == 0) o.how.sample.top_k = 5;
    if (below(3) == 0) o.how.end_of_text = token_id(below(vocab));
    if (any_policy && below(3)) o.policy = below(2) ? policies(token_v3{0.4}) : ensemble{0.3};
    if (below(4) == 0) o.penalty.repetition = 1.3;
    if (below(4) == 0) o.last_of = token_id(2 + below(20));
    all.push_back(std::move(o));
  }
  return all;
}

// A text, with models of its own.
template <class M, class V, class L>
struct session {
  struct accept_type {
    token_id last_of;
    bool operator()(const emission& e) const { return last_of == 0 || e.token % last_of != 0; }
  };
  using one =
      together_text<model_drafter<M>, M, policies, random_streams, with::processor<penalties&>,
                    with::accept<accept_type>, with::verifier<V>, with::length<L>>;
  order asked;
  M draft, target;
  std::vector<token_id> memory, of_penalties;
  text t;
  random_streams random;
  speculative_workspace<float> work;
  model_drafter<M> drafter;
  penalties pushed;
  one shared;
  std::size_t rounds = 0;

  template <class Make>
  session(const order& o, const V& verifier, const L& length, Make&& make)
      : asked(o),
        draft(make(false)),
        target(make(true)),
        memory(o.prompt),
        random(o.seed),
        work(target.vocab_size(), o.how),
        drafter(draft, work.draft_logits, o.how.sample),
        shared(t, o.most, drafter, target, asked.policy, random, work, with::processor{pushed},
               with::accept{accept_type{o.last_of}}, {V(verifier)}, {L(length)}) {
    memory.resize(o.prompt.size() + o.most + o.how.gamma + 1);
    of_penalties.resize(penalties::memory(target.vocab_size(), memory.size()));
    pushed = penalties(o.penalty, target.vocab_size(), o.prompt, of_penalties);
    t = {memory, o.prompt.size()};
  }
  std::vector<token_id> written() const { return {memory.begin(), memory.begin() + t.size}; }
  void alone(const V& verifier, L length) {
    shared.why = speculative_decode(t, asked.most, drafter, target, asked.policy, random, work,
                                    with::processor{pushed}, with::accept{shared.accept},
                                    with::verifier{verifier}, with::length{length});
  }
};

// How many of the texts differ from those that they are alone: all written together, at most
// `limit` at once.
template <class V, class L, class Make, class Load = each_alone>
std::size_t differing(const std::vector<order>& asked, const L& length, Make&& make,
                      std::size_t limit, thread_pool& pool, Load load = {}) {
  using M = std::invoke_result_t<Make&, bool>;
  using S = session<M, V, L>;
  const auto verifier = [](const order& o) {
    if constexpr (is_coupled<V>) return V{coupled_noise(o.seed, 0)};
    else return V{};
  };
  std::vector<std::unique_ptr<S>> all;
  std::vector<typename S::one*> now;
  together_workspace<typename S::one> work;
  std::size_t next = 0, most = 0, differ = 0;
  for (std::size_t round = 0; next < asked.size() || !now.empty(); ++round) {
    for (; next < asked.size() && asked[next].come <= round && now.size() < limit; ++next) {
      all.push_back(std::make_unique<S>(asked[next], verifier(asked[next]), length, make));
      now.push_back(&all.back()->shared);
    }
    for (auto& s : all)
      if (s->asked.cancelled <= round) std::erase(now, &s->shared);
    most = std::max(most, now.size());
    const std::size_t left = together_round(now, work, pool, load);
    std::size_t drafted = 0;
    for (const auto* one : now) drafted += one->result.drafted;
    CHECK(drafted <= load.most);
    for (auto& s : all) s->rounds += std::ranges::count(now, &s->shared) > 0;
    std::erase_if(now, [](const auto* one) { return one->ended; });
    REQUIRE(left == now.size());
  }
  CHECK(most > 1);
  for (auto& s : all) {
    S alone(s->asked, verifier(s->asked), length, make);
    alone.alone(verifier(s->asked), length);
    const auto given = s->written(), expected = alone.written();
    const bool same = s->shared.ended
                          ? given == expected && s->shared.why == alone.shared.why
                          : given.size() <= expected.size() &&
                                std::equal(given.begin(), given.end(), expected.begin());
    differ += !same;
  }
  return differ;
}

// A model for many texts that counts its calls, and how many texts were in them.
struct counted : toy_source<float> {
  static inline std::vector<std::pair<bool, std::size_t>> calls;
  bool target, throws = false, nan = false;
  status fails = status::ok;
  counted(std::size_t vocab, bool is_target, std::size_t capacity)
      : toy_source<float>(vocab, 7, 2, is_target ? 6 : 4, capacity), target(is_target) {}
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (fails != status::ok) return fails;
    const status s = toy_source<float>::extend(tokens, logits);
    if (nan) std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
    return s;
  }
  static status extend(std::span<addition<counted>> all) {
    status first = status::ok;
    if (!all.empty()) calls.emplace_back(all[0].to->target, all.size());
    for (auto& a : all) {
      if (a.to->throws) throw std::runtime_error("no memory");
      a.why = a.to->extend(a.tokens, a.logits);
      if (first == status::ok) first = a.why;
    }
    return first;
  }
};
static_assert(BatchLogitSource<counted>);

}  // namespace

TEST_CASE(
    "texts of toy models that share rounds are those that they are alone, with every verifier and "
    "length of drafts") {
  thread_pool pool(2);
  const auto make = [](bool target) {
    return toy_source<float>(40, 7, 2, target ? 6 : 4, target ? 30 : 24);  // some become full
  };
  unsigned seed = 0;
  for_each_verifier(1, 1, [&]<class V>(const V&) {
    const auto asked = orders(60, 40, ++seed, true);
    CHECK(differing<V>(asked, fixed_draft_length(), make, 16, pool) == 0);
    CHECK(differing<V>(asked, plan::draft_length_controller({1, 0.2, 0.1}), make, 7, pool) == 0);
  });
}

TEST_CASE(
    "with one budget for all, texts are those that they are alone where tokens do not depend on "
    "the "
    "length of drafts: of one token's law, and with coupled verification") {
  thread_pool pool(2);
  const auto make = [](bool target) { return toy_source<float>(40, 7, 2, target ? 6 : 4); };
  const plan::draft_load load({{{1, 1}, {4, 1.3}, {40, 4}}}, {{{1, 0.1}, {8, 0.2}}}, 9);
  unsigned seed = 20;
  for_each_verifier(1, 1, [&]<class V>(const V&) {
    auto asked = orders(40, 40, ++seed, is_coupled<V>);
    for (order& o : asked)
      if (!is_coupled<V>) o.how.sample = {.temperature = 0};
    CHECK(differing<V>(asked, plan::draft_forecast(), make, 7, pool, load) == 0);
    CHECK(differing<V>(asked, plan::draft_length_controller({1, 0.2, 0.1}), make, 7, pool, load) ==
          0);
  });
}

TEST_CASE("a round calls the target once, and the draft model once for each token of the drafts") {
  counted::calls.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  auto asked = orders(12, 40, 3, true);
  std::vector<std::unique_ptr<session<counted, token_verifier, fixed_draft_length>>> all;
  std::vector<session<counted, token_verifier, fixed_draft_length>::one*> now;
  for (order& o : asked) {
    o.most = 30;
    o.last_of = 0;
    o.how.gamma = 3;
    o.how.end_of_text = {};
    all.push_back(std::make_unique<session<counted, token_verifier, fixed_draft_length>>(
        o, token_verifier(), fixed_draft_length(), make));
    now.push_back(&all.back()->shared);
  }
  together_workspace<std::remove_pointer_t<decltype(now)::value_type>> work;
  const auto reading = std::size_t(
      std::ranges::count_if(asked, [](const order& o) { return detail::needs_draft(o.policy); }));
  CHECK((reading > 0 && reading < 12));
  CHECK(together_round(now, work, pool) == 12);
  const std::vector<std::pair<bool, std::size_t>> expected = {
      {false, 12}, {false, 12}, {false, 12}, {true, 12}, {false, reading}};
  CHECK(counted::calls == expected);
  CHECK(together_round({}, work, pool) == 0);
  CHECK(counted::calls == expected);
}

TEST_CASE(
    "a draft model is called where a row is wanted, and a length learns where a text went on") {
  struct picky : fixed_draft_length {
    std::size_t wanted = 0, learned = 0;
    bool another(std::size_t) const { return wanted > 0; }
    void observe(std::span<const draft_acceptance>, std::size_t, std::span<const std::size_t>) {
      ++learned;
    }
  };
  counted::calls.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  using S = session<counted, token_verifier, picky>;
  const order asked{1, {1, 2, 3}, 30, 0, 1000, {.gamma = 3}};
  order reads = asked;
  reads.policy = ensemble{0.3};
  picky wants;
  wants.wanted = 1;
  S a(asked, {}, {}, make), b(asked, {}, {}, make), c(asked, {}, wants, make),
      d(reads, {}, wants, make);
  b.target.fails = d.draft.fails = status::model_failed;
  const std::vector<S::one*> now = {&a.shared, &b.shared, &c.shared, &d.shared};
  together_workspace<S::one> work;
  CHECK(together_round(now, work, pool) == 2);
  // c and d, then c; that of d failed, and is not called again for the bonus token
  const std::vector<std::pair<bool, std::size_t>> expected = {
      {false, 2}, {false, 1}, {false, 1}, {true, 4}};
  CHECK(counted::calls == expected);
  CHECK((b.shared.why == status::model_failed && d.shared.why == status::model_failed));
  CHECK((a.shared.length.learned == 1 && c.shared.length.learned == 1));
  CHECK(b.shared.length.learned == 0);
}

TEST_CASE("a text that fails ends alone. An exception leaves all as they were before the round") {
  counted::calls.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  using S = session<counted, token_verifier, fixed_draft_length>;
  const order asked{1, {1, 2, 3}, 30, 0, 1000, {.gamma = 3}};
  S a(asked, {}, {}, make), b(asked, {}, {}, make), c(asked, {}, {}, make),
      twin(asked, {}, {}, make);
  b.target.fails = status::model_failed;
  std::vector<S::one*> now = {&a.shared, &b.shared, &c.shared};
  together_workspace<S::one> work;
  CHECK(together_round(now, work, pool) == 2);
  CHECK((b.shared.ended && b.shared.why == status::model_failed && b.t.size == 3));
  CHECK((!a.shared.ended && a.t.size > 3 && a.written() == c.written()));
  c.target.throws = true;
  const auto before = a.written();
  CHECK_THROWS_AS(together_round(now, work, pool), std::runtime_error);
  CHECK((a.written() == before && c.written() == before && b.t.size == 3));
  CHECK((a.draft.position() <= before.size() && a.target.position() <= before.size()));
  c.target.throws = false;
  while (together_round(now, work, pool) > 0) {
  }
  twin.alone({}, {});
  CHECK((a.written() == twin.written() && c.written() == twin.written()));
  // without a draft model, or one that is stopped
  S g(asked, {}, {}, make), h(asked, {}, {}, make), i(asked, {}, {}, make);
  g.draft.fails = h.draft.fails = status::model_failed;
  i.draft.fails = status::stopped;
  now = {&g.shared, &i.shared};
  CHECK(together_round(now, work, pool) == 1);
  CHECK((g.shared.result.draft_why == status::model_failed && g.shared.result.emitted == 1));
  CHECK((i.shared.why == status::stopped && i.t.size == 3));
  while (together_round(now, work, pool) > 0) {
  }
  h.alone({}, {});
  CHECK(g.written() == h.written());
  // rows of NaN; a model that another text has, too
  S j(asked, {}, {}, make), k(asked, {}, {}, make), l(asked, {}, {}, make);
  j.target.nan = true;
  S::one again(l.t, 30, l.drafter, k.target, l.asked.policy, l.random, l.work,
               with::processor{l.pushed}, {S::accept_type{}}, {token_verifier()},
               {fixed_draft_length()});
  now = {&j.shared, &k.shared, &again};
  CHECK(together_round(now, work, pool) == 1);
  CHECK((j.shared.why == status::invalid_row && j.t.size == 3));
  CHECK((again.why == status::invalid_parameter && l.t.size == 3));
  while (together_round(now, work, pool) > 0) {
  }
  CHECK(k.written() == twin.written());
  // what ends a text that has begun: no room, a policy that is no policy, nothing to append
  order full = asked, wrong = asked, none = asked;
  wrong.policy = ensemble{2};
  none.most = 0;
  full.prompt.assign(100, 1);
  S d(full, {}, {}, make), e(wrong, {}, {}, make), f(none, {}, {}, make);
  now = {&d.shared, &e.shared, &f.shared};
  CHECK(together_round(now, work, pool) == 0);
  CHECK((d.shared.why == status::context_full && e.shared.why == status::invalid_parameter));
  CHECK((f.shared.why == status::ok && f.shared.ended && f.t.size == 3));
}

namespace {

// A model whose loops run on the pool that verifies the texts, and whose calls fail at will.
struct pooled : toy_source<float> {
  thread_pool* pool;
  static inline std::atomic<int> calls_inside = 0;  // of the pool's loops
  static inline thread_local bool inside = false;
  std::size_t calls = 0, fails_at = 0;  // shared calls of a round, from 1
  pooled(thread_pool& with, bool target)
      : toy_source<float>(40, 7, 2, target ? 6 : 4, 100), pool(&with) {}
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    calls_inside += inside;
    std::atomic<std::size_t> rows = 0;
    pool->for_ranges(64, 1, [&](std::size_t begin, std::size_t end) { rows += end - begin; });
    if (rows != 64) return status::model_failed;
    return toy_source<float>::extend(tokens, logits);
  }
  static status extend(std::span<addition<pooled>> all) {
    for (auto& a : all)
      a.why =
          ++a.to->calls == a.to->fails_at ? status::model_failed : a.to->extend(a.tokens, a.logits);
    return detail::first_failure(all);
  }
};
static_assert(BatchLogitSource<pooled>);
// A pool that tells the models when they are called from one of its loops.
struct watched_pool {
  thread_pool& pool;
  template <class Body>
  void for_ranges(std::size_t count, std::size_t grain, Body&& body) {
    pool.for_ranges(count, grain, [&](std::size_t begin, std::size_t end) {
      pooled::inside = true;
      body(begin, end);
      pooled::inside = false;
    });
  }
};

}  // namespace

TEST_CASE(
    "a shared call for bonus rows that fails leaves the texts as they are alone, and no model is "
    "called while texts are verified") {
  const auto texts = []<class L>(const L& length, unsigned threads) {
    thread_pool pool(threads);
    watched_pool verifies{pool};
    const auto make = [&](bool target) { return pooled(pool, target); };
    using S = session<pooled, token_verifier, L>;
    using one = typename S::one;
    std::vector<std::unique_ptr<S>> all;
    std::vector<one*> now;
    for (order& o : orders(12, 40, 5, false)) {
      o.most = 30;
      o.last_of = 0;
      o.how.end_of_text = {};
      o.policy = ensemble{0.3};
      all.push_back(std::make_unique<S>(o, token_verifier(), length, make));
      now.push_back(&all.back()->shared);
    }
    together_workspace<one> work;
    pooled::calls_inside = 0;
    std::size_t left = now.size();
    for (std::size_t round = 0; left > 0; ++round) {
      // One call of each text fails; after gamma drafted tokens that is the one for the bonus row.
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i]->draft.calls = 0;
        all[i]->draft.fails_at = (i + round) % 2 ? all[i]->asked.how.gamma + 1 : round % 5;
      }
      left = together_round(now, work, verifies);
    }
    CHECK(pooled::calls_inside == 0);
    for (auto& s : all) {
      S alone(s->asked, {}, length, make);
      alone.alone({}, length);
      CHECK((s->written() == alone.written() && s->shared.why == status::ok));
    }
  };
  for (const unsigned threads : {1u, 2u, 3u}) {
    texts(fixed_draft_length(), threads);
    texts(plan::draft_length_controller({1, 0.2, 0.1}), threads);
  }
}

namespace {

// A drafter whose row depends on how much the target has read, as a draft head's does.
struct watching {
  using row_type = normal_form<processed_row<float>>;
  toy_source<float>* target;
  std::vector<float> logits = std::vector<float>(7 * 40);
  std::size_t vocab_size() const { return 40; }
  std::size_t position() const { return 0; }
  status rollback(std::size_t) { return status::ok; }
  template <class P>
  status next(const draft_position& at, P&, row_type& row, double& confidence) {
    const auto own = std::span(logits).subspan(at.drafted * 40, 40);
    for (std::size_t v = 0; v < 40; ++v)
      own[v] = 0.3f * float((v * 7 + target->position() * 5 + std::size_t(at.tokens.back())) % 11);
    row = processed_row<float>(own, {}).normalise(at.confidence);
    confidence = 0;
    return row.why();
  }
};

}  // namespace

TEST_CASE("drafters that watch the target see as much of it in shared rounds as alone") {
  struct one {
    toy_source<float> target{40, 7, 2, 6, 100};
    watching drafter{&target};
    std::vector<token_id> memory = std::vector<token_id>(60, 1);
    text t{memory, 3};
    random_streams random;
    policies policy;
    drafting_workspace<float, watching::row_type> work;
    together_text<watching, toy_source<float>, policies, random_streams> shared;
    explicit one(std::size_t i)
        : random(i),
          policy(i % 3 ? policies(ensemble{0.4}) : token_v3{0.3}),
          work(40, {.gamma = i % 5}),
          shared(t, 40, drafter, target, policy, random, work) {}
  };
  std::vector<std::unique_ptr<one>> all;
  std::vector<decltype(one::shared)*> now;
  for (std::size_t i = 0; i < 20; ++i) {
    all.push_back(std::make_unique<one>(i));
    now.push_back(&all.back()->shared);
  }
  together_workspace<decltype(one::shared)> work;
  while (together_round(now, work) > 0) {
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    one alone(i);
    REQUIRE(speculative_decode(alone.t, 40, alone.drafter, alone.target, alone.policy, alone.random,
                               alone.work) == status::ok);
    CHECK((all[i]->t.size == 43 && all[i]->memory == alone.memory));
  }
}

TEST_CASE("where accept of one text throws, the others keep their limits and their end") {
  struct throws_once {
    bool* armed;
    bool operator()(const emission&) const {
      if (armed && std::exchange(*armed, false)) throw std::runtime_error("accept");
      return true;
    }
  };
  using one_type = together_text<model_drafter<toy_source<float>>, toy_source<float>, lossless,
                                 random_streams, with::accept<throws_once>>;
  struct one {
    toy_source<float> draft{8, 3, 2, 6, 100}, target{8, 3, 2, 6, 100};  // accepts everything
    speculative_workspace<float> work{8, {.gamma = 3}};
    model_drafter<toy_source<float>> drafter{draft, work.draft_logits};
    std::vector<token_id> memory = std::vector<token_id>(60, 1);
    text t{memory, 2};
    random_streams random{5};
    lossless policy;
    one_type shared;
    explicit one(bool* armed)
        : shared(t, 10, drafter, target, policy, random, work, {throws_once{armed}}) {}
  };
  bool armed = true;
  one a(&armed), b(nullptr);
  const std::vector<one_type*> both = {&a.shared, &b.shared};
  together_workspace<one_type> work;
  CHECK_THROWS_AS(together_round(both, work), std::runtime_error);
  CHECK((a.t.size == 2 + 10 - a.shared.most && b.t.size == 2 + 10 - b.shared.most));
  while (together_round(both, work) > 0) {
  }
  CHECK((a.t.size == 12 && b.t.size == 12 && a.memory == b.memory));
}

TEST_CASE("drafters without a model share rounds, too") {
  struct one {
    toy_source<float> target{6, 7, 1, 20};
    std::vector<token_id> memory = std::vector<token_id>(60, 1);
    text t{memory, 3};
    random_streams random;
    lookup_drafter<> drafter{6, 60};
    drafting_workspace<float, normal_form<one_hot_row<float>>> work{6, {.gamma = 3}};
    lossless policy;
    together_text<lookup_drafter<>, toy_source<float>, lossless, random_streams> shared{
        t, 50, drafter, target, policy, random, work};
    explicit one(std::uint64_t seed) : random(seed) {}
  };
  one a(1), b(2), alone(2);
  together_workspace<decltype(a.shared)> work;
  const std::vector both = {&a.shared, &b.shared};
  std::size_t accepted = 0;
  while (together_round(both, work) > 0) accepted += b.shared.result.accepted;
  CHECK(accepted > 0);
  REQUIRE(speculative_decode(alone.t, 50, alone.drafter, alone.target, alone.policy, alone.random,
                             alone.work) == status::ok);
  CHECK((b.t.size == 53 && b.memory == alone.memory && a.memory != b.memory));
}

TEST_CASE(
    "0 of 200 texts of the bundled models, with their own seeds, temperatures, drafts, arrivals "
    "and cancels, differ from the text alone, on 1, 2 and 4 threads") {
  const auto small = test::bundled("draft"), large = test::bundled("target");
  const auto asked = orders(200, small->vocab, 9, true);
  for (const unsigned threads : {1u, 2u, 4u}) {
    const auto pool = std::make_shared<thread_pool>(threads);
    const auto make = [&](bool target) { return cpu::llama(target ? large : small, pool, 40); };
    CHECK(differing<token_verifier>(asked, fixed_draft_length(), make, 32, *pool) == 0);
  }
}
