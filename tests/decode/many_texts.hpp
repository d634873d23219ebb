// SPDX-License-Identifier: Apache-2.0
// Many texts that share rounds: what they are asked for, and whether each is the text that it is
// alone.
#pragma once
#include <algorithm>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include <specagg/decode/together.hpp>
#include <specagg/decoders.hpp>
#include <specagg/thread_pool.hpp>

#include "decode/toy_text.hpp"

namespace {

// Known by their own types, as a program that serves has them; and compiled once. The latter are
// all taken to read the draft.
using policies = specagg::any_of<specagg::lossless, specagg::token_v3, specagg::ensemble>;
using policies_once = specagg::compiled_once<policies>;

// Every length of drafts that these tests need, of one type.
struct some_length : specagg::plan::draft_length_controller {
  enum kind { as_fixed, as_forecast, as_controller, as_picky };
  kind is = as_fixed;
  bool reads_acceptances = false, reads_confidence = false;
  std::size_t wanted = 0, learned = 0;  // as_picky: how many rows; rounds that it learned from
  some_length(kind one = as_fixed, const specagg::plan::draft_costs& costs = {})
      : draft_length_controller(costs),
        is(one),
        reads_acceptances(one == as_forecast || one == as_controller),
        reads_confidence(reads_acceptances) {}
  void begin() {
    if (is == as_controller) draft_length_controller::begin();
    else draft_forecast::begin();
  }
  bool another(std::size_t k) const {
    if (is == as_picky) return wanted > 0;
    return is == as_fixed ||
           (is == as_forecast ? draft_forecast::another(k) : draft_length_controller::another(k));
  }
  bool keep(std::size_t k, double confidence) {
    if (is == as_controller) return draft_length_controller::keep(k, confidence);
    return is != as_forecast || draft_forecast::keep(k, confidence);
  }
  void observe(std::span<const specagg::draft_acceptance> drafted, std::size_t emitted,
               std::span<const std::size_t> asked) {
    ++learned;
    if (is == as_controller) draft_length_controller::observe(drafted, emitted, asked);
    if (is == as_forecast) draft_forecast::observe(drafted, emitted, asked);
  }
};

// What one text is asked for, when it comes, and when it is cancelled.
struct order {
  std::uint64_t seed;
  std::vector<specagg::token_id> prompt;
  std::size_t most, come, cancelled;  // rounds
  specagg::decode_options how;
  policies policy = specagg::lossless{};
  specagg::penalty_options penalty = {};
  specagg::token_id last_of = 0;  // not accepted as anything but the last: multiples of it
};
inline std::vector<order> orders(std::size_t count, std::size_t vocab, unsigned seed,
                                 bool any_policy) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };
  std::vector<order> all;
  for (std::size_t i = 0; i < count; ++i) {
    order o{.seed = seed + i,
            .prompt = std::vector<specagg::token_id>(1 + below(9)),
            .most = below(20),
            .come = i / 3,
            .cancelled = below(4) ? 1000 : i / 3 + below(6),
            .how = {.gamma = below(6), .acceptances = below(2) == 0}};
    for (specagg::token_id& t : o.prompt) t = specagg::token_id(below(vocab));
    o.how.sample.temperature = double(below(4)) / 2;  // 0 too
    if (below(3) == 0) o.how.sample.top_k = 5;
    if (below(3) == 0) o.how.end_of_text = specagg::token_id(below(vocab));
    if (any_policy && below(3))
      o.policy = below(2) ? policies(specagg::token_v3{0.4}) : specagg::ensemble{0.3};
    if (below(4) == 0) o.penalty.repetition = 1.3;
    if (below(4) == 0) o.last_of = specagg::token_id(2 + below(20));
    all.push_back(std::move(o));
  }
  return all;
}

// A text, with models of its own.
template <class M, class V, class Policy>
struct session {
  using L = some_length;
  struct accept_type {
    specagg::token_id last_of;
    bool operator()(const specagg::emission& e) const {
      return last_of == 0 || e.token % last_of != 0;
    }
  };
  using one =
      specagg::together_text<specagg::model_drafter<M>, M, Policy, specagg::random_streams, V, L>;
  order asked;
  Policy policy;
  M draft, target;
  std::vector<specagg::token_id> memory, of_penalties;
  specagg::text t;
  specagg::random_streams random;
  specagg::speculative_workspace<float> work;
  specagg::model_drafter<M> drafter;
  specagg::penalties pushed;
  accept_type accept;
  one shared;
  std::size_t rounds = 0;

  template <class Make>
  session(const order& o, const V& verifier, const L& length, Make&& make)
      : asked(o),
        policy(o.policy),
        draft(make(false)),
        target(make(true)),
        memory(o.prompt),
        random(o.seed),
        work(target.vocab_size(), o.how),
        drafter(draft, work.draft_logits, o.how.sample),
        accept{o.last_of},
        shared(drafter, target, policy, random,
               {.text = t, .most = o.most, .work = work, .processor = pushed, .accept = accept},
               V(verifier), L(length)) {
    memory.resize(o.prompt.size() + o.most + o.how.gamma + 1);
    of_penalties.resize(specagg::penalties::memory(target.vocab_size(), memory.size()));
    pushed = specagg::penalties(o.penalty, target.vocab_size(), o.prompt, of_penalties);
    t = {memory, o.prompt.size()};
  }
  std::vector<specagg::token_id> written() const {
    return {memory.begin(), memory.begin() + t.size};
  }
  void alone(const V& verifier, L length) {
    shared.why = specagg::speculative_decode(
        drafter, target, policy, random,
        {.text = t, .most = asked.most, .work = work, .processor = pushed, .accept = shared.accept},
        verifier, length);
  }
};

// How many of the texts differ from those that they are alone: all written together, at most
// `limit` at once.
template <class V, class Policy, class Make, class Load = specagg::each_alone>
std::size_t differing(const std::vector<order>& asked, const some_length& length, Make&& make,
                      std::size_t limit, specagg::thread_pool& pool, Load load = {},
                      const V& like = {}) {
  using M = std::invoke_result_t<Make&, bool>;
  using S = session<M, V, Policy>;
  const auto verifier = [&]([[maybe_unused]] const order& o) {
    if constexpr (specagg::is_coupled<V>) return V{specagg::coupled_noise(o.seed, 0)};
    else return like;
  };
  std::vector<std::unique_ptr<S>> all;
  std::vector<typename S::one*> now;
  specagg::together_workspace<typename S::one> work;
  std::size_t next = 0, most = 0, differ = 0;
  for (std::size_t round = 0; next < asked.size() || !now.empty(); ++round) {
    for (; next < asked.size() && asked[next].come <= round && now.size() < limit; ++next) {
      all.push_back(std::make_unique<S>(asked[next], verifier(asked[next]), length, make));
      now.push_back(&all.back()->shared);
    }
    for (auto& s : all)
      if (s->asked.cancelled <= round) std::erase(now, &s->shared);
    most = std::max(most, now.size());
    const std::size_t left = specagg::together_round(now, work, pool, load);
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

}  // namespace
