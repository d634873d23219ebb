// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/length.hpp>
#include <specagg/decode/speculative.hpp>
#include <specagg/decode/workspace.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

// What `texts` needs to know: the two models' seeds, and the processing that both rows go through.
struct setting {
  std::size_t gamma, length;
  decode_options options = {};
  penalty_options penalty = {};
  std::size_t draft_fails_at = 1000, target_fails_at = 1000;  // calls, from 0
};

// Stops where the row is not sure, or the round before emitted one token: a length that depends on
// text, row and past.
struct moody_length : fixed_draft_length {
  static constexpr bool reads_confidence = true;
  bool short_round = false;
  std::size_t* stops;
  std::size_t g = 0;
  explicit moody_length(std::size_t* count) : stops(count) {}
  void begin() { g = 0; }
  bool another(std::size_t) const { return !short_round || g < 1; }
  bool keep(std::size_t, double top) {
    const bool yes = top > 0.7;
    *stops += !yes;
    g += yes;
    return yes;
  }
  void observe(std::span<const draft_acceptance>, std::size_t emitted,
               std::span<const std::size_t>) {
    short_round = emitted == 1;
  }
};
struct none_kept : fixed_draft_length {
  bool keep(std::size_t, double) const { return false; }
};
using lengths =
    any_length<fixed_draft_length, moody_length, none_kept, plan::draft_length_controller>;
using policies = compiled_once<any_of<lossless, ensemble, opt, token_v3, lossy, chow>>;

// The exact joint law of the texts that decoding emits.
template <class Policy>
auto law_of_texts(const Policy& policy, const setting& s, const any_verifier& verifier,
                  const lengths& given_length) {
  std::size_t misuses = 0, reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        faulty<T> d(vocabulary, 1), m(vocabulary, 2);
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        speculative_workspace<T> work(vocabulary, s.options);
        penalty_memory memory;
        auto processor = memory.with(s.penalty);
        (void)processor.push(0);
        lengths length = given_length;
        d.fail_at = s.draft_fails_at;
        m.fail_at = s.target_fails_at;
        const bool fails = std::min(s.draft_fails_at, s.target_fails_at) < 1000;
        status why = status::ok;
        do {
          why = speculative_decode(
              d, m, policy, chooser,
              {.text = t, .most = s.length + 1 - t.size, .work = work, .processor = processor},
              verifier, length);
        } while (why == status::model_failed && fails && t.size < s.length + 1);
        REQUIRE(why == status::ok);
        // Both caches hold a prefix of the text, and no more than it.
        CHECK(d.position() <= t.size);
        CHECK(m.position() <= t.size);
        misuses += d.misuses + m.misuses;
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(misuses == 0);
  CHECK((reused == 0 || std::min(s.draft_fails_at, s.target_fails_at) < 1000));
  return law;
}
// And its largest difference from the product of the promised laws.
template <class Policy>
double worst_joint_error(const Policy& policy, setting s, const any_verifier& verifier = {},
                         const lengths& length = fixed_draft_length()) {
  s.options.gamma = s.gamma;
  const auto law = law_of_texts(policy, s, verifier, length);
  bool endless = true;
  for (std::size_t v = 0; v < vocabulary; ++v)
    endless = endless && !s.options.end_of_text.contains(token_id(v));
  double worst = 0, total = 0;
  const toy_source<T> d(vocabulary, 1), m(vocabulary, 2);
  for (const auto& [tokens, probability] : law) {
    total += probability;
    double due = 1;
    std::vector<token_id> context{0};
    for (const token_id x : tokens) {
      std::vector<T> ql(vocabulary), pl(vocabulary);
      d.row(context, ql);
      m.row(context, pl);
      penalty_memory memory;
      auto processor = memory.with(s.penalty);
      for (const token_id c : context) (void)processor.push(c);
      processor.apply(std::span(ql));
      processor.apply(std::span(pl));
      const auto pi = target_law(policy, processed_row<T>(ql, s.options.sample),
                                 processed_row<T>(pl, s.options.sample));
      REQUIRE(pi.size() == vocabulary);
      due *= pi[std::size_t(x)];
      context.push_back(x);
      // nothing stands after it
      if (s.options.end_of_text.contains(x)) CHECK(context.size() == tokens.size() + 1);
    }
    if (endless) CHECK(tokens.size() == s.length);
    worst = std::max(worst, std::fabs(probability - due));
  }
  CHECK(total == Approx(1).epsilon(1e-12));
  return worst;
}

template <class F>
void for_each_policy(F f) {
  f("lossless", policies(lossless{}));
  f("ensemble", policies(ensemble{0.3}));
  f("opt", policies(opt{0.05}));
  f("token-v3", policies(token_v3{0.3}));
  f("lossy", policies(lossy{0.2}));
}

// Longer texts of production streams. What they are given is of one type, too.
using toy_model = faulty<float>;
using workspace = speculative_workspace<float>;
template <class V = any_verifier>
struct parts {
  V verifier = {};
  lengths length = fixed_draft_length();
  watcher accept = keep_all;
  std::function<void(const speculative_result&, workspace&)> after_round =
      [](const speculative_result&, workspace&) {};
};
template <class Policy, class V = any_verifier>
status decoded(text& t, std::size_t most, toy_model& d, toy_model& m, const Policy& policy,
               random_streams& chooser, workspace& work, parts<V> given = {}) {
  return speculative_decode(d, m, policy, chooser,
                            {.text = t,
                             .most = most,
                             .work = work,
                             .accept = given.accept,
                             .after_round = given.after_round},
                            given.verifier, given.length);
}

}  // namespace

TEST_CASE(
    "texts decoded on the toy source have exactly the joint law, for every policy and gamma 0..3") {
  for_each_policy([](const char* name, const auto& policy) {
    for (std::size_t gamma = 0; gamma <= 3; ++gamma) {
      const double worst = worst_joint_error(policy, {gamma, 4});
      std::printf("%-10s gamma %zu: 81 texts of 4 tokens, worst error %.2e\n", name, gamma, worst);
      CHECK(worst < 1e-12);
    }
  });
  CHECK(worst_joint_error(lossless{}, {2, 4}) < 1e-12);  // by its own type, nobody reads the draft
}
TEST_CASE("a repetition penalty that changes inside the draft keeps the joint law exact") {
  const penalty_options penalty{.repetition = 1.7, .presence = 0.3, .frequency = 0.4};
  for_each_policy([&](const char*, const auto& policy) {
    CHECK(worst_joint_error(policy, {2, 4, {}, penalty}) < 1e-12);
    CHECK(worst_joint_error(policy, {3, 3, {}, penalty}) < 1e-12);
  });
}
TEST_CASE("temperature, top-k, top-p and min-p keep the joint law exact") {
  for (const sampling s :
       {sampling{0.5}, sampling{1, 2}, sampling{1, 0, 0.7}, sampling{2, 0, 1, 0.6}, sampling{0}}) {
    for_each_policy([&](const char*, const auto& policy) {
      CHECK(worst_joint_error(policy, {2, 3, {.sample = s}}) < 1e-12);
    });
    // it reads the draft's row at temperature 1, too
    CHECK(worst_joint_error(policies(chow{0.6}), {2, 3, {.sample = s}}) < 1e-12);
  }
}
TEST_CASE(
    "an end-of-text token inside an accepted prefix ends the text there, with the right law") {
  for_each_policy([&](const char*, const auto& policy) {
    CHECK(worst_joint_error(policy, {3, 4, {.end_of_text = 1}}) < 1e-12);
  });
  const std::array<token_id, 2> ends{2, 0};
  CHECK(worst_joint_error(lossless{}, {3, 4, {.end_of_text = ends}}) < 1e-12);
  CHECK(worst_joint_error(policies(opt{0.05}), {2, 4, {.end_of_text = ends}}) < 1e-12);
}

TEST_CASE("drafts as long as their rows say keep the joint law exact, under every verifier") {
  std::size_t stops = 0;
  for_each_policy([&](const char*, const auto& policy) {
    CHECK(worst_joint_error(policy, {3, 4}, any_verifier(token_verifier{}), moody_length(&stops)) <
          1e-12);
    CHECK(worst_joint_error(policy, {3, 4}, any_verifier(block_verifier{}), moody_length(&stops)) <
          1e-12);
    CHECK(worst_joint_error(policy, {3, 3}, any_verifier(match_verifier{}), moody_length(&stops)) <
          1e-12);
    CHECK(worst_joint_error(policy, {3, 4}, any_verifier(block_verifier{}),
                            plan::draft_length_controller({1, 0.2, 0.1})) < 1e-12);
  });
  CHECK(stops > 100);
}
TEST_CASE(
    "a row made for a draft that was not drawn serves as the row of the bonus: no model is called "
    "twice for it") {
  toy_model d(30, 3), m(30, 3);
  std::vector<token_id> buffer(200);
  text t{buffer, 1};
  workspace work(30, {});
  random_streams chooser(1);
  REQUIRE(decoded(t, 50, d, m, ensemble{0.4}, chooser, work, {.length = none_kept()}) ==
          status::ok);
  CHECK(d.calls == 50);
  CHECK(m.calls == 50);
  CHECK(d.misuses + m.misuses == 0);
}
TEST_CASE("a coupled text is the same with any length of drafts") {
  const auto decode = [](const lengths& length, std::size_t gamma) {
    toy_model d(30, 3, 2, 3, 300), m(30, 4, 2, 3, 300);
    std::vector<token_id> buffer(210);
    text t{buffer, 1};
    workspace work(30, {.gamma = gamma});
    random_streams chooser(1);
    const parts<coupled_verifier> given{.verifier = {coupled_noise(7)}, .length = length};
    REQUIRE(decoded(t, 200, d, m, lossless{}, chooser, work, given) == status::ok);
    return std::vector<token_id>(buffer.begin(), buffer.begin() + 201);
  };
  CHECK(decode(fixed_draft_length(), 0) ==
        decode(plan::draft_length_controller({1, 0.02, 0.01}), 8));
}

TEST_CASE("at temperature 0 speculative decoding equals the target alone") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<token_id> reference;
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      toy_model d(50, seed), m(50, seed + 1000);
      std::vector<token_id> buffer(100);
      text t{buffer, 1};
      workspace work(50, {.gamma = gamma, .sample = {0}});
      random_streams chooser(seed, gamma);
      REQUIRE(decoded(t, 60, d, m, lossless{}, chooser, work) == status::ok);
      REQUIRE(t.size == 61);
      if (gamma == 0) reference = buffer;
      CHECK(buffer == reference);
    }
  }
}
TEST_CASE("a draft equal to the target is always accepted") {
  toy_model d(100, 5), m(100, 5);
  std::vector<token_id> buffer(300);
  text t{buffer, 1};
  workspace work(100, {});
  random_streams chooser(1);
  std::size_t drafted = 0, accepted = 0;
  const auto count = [&](const speculative_result& r, workspace&) {
    drafted += r.drafted;
    accepted += r.accepted;
  };
  REQUIRE(decoded(t, 200, d, m, lossless{}, chooser, work, {.after_round = count}) == status::ok);
  CHECK(drafted == 160);
  CHECK(accepted == drafted);
  CHECK(m.calls == 40);
}
TEST_CASE(
    "what accept() refuses ends the text: tokens after it are taken back from models and "
    "processor") {
  toy_model d(30, 3), m(30, 3);
  std::vector<token_id> buffer(200);
  text t{buffer, 1};
  workspace work(30, {.gamma = 8});
  random_streams chooser(1);
  // the draft equals the target: all of these are accepted
  for (std::size_t stop_at = 1; stop_at <= 12; ++stop_at) {
    const std::size_t before = t.size;
    std::size_t seen = 0;
    const auto accept = [&](const emission&) { return ++seen < stop_at; };
    REQUIRE(decoded(t, 50, d, m, lossless{}, chooser, work, {.accept = accept}) == status::ok);
    CHECK(t.size == before + stop_at);
    CHECK(d.position() <= t.size);
    CHECK(m.position() <= t.size);
  }
  CHECK(d.misuses + m.misuses == 0);
}
TEST_CASE("a full context ends decoding with context_full, and nothing is lost") {
  for (std::size_t capacity = 1; capacity < 12; ++capacity) {
    toy_model d(30, 3, 2, 3, 40), m(30, 4, 2, 3, capacity);
    std::vector<token_id> buffer(100);
    text t{buffer, 1};
    workspace work(30, {});
    random_streams chooser(1);
    CHECK(decoded(t, 50, d, m, lossless{}, chooser, work) == status::context_full);
    CHECK(t.size == capacity);  // with any draft: the target can see all of the text
    CHECK(d.misuses + m.misuses == 0);
  }
}
TEST_CASE(
    "a draft model whose context is smaller stops drafting where it is full. The text goes on") {
  for (std::size_t capacity = 1; capacity < 40; capacity += 3) {
    const auto decode = [&]<class V>(const auto& policy, const V& verifier, text& t,
                                     status& draft_why) {
      toy_model d(30, 3, 2, 3, capacity), m(30, 4);
      workspace work(30, {});
      random_streams chooser(1);
      std::size_t drafted_late = 0;
      const auto watch = [&](const speculative_result& r, workspace&) {
        draft_why = r.draft_why;
        if (t.size - r.emitted > capacity) drafted_late += r.drafted;
      };
      const parts<V> given{.verifier = verifier, .after_round = watch};
      const status s = decoded(t, 30, d, m, policy, chooser, work, given);
      CHECK(drafted_late == 0);
      CHECK(d.misuses + m.misuses == 0);
      CHECK(d.position() <= capacity);
      return s;
    };
    status draft_why = status::ok;
    std::vector<token_id> buffer(100), alone(100);
    text t{buffer, 1}, u{alone, 1};
    CHECK(decode(lossless{}, coupled_verifier{coupled_noise(4)}, t, draft_why) == status::ok);
    CHECK(t.size == 31);
    toy_model d(30, 3), m(30, 4);
    workspace work(30, {.gamma = 0});
    random_streams chooser(1);
    const parts<coupled_verifier> coupled{.verifier = {coupled_noise(4)}};
    CHECK(decoded(u, 30, d, m, lossless{}, chooser, work, coupled) == status::ok);
    CHECK(buffer == alone);  // the text does not depend on the draft
    // A law that reads the draft's row ends where there is none, and says why.
    std::vector<token_id> other(100);
    text w{other, 1};
    CHECK(decode(ensemble{0.4}, any_verifier(), w, draft_why) ==
          (capacity < 31 ? status::context_full : status::ok));
    if (capacity < 31) {
      CHECK(w.size == capacity + 1);
      CHECK(draft_why == status::context_full);
    }
  }
}
TEST_CASE("a buffer that is full to the last token ends decoding with context_full") {
  for (std::size_t size = 2; size < 12; ++size) {
    toy_model d(30, 3), m(30, 3);  // all drafts are accepted, and each round has a bonus
    std::vector<token_id> buffer(size);
    text t{buffer, 1};
    workspace work(30, {});
    random_streams chooser(1);
    const status s = decoded(t, 50, d, m, lossless{}, chooser, work);
    CHECK(s == status::context_full);
    CHECK(t.size == size);
  }
}
TEST_CASE("models of different vocabularies, an empty text and no room are reported, not guessed") {
  toy_model d(30, 3), m(31, 4);
  std::vector<token_id> buffer(100);
  text t{buffer, 1}, empty{buffer, 0};
  workspace work(31, {});
  random_streams chooser(1);
  CHECK(speculative_round(d, m, ensemble{0.4}, chooser, {.text = t, .most = 5, .work = work}).why ==
        status::vocabulary_mismatch);
  CHECK(speculative_round(m, m, ensemble{0.4}, chooser, {.text = empty, .most = 5, .work = work})
            .why == status::invalid_parameter);
  CHECK(speculative_round(m, m, ensemble{0.4}, chooser, {.text = t, .most = 0, .work = work}).why ==
        status::invalid_parameter);
  CHECK(speculative_round(m, m, ensemble{2.0}, chooser, {.text = t, .most = 5, .work = work}).why ==
        status::invalid_parameter);
  CHECK(t.size == 1);
}

TEST_CASE(
    "a model that fails or returns NaN is reported. The text keeps what was verified and decoding "
    "can go on") {
  for (std::size_t call = 0; call < 30; ++call)
    for (int which = 0; which < 4; ++which) {
      toy_model d(30, 3), m(30, 4);
      (which == 0 ? d.fail_at : which == 1 ? d.nan_at : which == 2 ? m.fail_at : m.nan_at) = call;
      std::vector<token_id> buffer(200);
      text t{buffer, 1};
      workspace work(30, {.gamma = 3});
      random_streams chooser(call);
      std::size_t rounds = 0;
      while (t.size < 60 && ++rounds < 200) {
        const std::size_t before = t.size;
        const auto r =
            speculative_round(d, m, ensemble{0.4}, chooser, {.text = t, .most = 5, .work = work});
        CHECK(t.size == before + r.emitted);
        CHECK((r.emitted > 0 || r.why != status::ok));
        if (r.why != status::ok)
          CHECK((r.why == status::model_failed || r.why == status::invalid_row));
        CHECK(d.position() <= t.size);
        CHECK(m.position() <= t.size);
      }
      CHECK(t.size >= 60);
      CHECK(d.misuses + m.misuses == 0);
      CHECK(std::ranges::all_of(std::span(buffer).first(t.size),
                                [](token_id x) { return x >= 0 && x < 30; }));
    }
}
TEST_CASE("a model that fails in the middle, for the bonus too, leaves the law as it was") {
  for (std::size_t call = 0; call < 6; ++call)
    for (const bool draft_fails : {false, true}) {
      setting s{1, 4};
      (draft_fails ? s.draft_fails_at : s.target_fails_at) = call;
      CHECK(worst_joint_error(policies(ensemble{0.3}), s) < 1e-12);
    }
}
TEST_CASE("acceptances of the drafted positions predict the tokens per round") {
  toy_model d(40, 8, 2, 3, 30000), m(40, 9, 2, 3, 30000);
  std::vector<token_id> buffer(20001);
  text t{buffer, 1};
  workspace work(40, {.gamma = 4, .acceptances = true});
  random_streams chooser(3);
  double expected = 0, emitted = 0, rounds = 0;
  const auto watch = [&](const speculative_result& r, workspace& w) {
    if (r.drafted < 4) return;
    expected += expected_tokens(std::span(w.acceptances).first(r.drafted));
    emitted += double(r.emitted);
    ++rounds;
  };
  REQUIRE(decoded(t, 20000, d, m, lossless{}, chooser, work, {.after_round = watch}) == status::ok);
  std::printf("expected tokens a round %.4f, emitted %.4f over %.0f rounds\n", expected / rounds,
              emitted / rounds, rounds);
  // 5 standard errors at 10^4 rounds
  CHECK(expected / rounds == Approx(emitted / rounds).margin(0.05));
}
