// SPDX-License-Identifier: Apache-2.0
// Many texts that share rounds: each is the text that it is alone.
#include <specagg/decode/together.hpp>

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "decode/many_texts.hpp"

using namespace specagg;

namespace {

// A model for many texts that counts its calls, and how many texts were in them. It may fail, at
// a call of its own or at all, and its loops may run on the pool that verifies the texts.
struct counted : toy_source<float> {
  static inline std::vector<std::pair<bool, std::size_t>> calls_of_all;
  static inline std::atomic<int> calls_inside = 0;  // of the pool's loops
  static inline thread_local bool inside = false;
  bool target, throws = false, nan = false;
  status fails = status::ok;
  thread_pool* pool = nullptr;
  std::size_t shared_calls = 0, fails_at = 0;  // shared calls of a round, from 1
  counted(std::size_t vocab, bool is_target, std::size_t capacity = 4096)
      : toy_source<float>(vocab, 7, 2, is_target ? 6 : 4, capacity), target(is_target) {}
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (fails != status::ok) return fails;
    if (pool) {
      calls_inside += inside;
      std::atomic<std::size_t> rows = 0;
      pool->for_ranges(64, 1, [&](std::size_t begin, std::size_t end) { rows += end - begin; });
      if (rows != 64) return status::model_failed;
    }
    const status s = toy_source<float>::extend(tokens, logits);
    if (nan) std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
    return s;
  }
  static status extend(std::span<addition<counted>> all) {
    if (!all.empty()) calls_of_all.emplace_back(all[0].to->target, all.size());
    for (auto& a : all) {
      if (a.to->throws) throw std::runtime_error("no memory");
      a.why = ++a.to->shared_calls == a.to->fails_at ? status::model_failed
                                                     : a.to->extend(a.tokens, a.logits);
    }
    return detail::first_failure(all);
  }
};
static_assert(BatchLogitSource<counted>);
using by_type = session<counted, token_verifier, policies>;

}  // namespace

TEST_CASE(
    "texts of toy models that share rounds are those that they are alone, with every verifier and "
    "length of drafts") {
  thread_pool pool(2);
  const auto make = [](bool target) {
    return counted(40, target, target ? 30 : 24);  // some become full
  };
  unsigned seed = 0;
  const some_length automatic(some_length::as_controller, {1, 0.2, 0.1});
  for_each_verifier_compiled_once(1, 1, [&]<class V>(const V& verifier) {
    const auto asked = orders(60, 40, ++seed, true);
    CHECK(differing<V, policies_once>(asked, {}, make, 16, pool, each_alone(), verifier) == 0);
    CHECK(differing<V, policies_once>(asked, automatic, make, 7, pool, each_alone(), verifier) ==
          0);
  });
  const auto asked = orders(60, 40, ++seed, true);
  CHECK(differing<token_verifier, policies>(asked, {}, make, 16, pool) == 0);
  CHECK(differing<token_verifier, policies>(asked, automatic, make, 7, pool) == 0);
}

TEST_CASE(
    "with one budget for all, texts are those that they are alone where tokens do not depend on "
    "the "
    "length of drafts: of one token's law, and with coupled verification") {
  thread_pool pool(2);
  const auto make = [](bool target) { return counted(40, target); };
  const plan::draft_load load({{{1, 1}, {4, 1.3}, {40, 4}}}, {{{1, 0.1}, {8, 0.2}}}, 9);
  unsigned seed = 20;
  for_each_verifier_compiled_once(1, 1, [&]<class V>(const V& verifier) {
    auto asked = orders(40, 40, ++seed, is_coupled<V>);
    for (order& o : asked)
      if (!is_coupled<V>) o.how.sample = {.temperature = 0};
    for (const auto kind : {some_length::as_forecast, some_length::as_controller}) {
      const some_length length(kind, {1, 0.2, 0.1});
      CHECK(differing<V, policies_once>(asked, length, make, 7, pool, load, verifier) == 0);
    }
  });
}

TEST_CASE("a round calls the target once, and the draft model once for each token of the drafts") {
  counted::calls_of_all.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  auto asked = orders(12, 40, 3, true);
  std::vector<std::unique_ptr<by_type>> all;
  std::vector<by_type::one*> now;
  for (order& o : asked) {
    o.most = 30;
    o.last_of = 0;
    o.how.gamma = 3;
    o.how.end_of_text = {};
    all.push_back(std::make_unique<by_type>(o, token_verifier(), some_length(), make));
    now.push_back(&all.back()->shared);
  }
  together_workspace<std::remove_pointer_t<decltype(now)::value_type>> work;
  const auto reading = std::size_t(
      std::ranges::count_if(asked, [](const order& o) { return detail::needs_draft(o.policy); }));
  CHECK((reading > 0 && reading < 12));
  CHECK(together_round(now, work, pool) == 12);
  const std::vector<std::pair<bool, std::size_t>> expected = {
      {false, 12}, {false, 12}, {false, 12}, {true, 12}, {false, reading}};
  CHECK(counted::calls_of_all == expected);
  CHECK(together_round({}, work, pool) == 0);
  CHECK(counted::calls_of_all == expected);
}

TEST_CASE(
    "a draft model is called where a row is wanted, and a length learns where a text went on") {
  counted::calls_of_all.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  using S = by_type;
  const order asked{1, {1, 2, 3}, 30, 0, 1000, {.gamma = 3}};
  order reads = asked;
  reads.policy = ensemble{0.3};
  const some_length idle(some_length::as_picky);
  some_length wants = idle;
  wants.wanted = 1;
  S a(asked, {}, idle, make), b(asked, {}, idle, make), c(asked, {}, wants, make),
      d(reads, {}, wants, make);
  b.target.fails = d.draft.fails = status::model_failed;
  const std::vector<S::one*> now = {&a.shared, &b.shared, &c.shared, &d.shared};
  together_workspace<S::one> work;
  CHECK(together_round(now, work, pool) == 2);
  // c and d, then c; that of d failed, and is not called again for the bonus token
  const std::vector<std::pair<bool, std::size_t>> expected = {
      {false, 2}, {false, 1}, {false, 1}, {true, 4}};
  CHECK(counted::calls_of_all == expected);
  CHECK((b.shared.why == status::model_failed && d.shared.why == status::model_failed));
  CHECK((a.shared.length.learned == 1 && c.shared.length.learned == 1));
  CHECK(b.shared.length.learned == 0);
}

TEST_CASE("a text that fails ends alone. An exception leaves all as they were before the round") {
  counted::calls_of_all.clear();
  thread_pool pool(1);
  const auto make = [](bool target) { return counted(40, target, 100); };
  using S = by_type;
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
  S::one again(l.drafter, k.target, l.policy, l.random,
               {.text = l.t, .most = 30, .work = l.work, .processor = l.pushed}, token_verifier(),
               some_length());
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

// A pool that tells the models when they are called from one of its loops.
struct watched_pool {
  thread_pool& pool;
  template <class Body>
  void for_ranges(std::size_t count, std::size_t grain, Body&& body) {
    pool.for_ranges(count, grain, [&](std::size_t begin, std::size_t end) {
      counted::inside = true;
      body(begin, end);
      counted::inside = false;
    });
  }
};

}  // namespace

TEST_CASE(
    "a shared call for bonus rows that fails leaves the texts as they are alone, and no model is "
    "called while texts are verified") {
  const auto texts = [](const some_length& length, unsigned threads) {
    thread_pool pool(threads);
    watched_pool verifies{pool};
    const auto make = [&](bool target) {
      counted model(40, target, 100);
      model.pool = &pool;
      return model;
    };
    using S = by_type;
    using one = S::one;
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
    counted::calls_inside = 0;
    std::size_t left = now.size();
    for (std::size_t round = 0; left > 0; ++round) {
      // One call of each text fails; after gamma drafted tokens that is the one for the bonus row.
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i]->draft.shared_calls = 0;
        all[i]->draft.fails_at = (i + round) % 2 ? all[i]->asked.how.gamma + 1 : round % 5;
      }
      left = together_round(now, work, verifies);
    }
    CHECK(counted::calls_inside == 0);
    for (auto& s : all) {
      S alone(s->asked, {}, length, make);
      alone.alone({}, length);
      CHECK((s->written() == alone.written() && s->shared.why == status::ok));
    }
  };
  for (const unsigned threads : {1u, 2u, 3u}) {
    texts({}, threads);
    texts({some_length::as_controller, {1, 0.2, 0.1}}, threads);
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
    row = normalise(processed_row<float>(own, {}), at.confidence);
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
    policies_once policy;
    drafting_workspace<float, watching::row_type> work;
    together_text<watching, toy_source<float>, policies_once, random_streams> shared;
    explicit one(std::size_t i)
        : random(i),
          policy(i % 3 ? policies_once(ensemble{0.4}) : token_v3{0.3}),
          work(40, {.gamma = i % 5}),
          shared(drafter, target, policy, random, {.text = t, .most = 40, .work = work}) {}
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
    REQUIRE(speculative_decode(alone.drafter, alone.target, alone.policy, alone.random,
                               {.text = alone.t, .most = 40, .work = alone.work}) == status::ok);
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
  using one_type =
      together_text<model_drafter<toy_source<float>>, toy_source<float>, lossless, random_streams>;
  struct one {
    toy_source<float> draft{8, 3, 2, 6, 100}, target{8, 3, 2, 6, 100};  // accepts everything
    speculative_workspace<float> work{8, {.gamma = 3}};
    model_drafter<toy_source<float>> drafter{draft, work.draft_logits};
    std::vector<token_id> memory = std::vector<token_id>(60, 1);
    text t{memory, 2};
    random_streams random{5};
    lossless policy;
    throws_once accept;
    one_type shared;
    explicit one(bool* armed)
        : accept{armed},
          shared(drafter, target, policy, random,
                 {.text = t, .most = 10, .work = work, .accept = accept}) {}
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
        drafter, target, policy, random, {.text = t, .most = 50, .work = work}};
    explicit one(std::uint64_t seed) : random(seed) {}
  };
  one a(1), b(2), alone(2);
  together_workspace<decltype(a.shared)> work;
  const std::vector both = {&a.shared, &b.shared};
  std::size_t accepted = 0;
  while (together_round(both, work) > 0) accepted += b.shared.result.accepted;
  CHECK(accepted > 0);
  REQUIRE(speculative_decode(alone.drafter, alone.target, alone.policy, alone.random,
                             {.text = alone.t, .most = 50, .work = alone.work}) == status::ok);
  CHECK((b.t.size == 53 && b.memory == alone.memory && a.memory != b.memory));
}
