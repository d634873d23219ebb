// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/cascade.hpp>

#include <cstdio>
#include <map>

#include <specagg/decode/bild.hpp>
#include <specagg/decode/speculative.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

// Defer iff max q < 1 - alpha (Chow), of the row at temperature 1.
struct unsure {
  double alpha;
  static constexpr bool decides_by_draft = true;
  template <class Rows>
  auto bind(const Rows& rows) const {
    const bool defer = rows.max([](auto at) { return at.confidence_q; }) < 1 - alpha;
    return [=](auto at) { return select(defer, at.p, at.q); };
  }
};
struct unsure_sampled {  // the same of the row that is sampled from
  double alpha;
  static constexpr bool reads_confidence = false, decides_by_draft = true;
  template <class Rows>
  auto bind(const Rows& rows) const {
    const bool defer = rows.max([](auto at) { return at.q; }) < 1 - alpha;
    return [=](auto at) { return select(defer, at.p, at.q); };
  }
};
// Does not look at anything.
struct always_target {
  static constexpr bool decides_by_draft = true;
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return at.p; };
  }
};
struct half_and_half {
  static constexpr bool decides_by_draft = true;
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return 0.5 * at.q + 0.5 * at.p; };
  }
};

// A decoder is compiled once for all of these, and for all models, which are faulty where a test
// says so.
using deferrals = compiled_once<any_of<unsure, unsure_sampled, half_and_half, always_target>>;
using combiners = compiled_once<any_of<opt, token_v3, ensemble, lossy, lossless, unsure>>;
using toy_model = faulty<T>;

struct setting {
  std::size_t length = 4;
  sampling sample = {};
  token_id end_of_text = no_token;
  penalty_options penalty = {};
  std::size_t longest_run = 10;
  cascade_options options() const { return {sample, end_of_text, longest_run}; }
};
const penalty_options some_penalty{.repetition = 1.7, .presence = 0.3, .frequency = 0.4};
const setting settings[] = {{},
                            {4, {0.5}},
                            {4, {1, 2}},
                            {4, {2, 0, 0.8}},
                            {4, {0}},
                            {4, {}, 1},
                            {4, {}, no_token, some_penalty},
                            {4, {0.7}, 2, some_penalty},
                            {5, {}, no_token, {}, 2},
                            {4, {}, no_token, {}, 0}};

toy_model small_model() { return {vocabulary, 1}; }
toy_model large_model() { return {vocabulary, 2}; }
std::vector<double> q_row(const std::vector<token_id>& context, const setting& s) {
  return probabilities(small_model(), context, s.sample, s.penalty);
}
std::vector<double> p_row(const std::vector<token_id>& context, const setting& s) {
  return probabilities(large_model(), context, s.sample, s.penalty);
}
std::vector<double> q_at_temperature_1(const std::vector<token_id>& context, const setting& s) {
  return probabilities(small_model(), context, {}, s.penalty);
}

// The exact law of decode(text, most, small, large, chooser, processor, workspace, accept), with
// the options of the setting. Every
// path is checked for the state it leaves behind, and by check(small, large, emissions).
using decoder = std::function<status(text&, std::size_t, toy_model&, toy_model&, either&, witness&,
                                     cascade_workspace<T>&, const watcher&)>;
using calls_check =
    std::function<bool(const toy_model&, const toy_model&, const std::vector<emission>&)>;
auto law_of(const setting& s, const decoder& decode, const calls_check& check,
            bool per_token = false) {
  std::size_t wrong = 0, reused = 0;
  auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        auto d = small_model(), m = large_model();
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        cascade_workspace<T> work(vocabulary, {.longest_run = 10, .longest_response = s.length});
        work.options = s.options();
        work.options.per_token = per_token;
        penalty_memory memory;
        witness processor{memory.with(s.penalty), {}};
        (void)processor.push(0);
        std::vector<emission> emissions;
        const watcher accept = [&](const emission& e) {
          emissions.push_back(e);
          return true;
        };
        wrong += decode(t, s.length, d, m, chooser, processor, work, accept) != status::ok;
        wrong += d.misuses + m.misuses + (d.position() > t.size) + (m.position() > t.size);
        wrong += !std::ranges::equal(processor.pushed, std::span(buffer).first(t.size));
        wrong += emissions.size() + 1 != t.size || !check(d, m, emissions);
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(wrong == 0);
  CHECK(reused == 0);
  return law;
}

}  // namespace

// ---- sequential ---------------------------------------------------------------------------------

TEST_CASE(
    "a sequential cascade emits exactly q or p by its policy, and calls p for those tokens alone") {
  for (const setting& s : settings) {
    double worst = 0;
    for (const double alpha : {0.3, 0.5, 0.6}) {
      const auto check = [&](const deferrals& policy, auto sure) {
        const auto law = law_of(
            s,
            [&](text& t, std::size_t most, toy_model& d, toy_model& m, either& chooser,
                witness& processor, cascade_workspace<T>& work, const watcher& accept) {
              return sequential_decode(d, m, policy, chooser,
                                       {.text = t,
                                        .most = most,
                                        .work = work,
                                        .processor = processor,
                                        .accept = accept});
            },
            [&](const toy_model& d, const toy_model& m, const std::vector<emission>& emissions) {
              // Calls: p once a token of its own; q at every token that was not forced upon p.
              std::size_t large = 0, forced = 0, run = 0;
              for (const emission& e : emissions) {
                forced += run == s.longest_run;
                large += e.from == origin::bonus;
                run = e.from == origin::bonus ? 0 : run + 1;
              }
              return m.calls == large && d.calls == emissions.size() - forced;
            });
        worst = std::max(
            worst, worst_joint_error(law, s.length, s.end_of_text, [&](const auto& context) {
              // Who wrote the tokens so far follows from the policy: run again.
              std::size_t run = 0;
              for (std::size_t n = 1;; ++n) {
                const std::vector<token_id> before(context.begin(),
                                                   context.begin() + std::ptrdiff_t(n));
                const auto c = sure(before);
                const bool defer = run == s.longest_run || *std::ranges::max_element(c) < 1 - alpha;
                if (n == context.size()) return defer ? p_row(context, s) : q_row(context, s);
                run = defer ? 0 : run + 1;
              }
            }));
      };
      check(unsure{alpha}, [&](const auto& c) { return q_at_temperature_1(c, s); });
      check(unsure_sampled{alpha}, [&](const auto& c) { return q_row(c, s); });
    }
    std::printf("sequential cascade: texts of %zu tokens, worst error %.2e\n", s.length, worst);
    CHECK(worst < 1e-12);
  }
}
TEST_CASE(
    "in a sequential cascade of a small model that is always sure p writes every eleventh token") {
  auto d = small_model(), m = large_model();
  std::vector<token_id> buffer(111);
  text t{buffer, 1};
  cascade_workspace<T> work(vocabulary, {});
  either chooser = random_streams(1);
  std::size_t n = 0;
  const watcher accept = [&](const emission& e) {
    CHECK((e.from == origin::bonus) == (++n % 11 == 0));
    return true;
  };
  penalty_memory memory;
  witness processor{memory.with({}), {}};
  CHECK(sequential_decode(
            d, m, deferrals(unsure{1}), chooser,
            {.text = t, .most = 110, .work = work, .processor = processor, .accept = accept}) ==
        status::ok);
  CHECK(m.calls == 10);
  CHECK(d.calls == 100);
}
TEST_CASE("a policy that mixes instead of deferring is refused by the sequential cascade") {
  auto d = small_model(), m = large_model();
  std::vector<token_id> buffer(16);
  text t{buffer, 1};
  cascade_workspace<T> work(vocabulary, {});
  either chooser = random_streams(1);
  penalty_memory memory;
  witness processor{memory.with({}), {}};
  const watcher all = keep_all;
  const auto decode = [&](const deferrals& policy) {
    return sequential_decode(
        d, m, policy, chooser,
        {.text = t, .most = 9, .work = work, .processor = processor, .accept = all});
  };
  CHECK(decode(half_and_half{}) == status::invalid_parameter);
  CHECK(t.size == 1);
  using either_rule = any_of<chow, chow_log>;
  CHECK(sequential_decode(d, m, checked{chow{0.3}}, chooser,
                          {.text = t, .most = 3, .work = work}) == status::ok);
  CHECK(sequential_decode(d, m, either_rule(chow_log{0.3}), chooser,
                          {.text = t, .most = 3, .work = work}) == status::ok);
  t.size = 1;
  (void)d.rollback(0);
  (void)m.rollback(0);
  m.calls = 0;
  CHECK(decode(always_target{}) == status::ok);
  CHECK(m.calls == 9);
}

// ---- oracle -------------------------------------------------------------------------------------

TEST_CASE(
    "an oracle cascade emits exactly the law of any policy, with both models called for every "
    "token") {
  for (const setting& s : settings) {
    double worst = 0;
    const auto check = [&](const combiners& policy) {
      const auto law = law_of(
          s,
          [&](text& t, std::size_t most, toy_model& d, toy_model& m, either& chooser,
              witness& processor, cascade_workspace<T>& work, const watcher& accept) {
            return oracle_decode(
                d, m, policy, chooser,
                {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
          },
          [&](const toy_model& d, const toy_model& m, const std::vector<emission>& e) {
            return d.calls == e.size() && m.calls == e.size();
          });
      worst = std::max(
          worst, worst_joint_error(law, s.length, s.end_of_text, [&](const auto& context) {
            penalty_memory memory;
            auto processor = memory.with(s.penalty);
            for (const token_id c : context) (void)processor.push(c);
            std::vector<T> q(vocabulary), p(vocabulary);
            small_model().row(context, q);
            large_model().row(context, p);
            processor.apply(std::span(q));
            processor.apply(std::span(p));
            return target_law(policy, processed_row<T>(q, s.sample), processed_row<T>(p, s.sample));
          }));
    };
    check(opt{0.05});
    check(token_v3{0.3});
    check(ensemble{0.3});
    check(lossy{0.2});
    check(lossless{});
    check(unsure{0.5});
    std::printf("oracle cascade: texts of %zu tokens, worst error %.2e\n", s.length, worst);
    CHECK(worst < 1e-12);
  }
}
TEST_CASE("an oracle of pi = p decodes what the target alone does, token by token") {
  toy_model d(50, 1), m(50, 2);
  std::vector<token_id> a(61), b(61);
  text ta{a, 1}, tb{b, 1};
  cascade_workspace<T> work(50, {});
  speculative_workspace<T> alone(50, {.gamma = 0});
  either chooser = random_streams(7);
  REQUIRE(oracle_decode(d, m, lossless{}, chooser, {.text = ta, .most = 60, .work = work}) ==
          status::ok);
  REQUIRE(speculative_decode(d, m, lossless{}, chooser, {.text = tb, .most = 60, .work = alone}) ==
          status::ok);
  CHECK(a == b);
}

// ---- sequence level -----------------------------------------------------------------------------

namespace {
// Of a response: how likely it is of each model, and of q at temperature 1.
struct response {
  double q = 1, p = 1, confidence = 1;
};
std::map<std::vector<token_id>, response> responses_of(const setting& s) {
  std::map<std::vector<token_id>, response> all;
  const auto extend = [&](auto&& self, std::vector<token_id> context, response r) -> void {
    if (context.size() == s.length + 1 || (context.size() > 1 && context.back() == s.end_of_text)) {
      all[{context.begin() + 1, context.end()}] = r;
      return;
    }
    const auto q = q_row(context, s), p = p_row(context, s), c = q_at_temperature_1(context, s);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      context.push_back(token_id(v));
      self(self, context, {r.q * q[v], r.p * p[v], r.confidence * c[v]});
      context.pop_back();
    }
  };
  extend(extend, {0}, {});
  return all;
}
}  // namespace

TEST_CASE(
    "a sequence-level cascade emits exactly the responses of q it is sure of, and else those of "
    "p") {
  // with the probability of a response, and of its tokens on average
  std::size_t responses = 0, kept[2] = {};
  for (const setting& s : settings)
    for (const auto& [threshold, per_token] : std::vector<std::pair<double, bool>>{{0.0, false},
                                                                                   {0.95, false},
                                                                                   {0.97, false},
                                                                                   {1.0, false},
                                                                                   {0.4, true},
                                                                                   {0.6, true},
                                                                                   {0.7, true}}) {
      const double alpha = threshold;  // clang++ 14 captures no structured binding
      const auto law = law_of(
          s,
          [&](text& t, std::size_t most, toy_model& d, toy_model& m, either& chooser,
              witness& processor, cascade_workspace<T>& work, const watcher& accept) {
            return sequence_decode(
                d, m, alpha, chooser,
                {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
          },
          [&](const toy_model& d, const toy_model& m, const std::vector<emission>& e) {
            const bool small = e[0].from == origin::accepted;
            return small ? d.calls == e.size() && m.calls == 0 : d.calls > 0 && m.calls == e.size();
          },
          per_token);
      auto all = responses_of(s);
      double defers = 0, worst = 0, total = 0;
      for (auto& [tokens, r] : all) {
        if (per_token) r.confidence = std::pow(r.confidence, 1 / double(tokens.size()));
        if (r.confidence < 1 - alpha) defers += r.q;
        ++responses;
        kept[per_token] += !(r.confidence < 1 - alpha);
      }
      for (const auto& [tokens, r] : all) {
        const double due = (r.confidence < 1 - alpha ? 0 : r.q) + defers * r.p;
        const auto found = law.find(tokens);
        const double probability = found == law.end() ? 0 : found->second;
        worst = std::max(worst, std::fabs(probability - due));
        total += probability;
      }
      if (&s == settings)
        std::printf("sequence cascade: alpha %.2f defers %.3f, worst error %.2e\n", alpha, defers,
                    worst);
      CHECK(worst < 1e-12);
      CHECK(total == Approx(1).epsilon(1e-12));
    }
  CHECK(kept[1] > 10);  // per token, a threshold far from 0 keeps some responses and rejects some
  CHECK(responses > 100);
}

// ---- Big Little Decoder -------------------------------------------------------------------------

namespace {

struct bild_text {
  std::vector<token_id> tokens{0};
  std::size_t small_calls = 0, large_calls = 0;
};

// BiLD once more, from its description, with rows from nowhere but the whole context.
bild_text bild_by_hand(const toy_source<T>& d, const toy_source<T>& m, std::size_t length,
                       const bild_thresholds& b, const setting& s) {
  bild_text out;
  std::vector<token_id>& x = out.tokens;
  const auto best = [](const std::vector<double>& row) {
    return token_id(std::ranges::max_element(row) - row.begin());
  };
  const auto row = [&](const toy_source<T>& model, const std::vector<token_id>& c) {
    return probabilities(model, c, {}, s.penalty);
  };
  while (x.size() < length + 1 && (x.size() == 1 || x.back() != s.end_of_text)) {
    std::vector<token_id> y = x;  // the text and what the small model makes of it
    while (y.size() - x.size() < s.longest_run && y.size() < length + 1 &&
           (y.size() == x.size() || y.back() != s.end_of_text)) {
      const auto q = row(d, y);
      ++out.small_calls;
      if (*std::ranges::max_element(q) < b.fallback) break;
      y.push_back(best(q));
    }
    ++out.large_calls;
    bool replaced = false;
    while (x.size() < y.size() && !replaced) {
      const auto p = row(m, x);
      const token_id small = y[x.size()];
      replaced = -std::log(p[std::size_t(small)]) > b.rollback && best(p) != small;
      x.push_back(replaced ? best(p) : small);
    }
    const bool ended = x.size() > 1 && x.back() == s.end_of_text;
    if (!replaced && !ended && x.size() < length + 1) x.push_back(best(row(m, x)));
  }
  return out;
}

}  // namespace

TEST_CASE("BiLD writes the text of its description, with as many calls of each model") {
  std::size_t texts = 0, tokens = 0, replaced = 0, kept = 0, appended = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    for (const bild_thresholds& b :
         {bild_thresholds{}, {0.45, 1.5}, {0.4, 0.9}, {0, 0}, {0.5, 1e9}, {1.1, 1}})
      for (setting s : {setting{30},
                        {30, {}, no_token, {}, 3},
                        {30, {}, 1},
                        {30, {}, no_token, some_penalty},
                        {30, {}, 2, some_penalty, 4}}) {
        toy_model d(vocabulary, seed, 2, 5), m(vocabulary, seed + 1000, 2, 5);
        const auto due = bild_by_hand(d, m, s.length, b, s);
        std::vector<token_id> buffer(64);
        text t{buffer, 1};
        cascade_workspace<T> work(vocabulary, s.options());
        penalty_memory memory;
        witness processor{memory.with(s.penalty), {}};
        (void)processor.push(0);
        const watcher accept = [&](const emission& e) {
          (e.from == origin::accepted ? kept : e.from == origin::residual ? replaced : appended)++;
          return true;
        };
        REQUIRE(bild_decode(d, m, b,
                            {.text = t,
                             .most = s.length,
                             .work = work,
                             .processor = processor,
                             .accept = accept}) == status::ok);
        buffer.resize(t.size);
        CHECK(buffer == due.tokens);
        CHECK(d.calls == due.small_calls);
        CHECK(m.calls == due.large_calls);
        CHECK(processor.pushed == buffer);
        CHECK((d.position() <= t.size && m.position() <= t.size && d.misuses + m.misuses == 0));
        ++texts;
        tokens += t.size - 1;
      }
  std::printf("BiLD: %zu texts, %zu tokens: %zu of the small model, %zu replaced, %zu appended\n",
              texts, tokens, kept, replaced, appended);
  CHECK(std::min({kept, replaced, appended}) > 1000);
}
TEST_CASE("a BiLD round ends with the small model's end of text, unless that is replaced") {
  std::size_t kept = 0, replaced = 0, gone_on = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed)
    for (const token_id end : {0, 1, 2}) {
      toy_model d(vocabulary, seed, 2, 5), m(vocabulary, seed + 1000, 2, 5);
      std::vector<token_id> buffer(16);
      text t{buffer, 1};
      cascade_workspace<T> work(vocabulary, {.end_of_text = end, .longest_run = 4});
      const auto r = bild_round(d, m, {0.4, 0.9}, {.text = t, .most = 10, .work = work});
      REQUIRE(r.why == status::ok);
      REQUIRE((r.drafted <= 4 && t.size == 1 + r.emitted));
      const bool all = r.accepted == r.drafted, ended = r.accepted > 0 && buffer[r.accepted] == end;
      CHECK(r.emitted == r.accepted + !ended);
      kept += ended;
      replaced += !all;
      gone_on += all && !ended;
    }
  CHECK(std::min({kept, replaced, gone_on}) > 5);
}
TEST_CASE("a shorter BiLD text is the beginning of a longer one") {
  for (std::size_t length = 1; length < 40; ++length) {
    std::vector<token_id> texts[2];
    for (const std::size_t n : {length, std::size_t(40)}) {
      toy_model d(20, 5), m(20, 6);
      std::vector<token_id>& buffer = texts[n == 40];
      buffer.resize(41);
      text t{buffer, 1};
      cascade_workspace<T> work(20, {});
      REQUIRE(bild_decode(d, m, {0.1, 3}, {.text = t, .most = n, .work = work}) == status::ok);
      REQUIRE(t.size == n + 1);
    }
    CHECK(std::equal(texts[0].begin(), texts[0].begin() + std::ptrdiff_t(length + 1),
                     texts[1].begin()));
  }
}
TEST_CASE(
    "BiLD with thresholds that trust nobody is the large model's greedy text, and the small one's "
    "if they trust all") {
  const auto greedy = [](std::uint64_t seed) {
    toy_model m(50, seed);
    std::vector<token_id> buffer(61);
    text t{buffer, 1};
    speculative_workspace<T> work(50, {.gamma = 0, .sample = {0}});
    either chooser = random_streams(1);
    REQUIRE(speculative_decode(m, m, lossless{}, chooser, {.text = t, .most = 60, .work = work}) ==
            status::ok);
    return buffer;
  };
  const auto bild = [](const bild_thresholds& b, std::size_t longest_run) {
    toy_model d(50, 1), m(50, 2);
    std::vector<token_id> buffer(61);
    text t{buffer, 1};
    cascade_workspace<T> work(50, {.longest_run = longest_run});
    REQUIRE(bild_decode(d, m, b, {.text = t, .most = 60, .work = work}) == status::ok);
    return buffer;
  };
  CHECK(bild({1.1, 5}, 10) == greedy(2));
  CHECK(bild({0, 0}, 10) == greedy(2));
  CHECK(bild({0, 1e9}, 60) == greedy(1));
}

// ---- ends, limits and defects -------------------------------------------------------------------

namespace {

// f(name, decode) for each of the four.
template <class F>
void for_each_decoder(F f) {
  const auto check = [&](const char* name, const decoder& decode) { f(name, decode); };
  check("sequential", [](text& t, std::size_t n, toy_model& d, toy_model& m, either& c, witness& p,
                         cascade_workspace<T>& w, const watcher& accept) {
    return sequential_decode(d, m, deferrals(unsure{0.5}), c,
                             {.text = t, .most = n, .work = w, .processor = p, .accept = accept});
  });
  check("oracle", [](text& t, std::size_t n, toy_model& d, toy_model& m, either& c, witness& p,
                     cascade_workspace<T>& w, const watcher& accept) {
    return oracle_decode(d, m, combiners(ensemble{0.4}), c,
                         {.text = t, .most = n, .work = w, .processor = p, .accept = accept});
  });
  for (const double alpha : {1, 0})
    check(alpha > 0 ? "sequence, sure" : "sequence, unsure",
          [=](text& t, std::size_t n, toy_model& d, toy_model& m, either& c, witness& p,
              cascade_workspace<T>& w, const watcher& accept) {
            return sequence_decode(
                d, m, alpha, c,
                {.text = t, .most = n, .work = w, .processor = p, .accept = accept});
          });
  check("BiLD", [](text& t, std::size_t n, toy_model& d, toy_model& m, either&, witness& p,
                   cascade_workspace<T>& w, const watcher& accept) {
    return bild_decode(d, m, {0.3, 1.2},
                       {.text = t, .most = n, .work = w, .processor = p, .accept = accept});
  });
}

}  // namespace

TEST_CASE("what accept() refuses ends a cascade's text, in models and processor, too") {
  for_each_decoder([](const char* name, const decoder& decode) {
    INFO(name);
    auto d = small_model(), m = large_model();
    std::vector<token_id> buffer(64);
    text t{buffer, 1};
    cascade_workspace<T> work(vocabulary, {.longest_run = 10, .longest_response = 12});
    penalty_memory memory;
    witness processor{memory.with(some_penalty), {}};
    (void)processor.push(0);
    either chooser = random_streams(3);
    for (std::size_t stop_at = 1; stop_at <= 9; ++stop_at) {
      const std::size_t before = t.size;
      std::size_t seen = 0;
      REQUIRE(decode(t, 12, d, m, chooser, processor, work,
                     [&](const emission&) { return ++seen < stop_at; }) == status::ok);
      CHECK(t.size == before + stop_at);
      CHECK(std::ranges::equal(processor.pushed, std::span(buffer).first(t.size)));
      CHECK((d.position() <= t.size && m.position() <= t.size && d.misuses + m.misuses == 0));
    }
  });
}
TEST_CASE("a full context or buffer ends a cascade with context_full, and nothing is lost") {
  for_each_decoder([](const char* name, const decoder& decode) {
    INFO(name);
    for (std::size_t size = 2; size < 14; ++size)
      for (const bool buffer_is_short : {false, true}) {
        toy_model d(vocabulary, 1, 2, 3, buffer_is_short ? 100 : size + 1),
            m(vocabulary, 2, 2, 3, buffer_is_short ? 100 : size);
        std::vector<token_id> buffer(buffer_is_short ? size : 100);
        text t{buffer, 1};
        cascade_workspace<T> work(vocabulary, {.longest_run = 10, .longest_response = 20});
        penalty_memory memory;
        witness processor{memory.with({}), {}};
        either chooser = random_streams(1);
        std::size_t n = 0;
        CHECK(decode(t, 20, d, m, chooser, processor, work, [&](const emission&) {
                ++n;
                return true;
              }) == status::context_full);
        CHECK(t.size == size);
        CHECK(n == size - 1);
        CHECK(d.misuses + m.misuses == 0);
      }
  });
}
TEST_CASE(
    "a model of a cascade that fails or returns NaN is reported. The text stays, and decoding can "
    "go on") {
  for_each_decoder([](const char* name, const decoder& decode) {
    for (std::size_t call = 0; call < 30; ++call)
      for (int which = 0; which < 4; ++which) {
        INFO(name << ", call " << call << ", " << which);
        toy_model d(vocabulary, 3), m(vocabulary, 4);
        (which == 0 ? d.fail_at : which == 1 ? d.nan_at : which == 2 ? m.fail_at : m.nan_at) = call;
        std::vector<token_id> buffer(64);
        text t{buffer, 1};
        cascade_workspace<T> work(vocabulary, {.longest_run = 10, .longest_response = 40});
        penalty_memory memory;
        witness processor{memory.with(some_penalty), {}};
        (void)processor.push(0);
        either chooser = random_streams(call);
        std::size_t failures = 0;
        while (t.size < 40 && failures < 9) {
          std::size_t kept = 0;
          const std::size_t before = t.size;
          const status s =
              decode(t, 40 - t.size, d, m, chooser, processor, work, [&](const emission&) {
                ++kept;
                return true;
              });
          failures += s != status::ok;
          if (s != status::ok)
            CHECK(s == (which % 2 == 0 ? status::model_failed : status::invalid_row));
          CHECK(t.size == before + kept);
          CHECK(std::ranges::equal(processor.pushed, std::span(buffer).first(t.size)));
          CHECK((d.position() <= t.size && m.position() <= t.size));
        }
        CHECK(t.size == 40);
        CHECK(failures <= 1);
        CHECK(d.misuses + m.misuses == 0);
      }
  });
}
TEST_CASE(
    "models of different vocabularies, an empty text and bad parameters end a cascade with their "
    "status") {
  for_each_decoder([](const char* name, const decoder& decode) {
    INFO(name);
    toy_model d(30, 1), m(31, 2), same(30, 2);
    std::vector<token_id> buffer(40);
    text t{buffer, 1}, empty{buffer, 0};
    cascade_workspace<T> work(30, {.longest_run = 10, .longest_response = 9});
    penalty_memory memory;
    witness none{memory.with({}), {}};
    either chooser = random_streams(1);
    CHECK(decode(t, 9, d, m, chooser, none, work, keep_all) == status::vocabulary_mismatch);
    CHECK(decode(empty, 9, d, same, chooser, none, work, keep_all) == status::invalid_parameter);
    CHECK(t.size == 1);
  });
  auto d = small_model(), m = large_model();
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  cascade_workspace<T> work(vocabulary, {.longest_run = 10, .longest_response = 5});
  either chooser = random_streams(1);
  CHECK(oracle_decode(d, m, ensemble{2}, chooser, {.text = t, .most = 9, .work = work}) ==
        status::invalid_parameter);
  using either_rule = any_of<chow, chow_log>;
  CHECK(sequential_decode(d, m, either_rule(chow{std::nan("")}), chooser,
                          {.text = t, .most = 9, .work = work}) == status::invalid_parameter);
  CHECK(sequence_decode(d, m, std::nan(""), chooser, {.text = t, .most = 9, .work = work}) ==
        status::invalid_parameter);
  CHECK(sequence_decode(d, m, 0.5, chooser, {.text = t, .most = 12, .work = work}) ==
        status::invalid_parameter);  // no memory
  CHECK(bild_round(d, m, {}, {.text = t, .most = 0, .work = work}).why ==
        status::invalid_parameter);
  CHECK(t.size == 1);
}
