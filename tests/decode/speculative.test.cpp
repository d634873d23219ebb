// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/detail/drafting_workspace.hpp>
#include <specagg/decode/speculative.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;
using T = double;

namespace {

constexpr std::size_t vocabulary = 3;

// What `texts` needs to know: the two models' seeds, and the processing that both rows go through.
struct setting {
  std::size_t gamma, length;
  decode_options options = {};
  penalty_options penalty = {};
};

struct penalty_memory {
  std::vector<std::uint32_t> counts = std::vector<std::uint32_t>(vocabulary);
  std::vector<token_id> distinct = std::vector<token_id>(vocabulary),
                        text = std::vector<token_id>(64);
  penalties with(penalty_options o) { return {o, counts, distinct, text}; }
};

// The exact joint law of the texts that decoding emits, against the product of the promised laws.
template <class Policy, class V = token_verifier, class L = fixed_draft_length>
double worst_joint_error(const Policy& policy, setting s, const V& verifier = {},
                         const L& length = {}) {
  s.options.gamma = s.gamma;
  std::size_t misuses = 0, reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        toy_source<T> d(vocabulary, 1), m(vocabulary, 2);
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        speculative_workspace<T> work(vocabulary, s.options);
        penalty_memory memory;
        auto processor = memory.with(s.penalty);
        (void)processor.push(0);
        const status why =
            speculative_decode(t, s.length, d, m, policy, chooser, work, with::processor{processor},
                               with::verifier{verifier}, with::length{L(length)});
        REQUIRE(why == status::ok);
        // Both caches hold a prefix of the text, and no more than it.
        CHECK(d.position() <= t.size);
        CHECK(m.position() <= t.size);
        misuses += d.misuses + m.misuses;
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(misuses == 0);
  CHECK(reused == 0);
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
  f("lossless", lossless{});
  f("ensemble", ensemble{0.3});
  f("opt", opt{0.05});
  f("token-v3", token_v3{0.3});
  f("lossy", lossy{0.2});
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
    CHECK(worst_joint_error(chow{0.6}, {2, 3, {.sample = s}}) < 1e-12);
  }
}
TEST_CASE(
    "an end-of-text token inside an accepted prefix ends the text there, with the right law") {
  for_each_policy([&](const char*, const auto& policy) {
    CHECK(worst_joint_error(policy, {3, 4, {.end_of_text = 1}}) < 1e-12);
  });
  const std::array<token_id, 2> ends{2, 0};
  CHECK(worst_joint_error(lossless{}, {3, 4, {.end_of_text = ends}}) < 1e-12);
  CHECK(worst_joint_error(opt{0.05}, {2, 4, {.end_of_text = ends}}) < 1e-12);
}

namespace {
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
}  // namespace
TEST_CASE("drafts as long as their rows say keep the joint law exact, under every verifier") {
  std::size_t stops = 0;
  for_each_policy([&](const char*, const auto& policy) {
    CHECK(worst_joint_error(policy, {3, 4}, token_verifier{}, moody_length(&stops)) < 1e-12);
    CHECK(worst_joint_error(policy, {3, 4}, block_verifier{}, moody_length(&stops)) < 1e-12);
    CHECK(worst_joint_error(policy, {3, 3}, match_verifier{}, moody_length(&stops)) < 1e-12);
    CHECK(worst_joint_error(policy, {3, 4}, block_verifier{},
                            plan::draft_length_controller({1, 0.2, 0.1})) < 1e-12);
  });
  CHECK(stops > 100);
}
TEST_CASE(
    "a row made for a draft that was not drawn serves as the row of the bonus: no model is called "
    "twice for it") {
  toy_source<float> d(30, 3), m(30, 3);
  std::vector<token_id> buffer(200);
  text t{buffer, 1};
  speculative_workspace<float> work(30, {});
  random_streams chooser(1);
  struct none_kept : fixed_draft_length {
    bool keep(std::size_t, double) const { return false; }
  };
  REQUIRE(speculative_decode(t, 50, d, m, ensemble{0.4}, chooser, work,
                             with::length{none_kept()}) == status::ok);
  CHECK(d.calls == 50);
  CHECK(m.calls == 50);
  CHECK(d.misuses + m.misuses == 0);
}
TEST_CASE("a coupled text is the same with any length of drafts") {
  const auto decode = [](auto length, std::size_t gamma) {
    toy_source<float> d(30, 3, 2, 3, 300), m(30, 4, 2, 3, 300);
    std::vector<token_id> buffer(210);
    text t{buffer, 1};
    speculative_workspace<float> work(30, {.gamma = gamma});
    random_streams chooser(1);
    REQUIRE(speculative_decode(t, 200, d, m, lossless{}, chooser, work,
                               with::verifier{coupled_verifier{coupled_noise(7)}},
                               with::length{length}) == status::ok);
    return std::vector<token_id>(buffer.begin(), buffer.begin() + 201);
  };
  CHECK(decode(fixed_draft_length(), 0) ==
        decode(plan::draft_length_controller({1, 0.02, 0.01}), 8));
}

TEST_CASE("at temperature 0 speculative decoding equals the target alone") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<token_id> reference;
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      toy_source<float> d(50, seed), m(50, seed + 1000);
      std::vector<token_id> buffer(100);
      text t{buffer, 1};
      speculative_workspace<float> work(50, {.gamma = gamma, .sample = {0}});
      random_streams chooser(seed, gamma);
      REQUIRE(speculative_decode(t, 60, d, m, lossless{}, chooser, work) == status::ok);
      REQUIRE(t.size == 61);
      if (gamma == 0) reference = buffer;
      CHECK(buffer == reference);
    }
  }
}
TEST_CASE("a draft equal to the target is always accepted") {
  toy_source<float> d(100, 5), m(100, 5);
  std::vector<token_id> buffer(300);
  text t{buffer, 1};
  speculative_workspace<float> work(100, {});
  random_streams chooser(1);
  std::size_t drafted = 0, accepted = 0;
  REQUIRE(speculative_decode(t, 200, d, m, lossless{}, chooser, work,
                             with::after_round{[&](const auto& r, auto&) {
                               drafted += r.drafted;
                               accepted += r.accepted;
                             }}) == status::ok);
  CHECK(drafted == 160);
  CHECK(accepted == drafted);
  CHECK(m.calls == 40);
}
TEST_CASE(
    "what accept() refuses ends the text: tokens after it are taken back from models and "
    "processor") {
  toy_source<float> d(30, 3), m(30, 3);
  std::vector<token_id> buffer(200);
  text t{buffer, 1};
  speculative_workspace<float> work(30, {.gamma = 8});
  random_streams chooser(1);
  // the draft equals the target: all of these are accepted
  for (std::size_t stop_at = 1; stop_at <= 12; ++stop_at) {
    const std::size_t before = t.size;
    std::size_t seen = 0;
    REQUIRE(speculative_decode(t, 50, d, m, lossless{}, chooser, work,
                               with::accept{[&](const emission&) { return ++seen < stop_at; }}) ==
            status::ok);
    CHECK(t.size == before + stop_at);
    CHECK(d.position() <= t.size);
    CHECK(m.position() <= t.size);
  }
  CHECK(d.misuses + m.misuses == 0);
}
TEST_CASE("a full context ends decoding with context_full, and nothing is lost") {
  for (std::size_t capacity = 1; capacity < 12; ++capacity) {
    toy_source<float> d(30, 3, 2, 3, 40), m(30, 4, 2, 3, capacity);
    std::vector<token_id> buffer(100);
    text t{buffer, 1};
    speculative_workspace<float> work(30, {});
    random_streams chooser(1);
    CHECK(speculative_decode(t, 50, d, m, lossless{}, chooser, work) == status::context_full);
    CHECK(t.size == capacity);  // with any draft: the target can see all of the text
    CHECK(d.misuses + m.misuses == 0);
  }
}
TEST_CASE(
    "a draft model whose context is smaller stops drafting where it is full. The text goes on") {
  for (std::size_t capacity = 1; capacity < 40; capacity += 3) {
    const auto decode = [&](const auto& policy, const auto& verifier, text& t, status& draft_why) {
      toy_source<float> d(30, 3, 2, 3, capacity), m(30, 4);
      speculative_workspace<float> work(30, {});
      random_streams chooser(1);
      std::size_t drafted_late = 0;
      const status s = speculative_decode(t, 30, d, m, policy, chooser, work,
                                          with::after_round{[&](const auto& r, const auto&) {
                                            draft_why = r.draft_why;
                                            if (t.size - r.emitted > capacity)
                                              drafted_late += r.drafted;
                                          }},
                                          with::verifier{verifier});
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
    toy_source<float> d(30, 3), m(30, 4);
    speculative_workspace<float> work(30, {.gamma = 0});
    random_streams chooser(1);
    CHECK(speculative_decode(u, 30, d, m, lossless{}, chooser, work,
                             with::verifier{coupled_verifier{coupled_noise(4)}}) == status::ok);
    CHECK(buffer == alone);  // the text does not depend on the draft
    // A law that reads the draft's row ends where there is none, and says why.
    std::vector<token_id> other(100);
    text w{other, 1};
    CHECK(decode(ensemble{0.4}, token_verifier{}, w, draft_why) ==
          (capacity < 31 ? status::context_full : status::ok));
    if (capacity < 31) {
      CHECK(w.size == capacity + 1);
      CHECK(draft_why == status::context_full);
    }
  }
}
TEST_CASE("a buffer that is full to the last token ends decoding with context_full") {
  for (std::size_t size = 2; size < 12; ++size) {
    toy_source<float> d(30, 3), m(30, 3);  // all drafts are accepted, and each round has a bonus
    std::vector<token_id> buffer(size);
    text t{buffer, 1};
    speculative_workspace<float> work(30, {});
    random_streams chooser(1);
    const status s = speculative_decode(t, 50, d, m, lossless{}, chooser, work);
    CHECK(s == status::context_full);
    CHECK(t.size == size);
  }
}
TEST_CASE("models of different vocabularies, an empty text and no room are reported, not guessed") {
  toy_source<float> d(30, 3), m(31, 4);
  std::vector<token_id> buffer(100);
  text t{buffer, 1}, empty{buffer, 0};
  speculative_workspace<float> work(31, {});
  random_streams chooser(1);
  CHECK(speculative_round(t, 5, d, m, lossless{}, chooser, work).why ==
        status::vocabulary_mismatch);
  CHECK(speculative_round(empty, 5, m, m, lossless{}, chooser, work).why ==
        status::invalid_parameter);
  CHECK(speculative_round(t, 0, m, m, lossless{}, chooser, work).why == status::invalid_parameter);
  CHECK(speculative_round(t, 5, m, m, lossy{2.0}, chooser, work).why == status::invalid_parameter);
  CHECK(t.size == 1);
}

namespace {
// Fails, or returns rows of NaN, at a chosen call.
struct faulty : toy_source<float> {
  std::size_t fail_at = 1000, nan_at = 1000, n = 0;
  using toy_source::toy_source;
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (n++ == fail_at) return status::model_failed;
    const status s = toy_source::extend(tokens, logits);
    if (n - 1 == nan_at) logits[logits.size() / 2] = std::nanf("");
    return s;
  }
};
}  // namespace
TEST_CASE(
    "a model that fails or returns NaN is reported. The text keeps what was verified and decoding "
    "can go on") {
  for (std::size_t call = 0; call < 30; ++call)
    for (int which = 0; which < 4; ++which) {
      faulty d(30, 3), m(30, 4);
      (which == 0 ? d.fail_at : which == 1 ? d.nan_at : which == 2 ? m.fail_at : m.nan_at) = call;
      std::vector<token_id> buffer(200);
      text t{buffer, 1};
      speculative_workspace<float> work(30, {.gamma = 3});
      random_streams chooser(call);
      std::size_t rounds = 0;
      while (t.size < 60 && ++rounds < 200) {
        const std::size_t before = t.size;
        const auto r = speculative_round(t, 5, d, m, ensemble{0.4}, chooser, work);
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
  struct failing : toy_source<T> {
    std::size_t fail_at = 1000, n = 0;
    using toy_source::toy_source;
    status extend(std::span<const token_id> tokens, std::span<T> logits) {
      return n++ == fail_at ? status::model_failed : toy_source::extend(tokens, logits);
    }
  };
  for (std::size_t call = 0; call < 6; ++call)
    for (const bool draft_fails : {false, true}) {
      const auto law = exact_law([&](auto& chooser) {
        failing d(vocabulary, 1), m(vocabulary, 2);
        (draft_fails ? d : m).fail_at = call;
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        speculative_workspace<T> work(vocabulary, {.gamma = 1});
        while (t.size < 5)
          (void)speculative_decode(t, 5 - t.size, d, m, ensemble{0.3}, chooser, work);
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
      });
      double worst = 0;
      for (const auto& [tokens, probability] : law) {
        double due = 1;
        std::vector<token_id> context{0};
        for (const token_id x : tokens) {
          std::vector<T> ql(vocabulary), pl(vocabulary);
          toy_source<T>(vocabulary, 1).row(context, ql),
              toy_source<T>(vocabulary, 2).row(context, pl);
          due *= target_law(ensemble{0.3}, softmax_row<T>(ql), softmax_row<T>(pl))[std::size_t(x)];
          context.push_back(x);
        }
        worst = std::max(worst, std::fabs(probability - due));
      }
      CHECK(worst < 1e-12);
    }
}
TEST_CASE("acceptances of the drafted positions predict the tokens per round") {
  toy_source<float> d(40, 8), m(40, 9);
  std::vector<token_id> buffer(20001);
  text t{buffer, 1};
  d = toy_source<float>(40, 8, 2, 3, 30000);
  m = toy_source<float>(40, 9, 2, 3, 30000);
  speculative_workspace<float> work(40, {.gamma = 4, .acceptances = true});
  random_streams chooser(3);
  double expected = 0, emitted = 0, rounds = 0;
  REQUIRE(speculative_decode(t, 20000, d, m, lossless{}, chooser, work,
                             with::after_round{[&](const auto& r, auto& w) {
                               if (r.drafted < 4) return;
                               expected +=
                                   expected_tokens(std::span(w.acceptances).first(r.drafted));
                               emitted += double(r.emitted);
                               ++rounds;
                             }}) == status::ok);
  std::printf("expected tokens a round %.4f, emitted %.4f over %.0f rounds\n", expected / rounds,
              emitted / rounds, rounds);
  // 5 standard errors at 10^4 rounds
  CHECK(expected / rounds == Approx(emitted / rounds).margin(0.05));
}
