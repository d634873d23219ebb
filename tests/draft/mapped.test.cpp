// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/mapped.hpp>

#include "draft/any_source.hpp"
#include "draft/toy_vocabularies.hpp"
#include "support/allocations.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 4;
static_assert(LogitSource<mapped_source<retokenised_toy>>);
static_assert(Drafter<mapped_drafter<retokenised_toy>, penalties>);

// q' after a context by its definition: the draft's row after the context's bytes, q(d) / Z at
// to[d], then the filters.
std::vector<double> mapped_by_hand(const toy& draft, const tokens& context, const sampling& s) {
  std::vector<double> logits(of_draft.size()), q(V);
  draft.row(encoded_at_once(context), logits);
  double all = 0, z = 0;
  for (const double l : logits) all += std::exp(l);
  for (token_id d = 0; d < token_id(logits.size()); ++d)
    if (toy_map.to(d) != no_token) z += std::exp(logits[std::size_t(d)]) / all;
  for (token_id d = 0; d < token_id(logits.size()); ++d)
    if (toy_map.to(d) != no_token)
      q[std::size_t(toy_map.to(d))] = std::exp(logits[std::size_t(d)]) / all / z;
  if (s.temperature == 1 && s.top_k == 0) return q;
  for (double& x : q) x = std::log(x);
  const auto row = normalise(processed_row<double>(q, s));
  REQUIRE(row.why() == status::ok);
  std::vector<double> filtered(V);
  for (std::size_t v = 0; v < V; ++v) filtered[v] = row[v];
  return filtered;
}

struct promise {
  sampling s;
  toy draft{of_draft.size(), 1}, target{V, 2};
  template <class Policy>
  std::vector<double> operator()(const Policy& policy, const tokens& context) const {
    const auto q = mapped_by_hand(draft, context, s), p = probabilities(target, context, s);
    // Policies read the rows at temperature 1, too.
    const auto q_sure = mapped_by_hand(draft, context, {}), p_sure = probabilities(target, context);
    return target_law(policy, confident_row(as_row(q), as_row(q_sure)),
                      confident_row(as_row(p), as_row(p_sure)));
  }
};

// The joint law of texts of `length` tokens after token 0. run(draft, target, text, chooser)
// decodes one.
template <class Policy, class Run>
double worst_error(const Policy& policy, const sampling& s, std::size_t length, Run run) {
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        toy d(of_draft.size(), 1), m(V, 2);
        retokenised_toy source(d, toy_text());
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        source_of<any_source, retokenised_toy> draft(source);
        source_of<any_source, toy> target(m);
        any_source &any_draft = draft, &any_target = target;
        REQUIRE(run(any_draft, any_target, t, chooser) == status::ok);
        CHECK(source.position() <= t.size);
        CHECK(d.misuses + m.misuses == 0);
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const promise due{s};
  return worst_joint_error(law, length, no_token, [&](const tokens& c) { return due(policy, c); });
}

const std::pair<const char*, policies> all_policies[] = {{"lossless", lossless{}},
                                                         {"ensemble", ensemble{0.3}},
                                                         {"token-v3", token_v3{0.3}},
                                                         {"opt", opt{0.05}}};
const sampling samplings[] = {{}, {0.6}, {1, 2}};

}  // namespace

TEST_CASE(
    "texts drafted by a mapped model have exactly the joint law of q' and p, for every policy and "
    "verifier") {
  for (const auto& [name, chosen] : all_policies)
    for (const sampling& s : samplings) {
      const policies& policy = chosen;  // clang++ 14 captures no structured binding
      std::size_t drafted = 0;
      const auto watch = [&](const auto& r, const auto&) { drafted += r.drafted; };
      const auto dense = [&](const any_verifier& verifier) {
        return worst_error(
            policy, s, 3, [&](any_source& source, any_source& m, text& t, either& chooser) {
              mapped_source mapped(source, toy_map);
              speculative_workspace<double> work(V, {.gamma = 2, .sample = s});
              return speculative_decode(mapped, m, policy, chooser,
                                        {.text = t, .most = 3, .work = work, .after_round = watch},
                                        verifier);
            });
      };
      const auto sparse = [&](const any_verifier& verifier) {
        return worst_error(
            policy, s, 3, [&](any_source& source, any_source& m, text& t, either& chooser) {
              mapped_drafter drafter(source, toy_map, 2, s);
              drafting_workspace<double, normal_form<mapped_row<double>>> work(
                  V, {.gamma = 2, .sample = s});
              return speculative_decode(drafter, m, policy, chooser,
                                        {.text = t, .most = 3, .work = work, .after_round = watch},
                                        verifier);
            });
      };
      const any_verifier token = token_verifier(), block = block_verifier();
      const double worst = std::max({dense(token), dense(block), sparse(token), sparse(block)});
      std::printf("%-9s temperature %.1f top-k %u: worst error %.1e\n", name, s.temperature,
                  s.top_k, worst);
      CHECK(worst < 1e-12);
      CHECK(drafted > 50);
    }
}
TEST_CASE(
    "texts drafted by a lookup, and by a mapped model where it has nothing, have the target's "
    "joint law") {
  std::size_t of_lookup = 0, of_model = 0;
  const auto run = [&](any_source& source, any_source& m, text& t, either& chooser) {
    lookup_drafter<double> lookup(V, 16, nullptr, 1);
    mapped_drafter model(source, toy_map, 2);
    first_of drafter(lookup, model);
    drafting_workspace<double, typename decltype(drafter)::row_type> work(V, {.gamma = 2});
    return speculative_decode(
        drafter, m, lossless{}, chooser,
        {.text = t, .most = 3, .work = work, .after_round = [&](const auto& r, const auto& w) {
           for (std::size_t j = 0; j < r.drafted; ++j)
             (w.drafters[j] == 0 ? of_lookup : of_model) += 1;
         }});
  };
  CHECK(worst_error(lossless{}, {}, 3, run) < 1e-12);
  CHECK(of_lookup > 10);
  CHECK(of_model > 10);
}
TEST_CASE("a mapped model and the target take turns with exactly the law of their ensemble") {
  const auto run = [&](any_source& source, any_source& m, text& t, either& chooser) {
    mapped_source mapped(source, toy_map);
    collaborative_workspace<double, 2> work(V, collaborative_options<2>{{2, 1}});
    return collaborative_decode(std::tie(mapped, m), policies(ensemble{0.4}), chooser,
                                {.text = t, .most = 3, .work = work});
  };
  CHECK(worst_error(ensemble{0.4}, {}, 3, run) < 1e-12);
}
TEST_CASE(
    "sparse and dense rows of a mapped model are equal under penalties, which see the ids of the "
    "target") {
  toy a(of_draft.size(), 1), b(of_draft.size(), 1);
  retokenised_toy first(a, toy_text()), second(b, toy_text());
  mapped_source dense(first, toy_map);
  std::vector<double> logits(4 * V);
  const sampling s{0.7, 0, 0.9};
  model_drafter model(dense, std::span(logits), s);
  mapped_drafter sparse(second, toy_map, 3, s);
  std::vector<std::uint32_t> counts(V);
  std::vector<token_id> distinct(V), history(64);
  penalties processor({.repetition = 1.6, .presence = 0.5}, counts, distinct, history);
  tokens text{2, 0};
  for (const token_id t : text) (void)processor.push(t);
  std::array<normal_form<processed_row<double>>, 4> p;
  std::array<normal_form<mapped_row<double>>, 4> q;
  for (std::size_t j = 0; j < 4; ++j) {
    double c = -1, d = -1;
    REQUIRE(model.next({text, j, true}, processor, p[j], c) == status::ok);
    REQUIRE(sparse.next({text, j, true}, processor, q[j], d) == status::ok);
    CHECK(c == Approx(d).epsilon(1e-14));
    text.push_back(token_id(j % 3));
    (void)processor.push(text.back());
  }
  for (std::size_t j = 0; j < 4; ++j)  // all are readable
    for (std::size_t v = 0; v < V; ++v) CHECK(q[j][v] == Approx(p[j][v]).epsilon(1e-13).margin(0));
  CHECK(sparse.position() == 5);
  REQUIRE(sparse.rollback(2) == status::ok);
  CHECK(second.position() == 2);
  normal_form<mapped_row<double>> row;
  double c = 0;
  // no memory for a fifth row
  CHECK(sparse.next({text, 4}, processor, row, c) == status::invalid_parameter);
}
TEST_CASE("vocabularies with nothing in common draft nothing, and decoding goes on") {
  const texts strangers{{"x"}, {"a"}};  // "a" is needed to read the text, and is not mapped
  vocabulary_map nothing;
  REQUIRE(make_vocabulary_map(tokens{no_token, no_token}, V, nothing) == status::ok);
  toy d(2, 1), m(V, 2), alone(V, 2);
  const texts as{{"a"}, {"a"}, {"a"}, {"a"}};
  retokenised_toy source(d, {as, strangers, nothing, longest_match{&strangers}});
  source_of<any_source, retokenised_toy> draft(source);
  source_of<any_source, toy> of_target(m);
  any_source &any_draft = draft, &target = of_target;
  mapped_source dense(any_draft, nothing);
  mapped_drafter sparse(any_draft, nothing, 2);
  const auto check = [&](auto& drafter, auto work) {
    std::vector<token_id> buffer(16);
    text t{buffer, 1};
    either chooser = random_streams(1);
    const any_verifier verifier;
    status why = status::ok;
    REQUIRE(speculative_decode(drafter, target, lossless{}, chooser,
                               {.text = t,
                                .most = 10,
                                .work = work,
                                .after_round =
                                    [&](const auto& r, const auto&) {
                                      CHECK(r.drafted == 0);
                                      if (r.draft_why != status::ok) why = r.draft_why;
                                    }},
                               verifier) == status::ok);
    CHECK((t.size == 11 && why == status::no_draft));
    text u{buffer, 1};
    CHECK(speculative_decode(drafter, target, policies(ensemble{0.5}), chooser,
                             {.text = u, .most = 10, .work = work},
                             verifier) == status::no_draft);  // this law needs q'
    REQUIRE(m.rollback(0) == status::ok);
  };
  check(dense, speculative_workspace<double>(V, {.gamma = 2}));
  check(sparse, drafting_workspace<double, normal_form<mapped_row<double>>>(V, {.gamma = 2}));
  CHECK(dense.mass() == 0);
}

namespace {

// Mapped tokens have no mass every other call.
struct half_masked : toy {
  using toy::toy;
  std::size_t n = 0;
  status extend(std::span<const token_id> t, std::span<double> logits) {
    const status s = toy::extend(t, logits);
    if (++n % 2 == 0)
      for (std::size_t i = 0; i < logits.size(); ++i)
        if (toy_map.to(token_id(i % of_draft.size())) != no_token)
          logits[i] = -std::numeric_limits<double>::infinity();
    return s;
  }
};

}  // namespace

TEST_CASE(
    "where the mapped tokens have no mass nothing is drafted. Sources and rows of wrong sizes are "
    "refused") {
  half_masked d(of_draft.size(), 1);
  retokenising_source<half_masked, longest_match> source(d, toy_text());
  mapped_source dense(source, toy_map);
  std::vector<double> row(V);
  REQUIRE(dense.extend(tokens{0}, row) == status::ok);
  CHECK(dense.extend(tokens{0}, row) == status::no_draft);
  CHECK(dense.position() == 1);
  REQUIRE(dense.extend(tokens{0}, row) == status::ok);
  mapped_drafter sparse(source, toy_map, 1);
  normal_form<mapped_row<double>> q;
  no_processor none;
  double c;
  const tokens text{0, 0, 1};
  CHECK(sparse.next({text, 0}, none, q, c) == status::no_draft);
  CHECK(sparse.next({text, 0}, none, q, c) == status::ok);

  faulty<double> broken(of_draft.size(), 1);
  broken.nan_at = 0;
  retokenising_source<faulty<double>, longest_match> reads(broken, toy_text());
  std::vector<double> logits(V);
  mapped_source nan(reads, toy_map);
  model_drafter of_nan(nan, std::span(logits));
  normal_form<processed_row<double>> p;
  const std::size_t at_nan = of_draft.size() / 2;
  // a NaN of a token that is not mapped is not read
  CHECK(toy_map.to(token_id(at_nan)) == no_token);
  CHECK(of_nan.next({text, 0}, none, p, c) == status::ok);
  std::vector<double> bad(of_draft.size(), std::numeric_limits<double>::quiet_NaN()), bad_row(V);
  CHECK(map_logits<double>(toy_map, bad, bad_row));
  const auto found = normalise(processed_row<double>(bad_row));
  CHECK(found.why() == status::invalid_row);

  toy small(5, 1);
  mapped_source wrong(small, toy_map);
  mapped_drafter also(small, toy_map, 1);
  CHECK(wrong.extend(tokens{0}, row) == status::vocabulary_mismatch);
  CHECK(also.next({text, 0}, none, q, c) == status::vocabulary_mismatch);
  CHECK(dense.extend(tokens{0}, std::span(row).first(3)) == status::invalid_parameter);
  CHECK(dense.extend({}, row) == status::invalid_parameter);
}
namespace {

// A draft head of the target's own 40 tokens, with logits for 6; it allocates nothing.
struct head {
  using value_type = float;
  std::size_t size = 0;
  token_id last = no_token;
  std::size_t vocab_size() const { return 6; }
  std::size_t capacity() const { return 1000; }
  std::size_t position() const { return size; }
  status rollback(std::size_t n) {
    size = n;
    return status::ok;
  }
  status extend(std::span<const token_id> t, std::span<float> logits) {
    size += t.size();
    last = t.empty() ? last : t.back();
    for (std::size_t d = 0; d < logits.size(); ++d)
      logits[d] = float(philox({std::uint32_t(last)}, d)[0]) * 0x1p-30f;
    return status::ok;
  }
};

}  // namespace

TEST_CASE(
    "a head of the target's tokens with a reduced vocabulary drafts with sparse rows, and "
    "allocates nothing") {
  head draft;
  vocabulary_map d2t;
  REQUIRE(make_vocabulary_map(tokens{3, 7, no_token, 39, 0, 20}, 40, d2t) == status::ok);
  toy_source<float> target(40, 6, 1);
  mapped_drafter drafter(draft, d2t, 3);
  drafting_workspace<float, normal_form<mapped_row<float>>> work(40, {.gamma = 3});
  std::vector<token_id> buffer(400);
  text t{buffer, 1};
  no_processor none;
  random_streams chooser(1);
  std::size_t drafted = 0, accepted = 0;
  const auto watch = [&](const auto& r, const auto& w) {
    drafted += r.drafted;
    accepted += r.accepted;
    for (std::size_t j = 0; j < r.accepted; ++j)
      if (d2t.from(w.emissions[j].token) == no_token)
        FAIL("a token that is not mapped was drafted");
  };
  REQUIRE(speculative_decode(drafter, target, lossless{}, chooser,
                             {.text = t, .most = 300, .work = work, .after_round = watch}) ==
          status::ok);
  CHECK(drafted > 300);
  CHECK(accepted > 20);
  CHECK(target.misuses == 0);
  normal_form<mapped_row<float>> row;
  double confidence = 0;
  const std::size_t before = allocations;
  for (std::size_t j = 0; j < 4; ++j) {
    REQUIRE(drafter.next({t.tokens.first(t.size - 3 + j), j, true}, none, row, confidence) ==
            status::ok);
    REQUIRE(drafter.rollback(t.size - 10) == status::ok);
  }
  const std::size_t in_rounds = allocations - before;
  CHECK(in_rounds == 0);
}
TEST_CASE("a mapped source measures the mass that its rows keep") {
  toy d(of_draft.size(), 1);
  retokenised_toy source(d, toy_text());
  mapped_source mapped(source, toy_map);
  std::vector<double> rows(3 * V);
  REQUIRE(mapped.extend(tokens{0, 2, 1}, rows) == status::ok);
  double due = 0;
  for (const tokens& text : {tokens{0}, tokens{0, 2}, tokens{0, 2, 1}}) {
    std::vector<double> logits(of_draft.size());
    d.row(encoded_at_once(text), logits);
    double all = 0, kept = 0;
    for (std::size_t v = 0; v < logits.size(); ++v)
      (toy_map.to(token_id(v)) == no_token ? all : kept) += std::exp(logits[v]);
    due += kept / (all + kept) / 3;
  }
  CHECK(mapped.mass() == Approx(due).epsilon(1e-13));
}
TEST_CASE("of a mapped row of few tokens a token of the target's vocabulary is drawn") {
  constexpr std::size_t drafts = 5000, vocabulary = 10001;
  std::vector<token_id> ids(drafts);
  std::vector<float> logits(drafts);
  for (std::size_t i = 0; i < drafts; ++i) {
    ids[i] = token_id(2 * i + 1);
    logits[i] = float(i % 97) / 20;
  }
  logits[4000] = 9;
  std::vector<double> scratch(block_count(vocabulary));
  for (const sampling& s : {sampling{0}, sampling{0.3, 3}, sampling{1, 0, 0.2}}) {
    const auto row =
        normalise(mapped_row<float>(ids, std::span<const float>(logits), vocabulary, s));
    REQUIRE(row.why() == status::ok);
    const random_streams random(1);
    for (std::uint32_t i = 0; i < 50; ++i) {
      const token_id y = draw(row, {stream::draft, i, 0}, random, scratch);
      REQUIRE(y != no_token);
      CHECK(row[std::size_t(y)] > 0);
    }
    if (s.temperature == 0) CHECK(draw(row, {stream::draft, 0, 0}, random, scratch) == 8001);
  }
}
