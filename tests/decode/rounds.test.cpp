// SPDX-License-Identifier: Apache-2.0
// Whole texts under everything at once: a grammar, its dead ends, penalties, an end of text, a stop
// string. And what goes wrong beside the law: models that throw, that refuse to roll back.
#include <specagg/decode/rounds.hpp>

#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;
using T = double;

namespace {

constexpr std::size_t V = 4;
constexpr token_id dead = 2, end = 3;
constexpr sampling sample{0.8};
constexpr double inf = std::numeric_limits<double>::infinity();
using tokens = std::vector<token_id>;

// Penalties; after 0 0 no third 0; after the dead token nothing: every row there is fully masked.
class grammar {
 public:
  void push(token_id t) {
    if (pushes++ == throw_in_push) throw std::runtime_error("processor");
    (void)inner_.push(t);
    pushed.push_back(t);
  }
  void pop() {
    inner_.pop();
    pushed.pop_back();
  }
  template <class L>
  void apply(std::span<L> logits) {
    if (calls++ == throw_at) throw std::runtime_error("processor");
    inner_.apply(logits);
    const std::size_t n = pushed.size();
    if (n > 0 && pushed[n - 1] == dead) std::fill(logits.begin(), logits.end(), L(-inf));
    if (n > 1 && pushed[n - 1] == 0 && pushed[n - 2] == 0) logits[0] = L(-inf);
  }
  tokens pushed;
  std::size_t calls = 0, throw_at = std::size_t(-1), pushes = 0, throw_in_push = std::size_t(-1);

 private:
  std::vector<std::uint32_t> counts_ = std::vector<std::uint32_t>(V);
  tokens distinct_ = tokens(V), text_ = tokens(64);
  penalties inner_{{1.5, 0.2, 0.1}, counts_, distinct_, text_};
};

// One type for all models here, so that the decoders are compiled once: a toy model that may never
// write the dead token, throw at a chosen call (when the tokens were appended, if `late`), or
// refuse to go back (but to the beginning).
struct actor : toy_source<T> {
  bool wary = false, late = false, stubborn = false, never = false;
  std::size_t throw_at = 1000, n = 0, refusals = 0;
  using toy_source::toy_source;
  status extend(std::span<const token_id> t, std::span<T> logits) {
    const bool now = n++ == throw_at;
    if (now && !late) throw std::runtime_error("engine");
    const status s = toy_source::extend(t, logits);
    if (now) throw std::runtime_error("engine");
    for (std::size_t v = dead; wary && s == status::ok && v < logits.size(); v += V)
      logits[v] = -inf;
    return s;
  }
  status rollback(std::size_t position) {
    if (never || (stubborn && position > 0)) {
      ++refusals;
      return status::rollback_refused;
    }
    return toy_source::rollback(position);
  }
};
actor wary(std::uint64_t seed) {
  actor m(V, seed);
  m.wary = true;
  return m;
}
// And one for randomness: every branch, or the production streams.
struct either {
  exhaustive_chooser* tree = nullptr;
  random_streams streams = random_streams(0);
  bool coin(moment m, double w, double t) {
    return tree ? tree->coin(m, w, t) : streams.coin(m, w, t);
  }
  template <class W>
  token_id draw(moment m, const W& w) {
    return tree ? tree->draw(m, w) : streams.draw(m, w);
  }
};
either streams(std::uint64_t seed, std::uint64_t request = 0) {
  return {nullptr, random_streams(seed, request)};
}
// And one for the length of drafts, which may write down what it is told.
struct listener : fixed_draft_length {
  bool reads_confidence = false;
  std::vector<double>* heard = nullptr;
  bool keep(std::size_t, double largest) {
    return heard ? (heard->push_back(largest), true) : true;
  }
};
using watcher = std::function<bool(const emission&)>;

// The stop string is "1 1".
bool stops(const tokens& context) {
  const std::size_t n = context.size();
  return n > 1 && context[n - 1] == 1 && context[n - 2] == 1;
}
bool ended(const tokens& context) {
  return context.size() > 1 && (context.back() == end || context.back() == dead || stops(context));
}

// Logits and row of a model after a context, as the decoders have to process them.
std::vector<T> logits_of(actor model, const tokens& context) {
  std::vector<T> logits(V);
  REQUIRE(model.extend(context, logits) == status::ok);
  grammar processor;
  for (const token_id t : context) (void)processor.push(t);
  processor.apply(std::span(logits));
  return logits;
}
std::vector<double> row_of(const actor& model, const tokens& context) {
  const std::vector<T> logits = logits_of(model, context);
  const auto row = normalise(processed_row<T>(logits, sample));
  REQUIRE(row.why() == status::ok);
  std::vector<double> p(V);
  for (std::size_t v = 0; v < V; ++v) p[v] = row[v];
  return p;
}

using promise = std::function<std::vector<double>(const tokens&)>;
// The probability of every text of at most `length` tokens after token 0.
std::map<tokens, double> due_law(std::size_t length, const promise& promised) {
  std::map<tokens, double> law;
  const std::function<void(tokens, double)> walk = [&](tokens context, double probability) {
    if (context.size() == length + 1 || ended(context)) {
      law[{context.begin() + 1, context.end()}] = probability;
      return;
    }
    const auto pi = promised(context);
    for (std::size_t v = 0; v < V; ++v)
      if (pi[v] > 0) {
        context.push_back(token_id(v));
        walk(context, probability * pi[v]);
        context.pop_back();
      }
  };
  walk({0}, 1);
  return law;
}

// One text after token 0. decode(text, most, processor, chooser, accept) -> status.
template <class Decode>
tokens one_text(std::size_t length, either chooser, Decode decode) {
  tokens buffer(length + 8);
  text t{buffer, 1};
  grammar processor;
  (void)processor.push(0);
  tokens seen{0};
  const watcher accept = [&](const emission& e) {
    seen.push_back(e.token);
    return !stops(seen);
  };
  const status why = decode(t, length, processor, chooser, accept);
  const tokens written(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size));
  CHECK(written == seen);
  CHECK(processor.pushed == written);
  if (why != status::ok) CHECK((why == status::invalid_row && written.back() == dead));
  CHECK((ended(written) || t.size == length + 1));
  return {written.begin() + 1, written.end()};
}

template <class Decode>
double worst_joint_error(std::size_t length, const std::map<tokens, double>& due, Decode decode) {
  std::size_t reused = 0;
  auto law =
      exact_law([&](auto& chooser) { return one_text(length, {&chooser}, decode); }, &reused);
  CHECK(reused == 0);
  double worst = 0, total = 0;
  for (const auto& [t, probability] : law) total += probability;
  CHECK(total == Approx(1).epsilon(1e-12));
  for (const auto& [t, probability] : due) worst = std::max(worst, std::fabs(law[t] - probability));
  for (const auto& [t, probability] : law) {
    const auto it = due.find(t);
    worst = std::max(worst, std::fabs(probability - (it == due.end() ? 0 : it->second)));
  }
  return worst;
}

// The decoders, each with models of its own: draft seed 1, target seed 2, a third model in between
// seed 5.
template <class Policy, class Verifier = token_verifier>
auto speculative(const Policy& policy, std::size_t gamma, Verifier verifier = {}) {
  return [=](text& t, std::size_t most, auto& processor, auto& chooser, const auto& accept) {
    actor d(V, 1), m = wary(2);
    speculative_workspace<T> work(V, {.gamma = gamma, .sample = sample, .end_of_text = end});
    const status s = speculative_decode(
        d, m, policy, chooser,
        {.text = t, .most = most, .work = work, .processor = processor, .accept = accept}, verifier,
        listener());
    CHECK((d.position() <= t.size && m.position() <= t.size && d.misuses + m.misuses == 0));
    return s;
  };
}
template <class Policy>
auto alternating(const Policy& policy, std::array<std::size_t, 2> gamma) {
  return [=](text& t, std::size_t most, auto& processor, auto& chooser, const auto& accept) {
    actor d(V, 1), m = wary(2);
    collaborative_workspace<T, 2> work(V, collaborative_options<2>{gamma, sample, end});
    return collaborative_decode(
        std::tie(d, m), policy, chooser,
        {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
  };
}
template <class Policy>
auto three_models(const Policy& policy, std::array<std::size_t, 3> gamma) {
  return [=](text& t, std::size_t most, auto& processor, auto& chooser, const auto& accept) {
    actor a(V, 1), b(V, 5), m = wary(2);
    collaborative_workspace<T, 3> work(V, collaborative_options<3>{gamma, sample, end});
    return collaborative_decode(
        std::tie(a, b, m), policy, chooser,
        {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
  };
}
template <class Policy>
promise two_rows(const Policy& policy) {
  return [=](const tokens& context) {
    const auto q = logits_of(actor(V, 1), context), p = logits_of(wary(2), context);
    return target_law(policy, processed_row<T>(q, sample), processed_row<T>(p, sample));
  };
}

using policies = compiled_once<any_of<lossless, ensemble, token_v3, contrastive>>;
template <class F>
void for_each_policy(F f) {
  f("lossless", policies{lossless{}});
  f("ensemble", policies{ensemble{0.3}});
  f("token-v3", policies{token_v3{0.3}});
  f("contrastive", policies{contrastive{0.2}});
}

}  // namespace

TEST_CASE(
    "grammar, dead ends, penalties, end of text and stop string: every verifier keeps the joint "
    "law exact") {
  for_each_policy([](const char* name, const auto& policy) {
    const auto due = due_law(3, two_rows(policy));
    double worst = 0;
    for (const std::size_t gamma : {1u, 2u, 3u}) {
      worst = std::max(worst, worst_joint_error(3, due, speculative(policy, gamma)));
      worst =
          std::max(worst, worst_joint_error(3, due, speculative(policy, gamma, block_verifier())));
    }
    worst = std::max(worst, worst_joint_error(3, due, speculative(policy, 2, match_verifier())));
    std::printf("%-12s %zu texts, worst error %.2e\n", name, due.size(), worst);
    CHECK(worst < 1e-12);
  });
}
TEST_CASE(
    "grammar, dead ends, penalties, end of text and stop string: models that take turns keep the "
    "joint law") {
  for_each_policy([](const char*, const auto& policy) {
    const auto due = due_law(3, two_rows(policy));
    CHECK(worst_joint_error(3, due, alternating(policy, {3, 1})) < 1e-12);
    CHECK(worst_joint_error(3, due, alternating(policy, {2, 2})) < 1e-12);
  });
  CHECK(worst_joint_error(3, due_law(3, two_rows(lossless{})), alternating(lossless{}, {3, 1})) <
        1e-12);
  const auto three = [](const auto& policy) {
    return due_law(3, [=](const tokens& context) {
      std::vector<double> pi;
      std::array<dense_row<T>, 3> rows;
      const std::array p{row_of(actor(V, 1), context), row_of(actor(V, 5), context),
                         row_of(wary(2), context)};
      for (std::size_t k = 0; k < 3; ++k) rows[k] = dense_row<T>(p[k]);
      (void)with_models(policy, rows, [&](const auto& all, const auto& law) {
        for (std::size_t v = 0; v < V; ++v) pi.push_back(double(law(at(all, v)).v));
        return status::ok;
      });
      return pi;
    });
  };
  const mixture<3> mix{{0.3, 0.3, 0.4}};
  CHECK(worst_joint_error(3, three(mix), three_models(mix, {2, 1, 1})) < 1e-12);
  CHECK(worst_joint_error(3, three(minimum<3>{}), three_models(minimum<3>{}, {2, 1, 1})) < 1e-12);
}
namespace {
// A response of the small model stands if it is sure of it; one that meets a dead end never does.
// What stands is cut at the stop string, and so is what the large model writes.
std::map<tokens, double> due_of_sequences(double alpha) {
  std::map<tokens, double> due;
  double unsure = 0;
  const auto q_of = [](const tokens& c) { return row_of(actor(V, 1), c); };
  const std::function<void(tokens, double, double)> respond = [&](tokens context,
                                                                  double probability, double sure) {
    const bool whole = context.size() == 4 || context.back() == end;
    if (whole || (context.size() > 1 && context.back() == dead)) {
      if (!whole || sure < 1 - alpha) return void(unsure += probability);
      tokens kept{0};
      for (std::size_t i = 1; i < context.size() && !stops(kept); ++i) kept.push_back(context[i]);
      due[{kept.begin() + 1, kept.end()}] += probability;
      return;
    }
    const auto q = q_of(context);
    const std::vector<T> logits = logits_of(actor(V, 1), context);
    const auto at_temperature_1 = normalise(softmax_row<T>(logits));
    REQUIRE(at_temperature_1.why() == status::ok);
    for (std::size_t v = 0; v < V; ++v)
      if (q[v] > 0) {
        context.push_back(token_id(v));
        respond(context, probability * q[v], sure * at_temperature_1[v]);
        context.pop_back();
      }
  };
  respond({0}, 1, 1);
  CHECK((unsure > 0.1 && unsure < 0.9));
  for (const auto& [t, p] : due_law(3, [](const tokens& c) { return row_of(wary(2), c); }))
    due[t] += unsure * p;
  return due;
}
}  // namespace
TEST_CASE(
    "grammar, dead ends, penalties, end of text and stop string: the cascades keep the joint law") {
  const auto cascade = [](auto decode) {
    return [=](text& t, std::size_t most, auto& processor, auto& chooser, const auto& accept) {
      actor d(V, 1), m = wary(2);
      cascade_workspace<T> work(V, {.longest_run = 10, .longest_response = most});
      work.options = {sample, end};
      return decode(t, most, d, m, chooser, processor, work, accept);
    };
  };
  CHECK(
      worst_joint_error(
          3, due_law(3, two_rows(ensemble{0.3})),
          cascade([](auto& t, auto most, auto& d, auto& m, auto& chooser, auto& processor,
                     auto& work, const auto& accept) {
            return oracle_decode(
                d, m, ensemble{0.3}, chooser,
                {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
          })) < 1e-12);
  CHECK(
      worst_joint_error(
          3, due_law(3, two_rows(chow{0.5})),
          cascade([](auto& t, auto most, auto& d, auto& m, auto& chooser, auto& processor,
                     auto& work, const auto& accept) {
            return sequential_decode(
                d, m, chow{0.5}, chooser,
                {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
          })) < 1e-12);
  constexpr double alpha = 0.95;
  CHECK(
      worst_joint_error(
          3, due_of_sequences(alpha),
          cascade([](auto& t, auto most, auto& d, auto& m, auto& chooser, auto& processor,
                     auto& work, const auto& accept) {
            return sequence_decode(
                d, m, alpha, chooser,
                {.text = t, .most = most, .work = work, .processor = processor, .accept = accept});
          })) < 1e-12);
}
TEST_CASE("BiLD whose small model runs into a dead end goes on with the large one") {
  actor d(V, 1), m = wary(2);
  for (const double fallback : {0.0, 0.3}) {
    (void)rollback(0, d, m);
    tokens buffer(64);
    text t{buffer, 1};
    grammar processor;
    (void)processor.push(0);
    cascade_workspace<T> work(V, {});
    const status s = bild_decode(d, m, {fallback, 0.5},
                                 {.text = t, .most = 40, .work = work, .processor = processor});
    CHECK(s == status::ok);
    CHECK(t.size == 41);
  }
}

// ---- dead ends through the production streams ---------------------------------------------------

namespace {
// What the decoders did before: a row that cannot be drawn from discards the draft. Rounds are
// counted.
status discarding_decode(text& t, std::size_t most, grammar& processor, either& chooser) {
  actor d(V, 1), m = wary(2);
  const std::size_t last = t.size + most;
  for (int round = 0; t.size < last && round < 200; ++round) {
    const std::size_t start = t.size, gamma = std::min<std::size_t>(4, last - start - 1);
    std::vector<std::vector<T>> q(gamma, std::vector<T>(V));
    std::vector<processed_row<T>> q_rows, p_rows;
    std::vector<double> scratch(verify_scratch(V, gamma));
    status s = status::ok;
    for (std::size_t j = 0; j < gamma && s == status::ok; ++j) {
      s = score(t.tokens.first(t.size), d, processor, std::span(q[j]));
      q_rows.emplace_back(q[j], sample);
      if (s == status::ok) s = normalise(q_rows[j]).why();
      if (s == status::ok)
        append(t, draw_draft(q_rows[j], std::uint32_t(start), j, chooser, scratch), processor);
    }
    if (s != status::ok) {
      (void)truncate(t, start, processor, d, m);
      continue;
    }
    std::vector<T> p((gamma + 1) * V);
    (void)score(t.tokens.first(t.size), m, processor, std::span(p));
    for (std::size_t j = 0; j <= gamma; ++j)
      p_rows.emplace_back(std::span<const T>(p).subspan(j * V, V), sample);
    std::vector<emission> out(gamma + 1);
    const verdict v = verify_token({t.tokens.subspan(start, gamma), std::uint32_t(start)}, q_rows,
                                   p_rows, lossless{}, chooser, out, scratch);
    (void)truncate(t, start + v.accepted, processor, d, m);
    for (std::size_t i = v.accepted; i < v.emitted; ++i) append(t, out[i].token, processor);
  }
  return t.size == last ? status::ok : status::stopped;
}
}  // namespace
TEST_CASE(
    "1,000 texts of 20 tokens over a grammar with dead ends all finish. Mutant: discarding at a "
    "dead end is found") {
  std::array<int, 4> finished{};
  for (std::uint64_t request = 0; request < 1000; ++request) {
    tokens buffer(32);
    const auto run = [&](auto&& decode) {
      text t{buffer, 1};
      grammar processor;
      (void)processor.push(0);
      either chooser = streams(7, request);
      return decode(t, processor, chooser) == status::ok && t.size == 21;
    };
    actor d(V, 1), m = wary(2);
    const watcher any = [](const emission&) { return true; };
    finished[0] += run([&](text& t, auto& processor, auto& chooser) {
      speculative_workspace<T> work(V, {.gamma = 4, .sample = sample});
      return speculative_decode(
          d, m, policies{lossless{}}, chooser,
          {.text = t, .most = 20, .work = work, .processor = processor, .accept = any},
          token_verifier{}, listener());
    });
    (void)rollback(0, d, m);
    finished[1] += run([&](text& t, auto& processor, auto& chooser) {
      collaborative_workspace<T, 2> work(V, collaborative_options<2>{{4, 2}, sample});
      return collaborative_decode(
          std::tie(d, m), policies{contrastive{0.2}}, chooser,
          {.text = t, .most = 20, .work = work, .processor = processor, .accept = any});
    });
    (void)rollback(0, d, m);
    finished[2] += run([&](text& t, auto& processor, auto& chooser) {
      collaborative_workspace<T, 2> work(V, collaborative_options<2>{{4, 1}, sample});
      return collaborative_decode(
          std::tie(d, m), lossless{}, chooser,
          {.text = t, .most = 20, .work = work, .processor = processor, .accept = any});
    });
    finished[3] += run([&](text& t, auto& processor, auto& chooser) {
      return discarding_decode(t, 20, processor, chooser);
    });
  }
  std::printf(
      "finished: speculative %d, contrastive in turns %d, lossless in turns %d, discarding %d\n",
      finished[0], finished[1], finished[2], finished[3]);
  CHECK(finished[0] == 1000);
  CHECK(finished[1] == 1000);
  CHECK(finished[2] == 1000);
  CHECK(finished[3] < 100);
}
TEST_CASE("the same texts through the production streams fit the joint law") {
  constexpr std::size_t length = 4, n = 60000;
  // the suite's rate over its planned tests (audit/goodness_of_fit.test.cpp)
  constexpr double false_alarm = 1e-6 / 24;
  const auto fits = [&](const char* name, const auto& due, auto decode) {
    std::map<tokens, double> seen;
    for (std::uint64_t request = 0; request < n; ++request) {
      seen[one_text(length, streams(31, request), decode)] += 1;
    }
    std::vector<double> counts, law;
    for (const auto& [t, p] : due) {
      counts.push_back(seen[t]);
      law.push_back(p);
    }
    CHECK(seen.size() <= due.size());  // nothing impossible
    const fit f = goodness_of_fit(counts, law, false_alarm);
    std::printf("%-24s distance %.4f, expected %.4f, p %.3g, finds TV >= %.4f\n", name, f.distance,
                f.expected_distance, f.p_value, f.detectable);
    CHECK(f.passed);
    CHECK(f.detectable < 0.035);
  };
  const policies p{lossless{}}, v3{token_v3{0.3}}, contrast{contrastive{0.2}}, mix{ensemble{0.3}};
  fits("lossless, token", due_law(length, two_rows(p)), speculative(p, 4));
  fits("token-v3, block", due_law(length, two_rows(v3)), speculative(v3, 3, block_verifier()));
  fits("contrastive, in turns", due_law(length, two_rows(contrast)), alternating(contrast, {3, 2}));
  fits("ensemble, in turns", due_law(length, two_rows(mix)), alternating(mix, {3, 1}));
}

// ---- models that throw, models that refuse ------------------------------------------------------

namespace {
// decode(text, processor, first model, second model): texts with and without a model that throws at
// some call. same: what is decoded after the exception depends on the text alone, so it is the text
// without one.
template <class Decode>
void survives(bool same, Decode decode) {
  tokens plain(40);
  {
    text t{plain, 1};
    grammar processor;
    (void)processor.push(0);
    actor d = wary(1), m = wary(2);
    while (t.size < 21) REQUIRE(decode(t, processor, d, m) == status::ok);
  }
  for (std::size_t call = 0; call < 12; ++call)
    for (const bool first : {true, false})
      for (const bool late : {true, false}) {
        actor d = wary(1), m = wary(2);
        (first ? d : m).throw_at = call;
        (first ? d : m).late = late;
        tokens buffer(40);
        text t{buffer, 1};
        grammar processor;
        (void)processor.push(0);
        while (t.size < 21) {
          try {
            const status s = decode(t, processor, d, m);
            REQUIRE(s == status::ok);
          } catch (const std::runtime_error&) {
            CHECK((!same || std::equal(plain.begin(), plain.begin() + std::ptrdiff_t(t.size),
                                       buffer.begin())));
          }
          CHECK(processor.pushed.size() == t.size);
          CHECK((d.position() <= t.size && m.position() <= t.size));
        }
        CHECK((!same || std::equal(plain.begin(), plain.begin() + 21, buffer.begin())));
        CHECK(d.misuses + m.misuses == 0);
      }
}
}  // namespace
TEST_CASE(
    "what a model throws reaches the caller. Text, processor and models hold what was verified, "
    "and can go on") {
  const watcher any = [](const emission&) { return true; };
  either chooser = streams(3);
  survives(true, [&](text& t, auto& processor, auto& d, auto& m) {
    speculative_workspace<T> work(V, {.gamma = 4});
    return speculative_round(d, m, policies{lossless{}}, chooser,
                             {.text = t, .most = 21 - t.size, .work = work, .processor = processor},
                             coupled_verifier{coupled_noise(5)}, listener())
        .why;
  });
  survives(true, [&](text& t, auto& processor, auto& d, auto& m) {
    speculative_workspace<T> work(V, {.gamma = 4});
    return speculative_round(d, m, policies{ensemble{0.3}}, chooser,
                             {.text = t, .most = 21 - t.size, .work = work, .processor = processor},
                             token_verifier{}, listener())
        .why;
  });
  survives(true, [&](text& t, auto& processor, auto& d, auto& m) {
    cascade_workspace<T> work(V, {});
    return bild_round(d, m, {0, 0.5},
                      {.text = t, .most = 21 - t.size, .work = work, .processor = processor})
        .why;
  });
  survives(false, [&](text& t, auto& processor, auto& d, auto& m) {
    cascade_workspace<T> work(V, {});
    return sequence_decode(
        d, m, 0.5, chooser,
        {.text = t, .most = 21 - t.size, .work = work, .processor = processor, .accept = any});
  });
  // Chains of drafts are longer than turns: a chain that was broken off begins anew where the text
  // ends. So only text, processor and models are compared, not the tokens.
  for (std::size_t call = 0; call < 12; ++call) {
    actor d = wary(1), m = wary(2);
    (call % 2 ? d : m).throw_at = call;
    tokens buffer(40);
    text t{buffer, 1};
    grammar processor;
    (void)processor.push(0);
    collaborative_workspace<T, 2> work(V, collaborative_options<2>{{3, 2}});
    while (t.size < 21) {
      try {
        const auto r = collaborative_turn(
            std::tie(d, m), policies{ensemble{0.3}}, chooser,
            {.text = t, .most = 21 - t.size, .work = work, .processor = processor});
        REQUIRE(r.why == status::ok);
      } catch (const std::runtime_error&) {
        CHECK(work.cached == 0);
        CHECK(processor.pushed == tokens(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)));
        CHECK((d.position() <= t.size && m.position() <= t.size));
      }
    }
    CHECK(d.misuses + m.misuses == 0);
  }
}
TEST_CASE("a processor that throws leaves itself and the text as they were") {
  for (std::size_t call = 0; call < 40; ++call) {
    grammar processor;
    (call < 20 ? processor.throw_at : processor.throw_in_push) = call < 20 ? call : call - 19;
    (void)processor.push(0);
    actor d = wary(1), m = wary(2);
    tokens buffer(40);
    text t{buffer, 1};
    speculative_workspace<T> work(V, {.gamma = 4});
    either chooser = streams(3);
    for (int throws = 0; t.size < 21;) {
      try {
        const auto r = speculative_round(
            d, m, policies{lossless{}}, chooser,
            {.text = t, .most = 21 - t.size, .work = work, .processor = processor},
            token_verifier{}, listener());
        REQUIRE(r.why == status::ok);
      } catch (const std::runtime_error&) {
        CHECK(++throws == 1);
      }
      CHECK(processor.pushed == tokens(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)));
    }
  }
}

TEST_CASE("where accept() throws, models that take turns leave no drafts behind") {
  for (int kept = 0; kept < 8; ++kept) {
    actor d = wary(1), m = wary(2);
    tokens buffer(40);
    text t{buffer, 1};
    grammar processor;
    (void)processor.push(0);
    either chooser = streams(3);
    collaborative_workspace<T, 2> work(V, collaborative_options<2>{{3, 2}});
    int seen = 0;
    const watcher accept = [&](const emission&) {
      return seen++ == kept ? throw std::runtime_error("caller") : true;
    };
    try {
      (void)collaborative_decode(
          std::tie(d, m), policies{ensemble{0.3}}, chooser,
          {.text = t, .most = 20, .work = work, .processor = processor, .accept = accept});
    } catch (const std::runtime_error&) {
    }
    CHECK(seen == kept + 1);
    CHECK(work.cached == 0);
    CHECK(processor.pushed == tokens(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)));
    CHECK((d.position() <= t.size && m.position() <= t.size));
  }
}
TEST_CASE(
    "a model that cannot go back to a position is fed the text again. One that cannot at all ends "
    "decoding") {
  const watcher any = [](const emission&) { return true; };
  const auto decode = [&](actor& d, actor& m, tokens& buffer) {
    text t{buffer, 1};
    grammar processor;
    (void)processor.push(0);
    speculative_workspace<T> work(V, {.gamma = 4});
    either chooser = streams(9);
    const status s = speculative_decode(
        d, m, policies{lossless{}}, chooser,
        {.text = t, .most = 30, .work = work, .processor = processor, .accept = any},
        block_verifier(), listener());
    buffer.resize(t.size);
    return s;
  };
  tokens plain(40), again(40), never(40);
  actor d(V, 1), m = wary(2), a(V, 1), b = wary(2), e(V, 1), c = wary(2);
  CHECK(decode(d, m, plain) == status::ok);
  a.stubborn = b.stubborn = c.never = true;
  CHECK(decode(a, b, again) == status::ok);
  CHECK(again == plain);
  CHECK(a.refusals > 3);
  CHECK(b.refusals > 3);
  CHECK(a.misuses + b.misuses == 0);
  CHECK(decode(e, c, never) == status::rollback_refused);
  CHECK(never.size() > 1);
  CHECK(std::equal(never.begin(), never.end(), plain.begin()));  // what was verified stands
  collaborative_workspace<T, 2> work(V, collaborative_options<2>{{3, 2}});
  tokens buffer(40);
  text t{buffer, 1};
  grammar processor;
  (void)processor.push(0);
  either chooser = streams(9);
  actor f = wary(1), g = wary(2);
  f.stubborn = g.never = true;
  CHECK(collaborative_decode(
            std::tie(f, g), policies{ensemble{0.3}}, chooser,
            {.text = t, .most = 30, .work = work, .processor = processor, .accept = any}) ==
        status::rollback_refused);
}
TEST_CASE(
    "what decides how long drafts get sees how sure the model is, at temperature 0 and after "
    "filters, too") {
  std::vector<double> warm, cold, filtered;
  const auto listen = [](const sampling& s, std::vector<double>& heard) {
    actor d(V, 1, 0), m(V, 2, 0);  // the same row everywhere
    tokens buffer(20);
    text t{buffer, 1};
    grammar processor;
    speculative_workspace<T> work(V, {.gamma = 2, .sample = s});
    either chooser = streams(1);
    listener length;
    length.reads_confidence = true;
    length.heard = &heard;
    // the first row: no penalty has acted
    const watcher one = [](const emission&) { return false; };
    CHECK(speculative_decode(
              d, m, policies{lossless{}}, chooser,
              {.text = t, .most = 10, .work = work, .processor = processor, .accept = one},
              token_verifier{}, length) == status::ok);
    heard.resize(1);
  };
  listen({1}, warm);
  listen({0}, cold);
  listen({0.5, 1}, filtered);
  REQUIRE(!warm.empty());
  CHECK((warm[0] > 0.3 && warm[0] < 0.9));
  for (const auto* heard : {&warm, &cold, &filtered})
    for (const double x : *heard) CHECK(x == Approx(warm[0]).epsilon(1e-14));
}
