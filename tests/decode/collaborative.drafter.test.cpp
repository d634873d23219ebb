// SPDX-License-Identifier: Apache-2.0
// A drafter goes first where models take turns: policy/detail/beside.hpp and
// decode/collaborative.hpp.
#include <specagg/decode/collaborative.hpp>
#include <specagg/policy/detail/beside.hpp>

#include <stdexcept>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

template <std::size_t N>
struct average {
  std::array<double, N> weight;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [w = weight](auto at) {
      return fold_models<N>(at, [&](std::size_t k, auto x, auto sum) { return fma(w[k], x, sum); });
    };
  }
};

// The mixed drafter, with nothing to propose after texts of some lengths. It throws, or ends
// decoding, at a chosen row, or proposes what its model finds most likely. It remembers the tokens
// that it has read.
struct moody_drafter : mixed_drafter {
  std::size_t silent_after = 1000, misuses = 0, throw_at = 1000, stop_at = 1000, n = 0;
  std::size_t size = vocabulary;
  bool greedy = false, silent = false;
  std::vector<token_id> seen;
  std::size_t vocab_size() const { return size; }
  std::size_t position() const { return seen.size(); }
  status rollback(std::size_t to) {
    seen.resize(std::min(to, seen.size()));
    return status::ok;
  }
  template <class P>
  status next(const draft_position& at, P& processor, row_type& row, double& confidence) {
    if (n++ == throw_at) throw std::runtime_error("drafter");
    if (n - 1 == stop_at) return status::stopped;
    misuses +=
        seen.size() > at.tokens.size() || !std::equal(seen.begin(), seen.end(), at.tokens.begin());
    seen.assign(at.tokens.begin(), at.tokens.end());
    if (silent || at.tokens.size() % 4 == silent_after) return status::no_draft;
    if (!greedy) return mixed_drafter::next(at, processor, row, confidence);
    std::array<double, vocabulary> x;
    model.row(at.tokens, x);
    row = normalise(
        one_hot_row<double>(token_id(std::ranges::max_element(x) - x.begin()), vocabulary));
    return row.why();
  }
};
static_assert(Drafter<moody_drafter>);
// For turns that are compiled once: what they are given, if the tests do not ask for more.
using row_type = mixed_drafter::row_type;
using two_rows = compiled_once<any_of<ensemble, token_v3>>;
const watcher any = keep_all;
struct processor_of : witness {
  explicit processor_of(penalty_memory& memory, const penalty_options& o = {})
      : witness{memory.with(o), {}} {
    push(0);
  }
};

template <std::size_t N>
auto make_sources() {
  return [&]<std::size_t... K>(std::index_sequence<K...>) {
    return std::array<faulty<T>, N>{faulty<T>{vocabulary, K + 1}...};
  }(std::make_index_sequence<N>());
}
template <class Models>
auto tie_all(Models& models) {
  return std::apply([](auto&... m) { return std::tie(m...); }, models);
}

struct setting {
  std::size_t proposed, silent_after = 1000;
  token_id end_of_text = no_token;
  penalty_options penalty = {};
};

// The exact joint law of texts of 4 tokens, against the product of the promised laws.
template <std::size_t N, class Policy>
double worst_error(const Policy& policy, const std::array<std::size_t, N>& gamma,
                   const setting& s) {
  std::size_t wrong = 0, reused = 0, asked = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        auto models = make_sources<N>();
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        collaborative_workspace<T, N, row_type> work(vocabulary,
                                                     {gamma, {}, s.end_of_text, s.proposed});
        moody_drafter drafter;
        drafter.silent_after = s.silent_after;
        penalty_memory memory;
        processor_of processor(memory, s.penalty);
        wrong += collaborative_decode(
                     tie_all(models), policy, chooser,
                     {.text = t, .most = 4, .work = work, .processor = processor, .accept = any},
                     drafter) != status::ok;
        for (const auto& m : models) wrong += m.misuses + (m.position() > t.size);
        wrong += drafter.misuses + (drafter.seen.size() > t.size);
        asked += drafter.asked;
        wrong += !std::ranges::equal(processor.pushed, std::span(buffer).first(t.size));
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(wrong == 0);
  CHECK(asked > 0);
  CHECK(reused == 0);  // no number decides twice
  const auto models = make_sources<N>();
  return worst_joint_error(law, 4, s.end_of_text, [&](const auto& context) {
    std::array<std::vector<double>, N> p;
    std::array<processed_row<T>, N> row;
    for (std::size_t k = 0; k < N; ++k) {
      p[k].resize(vocabulary);
      models[k].row(context, p[k]);
      penalty_memory memory;
      auto processor = memory.with(s.penalty);
      for (const token_id x : context) (void)processor.push(x);
      processor.apply(std::span(p[k]));
      row[k] = processed_row<T>(p[k]);
    }
    std::vector<double> due(vocabulary), combined(vocabulary);
    REQUIRE(
        with_law_of(policy, row, {}, std::span(combined), [&](const auto& rows, const auto& pi) {
          for (std::size_t v = 0; v < vocabulary; ++v) due[v] = as_double(pi(at(rows, v)));
          return status::ok;
        }) == status::ok);
    return due;
  });
}

}  // namespace

TEST_CASE(
    "three models that verify a drafter's one-hot, sparse and dense rows emit exactly the combined "
    "law") {
  const average<3> policy{{0.2, 0.5, 0.3}};
  for (const std::array<std::size_t, 3>& gamma :
       {std::array<std::size_t, 3>{1, 1, 1}, {2, 0, 1}, {1, 2, 0}})
    for (std::size_t proposed = 1; proposed <= 3; ++proposed)
      CHECK(worst_error(policy, gamma, {proposed}) < 1e-12);
  for (std::size_t silent = 0; silent < 4; ++silent)
    CHECK(worst_error<3>(policy, {1, 1, 1}, {2, silent}) < 1e-12);
  for (token_id end = 0; end < 3; ++end)
    CHECK(worst_error<3>(policy, {1, 1, 1}, {3, 1000, end, {.repetition = 1.7, .presence = 0.3}}) <
          1e-12);
}
TEST_CASE("two models that verify a drafter's rows emit exactly the law of every kind of policy") {
  const auto check = [](const auto& policy) {
    for (const std::array<std::size_t, 2>& gamma :
         {std::array<std::size_t, 2>{1, 1}, {2, 1}, {2, 0}})
      for (const std::size_t proposed : {1u, 3u})
        CHECK(worst_error(policy, gamma, {proposed}) < 1e-12);
  };
  check(lossless{});                    // model 1's token after the drafts is final
  check(two_rows{token_v3{0.3}});       // chosen at run time, reads rows at temperature 1
  check(raw_logits{contrastive{0.3}});  // one row more than models
}
TEST_CASE("tokens of a drafter cost no call of a model") {
  // At temperature 0, proposals that equal both models' text: model 0 scores 1 + 3 rows in a call
  // and drafts one more, model 1 scores them in a call. So two calls give 4 tokens, and without a
  // drafter two.
  for (const std::size_t proposed : {0u, 3u}) {
    faulty<T> a(vocabulary, 7), b(vocabulary, 7);
    moody_drafter drafter;
    drafter.greedy = true;
    drafter.model = toy_source<double>(vocabulary, 7);
    std::vector<token_id> buffer(100);
    text t{buffer, 1};
    collaborative_workspace<T, 2, row_type> work(vocabulary, {{1, 0}, {0}, {}, proposed});
    penalty_memory memory;
    processor_of processor(memory);
    either chooser = random_streams(1);
    std::size_t proposals = 0;
    REQUIRE(collaborative_decode(std::tie(a, b), two_rows{ensemble{0.5}}, chooser,
                                 {.text = t,
                                  .most = 40,
                                  .work = work,
                                  .processor = processor,
                                  .after_round = [&](const collaborative_result& r,
                                                     const auto&) { proposals += r.proposed; }},
                                 drafter) == status::ok);
    CHECK(a.calls == (proposed ? 10 : 40));
    CHECK(b.calls == (proposed ? 10 : 40));
    CHECK(proposals == (proposed ? 30 : 0));
  }
}
TEST_CASE("with a drafter that has nothing, the text and the models' calls are those without one") {
  const auto run = [](auto&&... drafter) {
    auto models = make_sources<3>();
    std::vector<token_id> buffer(201);
    text t{buffer, 1};
    using proposed =
        std::conditional_t<sizeof...(drafter) == 0, normal_form<one_hot_row<T>>, row_type>;
    collaborative_workspace<T, 3, proposed> work(vocabulary, {{3, 2, 1}, {}, {}, 4});
    penalty_memory memory;
    processor_of processor(memory);
    either chooser = random_streams(5);
    REQUIRE(collaborative_decode(
                tie_all(models), average<3>{{0.2, 0.5, 0.3}}, chooser,
                {.text = t, .most = 200, .work = work, .processor = processor, .accept = any},
                drafter...) == status::ok);
    for (const auto& m : models) buffer.push_back(token_id(m.calls));
    return buffer;
  };
  moody_drafter nothing;
  nothing.silent = true;
  CHECK(run(nothing) == run());
}
TEST_CASE(
    "where pi = p, a dead end of model 0 among a drafter's tokens ends the draft, not the text") {
  for (std::size_t call = 0; call < 6; ++call) {
    const auto law = exact_law([&](exhaustive_chooser& tree) {
      either chooser(tree);
      auto models = make_sources<2>();
      models[0].nan_at = call;
      std::vector<token_id> buffer(16);
      text t{buffer, 1};
      collaborative_workspace<T, 2, row_type> work(vocabulary, {{1, 1}, {}, {}, 2});
      moody_drafter drafter;
      penalty_memory memory;
      processor_of processor(memory);
      CHECK(collaborative_decode(
                tie_all(models), lossless{}, chooser,
                {.text = t, .most = 4, .work = work, .processor = processor, .accept = any},
                drafter) == status::ok);
      return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
    });
    const auto models = make_sources<2>();
    CHECK(worst_joint_error(law, 4, no_token,
                            [&](const auto& c) { return probabilities(models[1], c); }) < 1e-12);
  }
}
TEST_CASE(
    "a model that fails over a drafter's tokens, a drafter that throws or stops: all goes back to "
    "the text") {
  enum { fails, is_nan, throws, stops };
  std::size_t nan_rows = 0;  // that verification came to
  for (std::size_t call = 0; call < 24; ++call)
    for (int what = fails; what <= stops; ++what) {
      auto models = make_sources<3>();
      moody_drafter drafter;
      if (what == fails) models[call % 3].fail_at = call / 3;
      if (what == is_nan) models[call % 3].nan_at = call / 3;
      if (what == throws) drafter.throw_at = call;
      if (what == stops) drafter.stop_at = call;
      std::vector<token_id> buffer(60);
      text t{buffer, 1};
      collaborative_workspace<T, 3, row_type> work(vocabulary, {{3, 2, 1}, {}, {}, 3});
      penalty_memory memory;
      processor_of processor(memory);
      either chooser = random_streams(call);
      std::size_t failures = 0;
      while (t.size < 40 && failures < 9) {
        std::size_t kept = 0;
        const std::size_t before = t.size;
        status s = status::ok;
        const watcher accept = [&](const emission&) { return ++kept > 0; };
        try {
          s = collaborative_decode(tie_all(models), average<3>{{0.2, 0.5, 0.3}}, chooser,
                                   {.text = t,
                                    .most = 40 - t.size,
                                    .work = work,
                                    .processor = processor,
                                    .accept = accept},
                                   drafter);
        } catch (const std::runtime_error&) {
          CHECK(what == throws);
          s = status::stopped;
        }
        failures += s != status::ok;
        if (s != status::ok && what != throws)
          CHECK(s == (what == fails    ? status::model_failed
                      : what == is_nan ? status::invalid_row
                                       : status::stopped));
        CHECK(t.size == before + kept);
        CHECK(work.cached == 0);
        CHECK(std::ranges::equal(processor.pushed, std::span(buffer).first(t.size)));
        CHECK((drafter.seen.size() <= t.size && drafter.misuses == 0));
        for (const auto& m : models) CHECK((m.position() <= t.size && m.misuses == 0));
      }
      CHECK(t.size == 40);
      if (what == is_nan) CHECK(failures <= 1);
      else CHECK(failures == 1);
      nan_rows += what == is_nan ? failures : 0;
    }
  CHECK(nan_rows > 0);
}
TEST_CASE(
    "a drafter of another vocabulary is reported. More proposals than the workspace holds are "
    "refused") {
  moody_drafter drafter, other;
  other.size = 7;
  faulty<T> a(vocabulary, 1), b(vocabulary, 2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  collaborative_workspace<T, 2, row_type> work(vocabulary, {.gamma = {2, 2}, .proposed = 2});
  penalty_memory memory;
  processor_of processor(memory);
  either chooser = random_streams(1);
  const auto run = [&](moody_drafter& who, std::size_t proposed) {
    work.options.proposed = proposed;
    return collaborative_decode(
        std::tie(a, b), two_rows{ensemble{0.5}}, chooser,
        {.text = t,
         .most = 9,
         .work = work,
         .processor = processor,
         .after_round = [](const collaborative_result& r, const auto&) { CHECK(r.proposed <= 2); }},
        who);
  };
  CHECK(run(other, 2) == status::vocabulary_mismatch);
  CHECK(t.size == 1);
  CHECK(run(drafter, 9) == status::invalid_parameter);
  CHECK(t.size == 1);
  CHECK(run(drafter, 2) == status::ok);
  CHECK(t.size == 10);
}
