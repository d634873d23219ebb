// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/detail/tree_reader.hpp>
#include <specagg/decode/tree.hpp>
#include <specagg/decode/tree_workspace.hpp>

#include <cstdio>
#include <set>
#include <vector>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

// A model without extend_tree.
struct linear {
  using value_type = double;
  toy_source<double> inner;
  linear(std::size_t tokens, std::uint64_t seed) : inner(tokens, seed) {}
  std::size_t vocab_size() const { return inner.vocab_size(); }
  std::size_t capacity() const { return inner.capacity(); }
  std::size_t position() const { return inner.position(); }
  status rollback(std::size_t n) { return inner.rollback(n); }
  status extend(std::span<const token_id> tokens, std::span<double> logits) {
    return inner.extend(tokens, logits);
  }
};
static_assert(TreeSource<toy_source<double>> && !TreeSource<linear>);

// The decoders are compiled once for all of these.
// keep_path() fails now and then; rows of NaN after a number of tokens.
struct unwilling : toy_source<double> {
  std::size_t kept = 0, fails_every = 0, nan_after = 1000;
  using toy_source<double>::toy_source;
  status keep_path(std::span<const std::uint32_t> nodes) {
    return fails_every > 0 && ++kept % fails_every == 0 ? status::model_failed
                                                        : toy_source<double>::keep_path(nodes);
  }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<double> logits) {
    const status s = toy_source<double>::extend_tree(tokens, parents, logits);
    if (position() > nan_after)
      for (double& x : logits) x = std::numeric_limits<double>::quiet_NaN();
    return s;
  }
};
using toy_model = unwilling;
using policies = compiled_once<any_of<lossless, token_v3, ensemble>>;
struct recording_growth : plan::tree_growth {
  std::vector<path_record> paths;
  std::vector<std::size_t> steps;
  using plan::tree_growth::tree_growth;
  void observe(const path_record& path, std::size_t emitted, std::size_t draft_steps,
               std::size_t nodes) {
    plan::tree_growth::observe(path, emitted, draft_steps, nodes);
    paths.push_back(path);
    steps.push_back(draft_steps);
  }
};
template <class D, class M, class Policy>
tree_result round_of(text& t, std::size_t most, D& draft, M& target, const Policy& policy,
                     tree_workspace<double>& work, std::uint64_t seed = 1) {
  penalty_memory memory(256, 64);
  witness processor{memory.with({}), {}};
  either chooser = random_streams(seed);
  const any_tree_verifier verifier = traversal();
  return tree_round(draft, target, policy, chooser,
                    {.text = t, .most = most, .work = work, .processor = processor}, verifier);
}
using round_watcher = std::function<void(const tree_result&, tree_workspace<double>&)>;
template <class D, class M, class Policy, class Growth = fixed_growth>
status decoded(
    text& t, std::size_t most, D& draft, M& target, const Policy& policy,
    tree_workspace<double>& work, std::uint64_t seed = 1,
    const round_watcher& after_round = [](const tree_result&, tree_workspace<double>&) {},
    Growth&& growth = {}) {
  penalty_memory memory(256, 64);
  witness processor{memory.with({}), {}};
  either chooser = random_streams(seed);
  const any_tree_verifier verifier = traversal();
  return tree_decode(
      draft, target, policy, chooser,
      {.text = t, .most = most, .work = work, .processor = processor, .after_round = after_round},
      verifier, growth);
}

struct settings {
  std::vector<std::size_t> shape{2, 1};
  proposal propose = proposal::greedy;
  sampling sample = {};
  penalty_options penalty = {};
  token_id end_of_text = no_token;
  std::size_t length = 3;
};

// The joint law of texts of `length` tokens after token 0.
template <class Model, class Policy>
auto law_of_texts(const Policy& policy, const settings& s, const any_tree_verifier& verifier) {
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        Model draft_model(vocabulary, 7), target_model(vocabulary, 8);
        std::vector<token_id> buffer(1 + s.length);
        text t{buffer, 1};
        penalty_memory memory;
        witness processor{memory.with(s.penalty), {}};
        (void)processor.push(0);
        tree_workspace<double> work(vocabulary,
                                    tree_options{s.shape, s.propose, s.sample, s.end_of_text});
        const status ended = tree_decode(
            draft_model, target_model, policy, chooser,
            {.text = t, .most = s.length, .work = work, .processor = processor}, verifier);
        if (ended != status::ok) FAIL(name(ended));
        if (processor.pushed !=
            std::vector(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)))
          FAIL("the processor does not hold the text");
        if constexpr (requires { draft_model.misuses; })
          if (draft_model.misuses + target_model.misuses > 0) FAIL("misused");
        return std::vector(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  return law;
}
template <class Model = toy_model, class Policy = policies>
double error_of_texts(const std::type_identity_t<Policy>& policy, const settings& s,
                      const any_tree_verifier& verifier = traversal()) {
  const toy_source<double> draft_model(vocabulary, 7), target_model(vocabulary, 8);
  return worst_joint_error(
      law_of_texts<Model>(policy, s, verifier), s.length, s.end_of_text, [&](const auto& context) {
        return target_law(policy, probabilities(draft_model, context, s.sample, s.penalty),
                          probabilities(target_model, context, s.sample, s.penalty));
      });
}

}  // namespace

TEST_CASE(
    "texts decoded with trees have exactly the joint law: policies, proposals, shapes, verifiers") {
  double worst = 0;
  const auto check = [&](double error) {
    CHECK(error < 1e-13);
    worst = std::max(worst, error);
  };
  for (const auto& shape : std::vector<std::vector<std::size_t>>{{}, {1, 1}, {2}, {2, 1}, {1, 2}})
    for (const proposal kind : {proposal::greedy, proposal::sampled, proposal::top}) {
      // too many trees
      if (shape.size() == 2 && kind == proposal::sampled && shape[0] == 2) continue;
      const settings s{.shape = shape, .propose = kind};
      check(error_of_texts<toy_model, lossless>(lossless{}, s));
      check(error_of_texts<toy_model, lossless>(lossless{}, s, recursive_rejection{}));
      check(error_of_texts(token_v3{0.3}, s));
      check(error_of_texts(ensemble{0.4}, s, recursive_rejection{}));
      check(error_of_texts<linear>(ensemble{0.4}, s));
    }
  std::printf("largest error %.1e\n", worst);
}
TEST_CASE("trees: penalties, temperature, filters and an end of text keep the joint law exact") {
  CHECK(error_of_texts(lossless{}, {.penalty = {1.5, 0.3, 0.2}}) < 1e-13);
  CHECK(error_of_texts(token_v3{0.3}, {.penalty = {1.5, 0.3, 0.2}}) < 1e-13);
  CHECK(error_of_texts(ensemble{0.4}, {.sample = {.temperature = 0.7, .top_k = 2}}) < 1e-13);
  for (token_id end = 0; end < 3; ++end) {
    CHECK(error_of_texts(lossless{}, {.end_of_text = end}) < 1e-13);
    CHECK(error_of_texts(ensemble{0.4}, {.shape = {1, 2}, .end_of_text = end}) < 1e-13);
  }
}

TEST_CASE("texts decoded with trees of a lookup have exactly the joint law") {
  static_assert(TreeDrafter<lookup_drafter<float>> && !TreeDrafter<toy_source<double>>);
  suffix_automaton documents;
  for (const token_id t : {0, 1, 2, 0, 1, 1, 0, 2, 1, 0, 1, 2, 2, 0, 0, 1, 0}) documents.push(t);
  const std::size_t length = 3;
  double worst = 0;
  const auto check = [&](const std::vector<std::size_t>& shape, token_id end,
                         const any_tree_verifier& verifier) {
    std::size_t reused = 0, branching = 0;
    const auto law = exact_law(
        [&](exhaustive_chooser& tree) {
          either chooser(tree);
          toy_model target_model(vocabulary, 8);
          lookup_drafter<float> lookup(vocabulary, 10, &documents, 1);
          std::vector<token_id> buffer(1 + length);
          text t{buffer, 1};
          penalty_memory memory;
          witness processor{memory.with({1.5, 0.3, 0.2}), {}};
          (void)processor.push(0);
          tree_workspace<double> work(vocabulary, tree_options{.shape = shape, .end_of_text = end},
                                      false);
          const status ended =
              tree_decode(lookup, target_model, lossless{}, chooser,
                          {.text = t,
                           .most = length,
                           .work = work,
                           .processor = processor,
                           .after_round = [&](const tree_result& r,
                                              const auto&) { branching += r.drafted > 2; }},
                          verifier);
          if (ended != status::ok) FAIL(name(ended));
          if (processor.pushed !=
              std::vector(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)))
            FAIL("the processor does not hold the text");
          return std::vector(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
        },
        &reused);
    CHECK(reused == 0);
    CHECK(branching > 0);
    const toy_source<double> target_model(vocabulary, 8);
    worst = std::max(worst, worst_joint_error(law, length, end, [&](const auto& context) {
                       return probabilities(target_model, context, {}, {1.5, 0.3, 0.2});
                     }));
  };
  for (const std::vector<std::size_t>& shape : {std::vector<std::size_t>{3}, {2, 2}, {3, 1, 1}})
    for (const token_id end : {no_token, 1}) {
      check(shape, end, traversal{});
      check(shape, end, recursive_rejection{});
    }
  CHECK(worst < 1e-13);
}
TEST_CASE("texts decoded with trees that grow have exactly the joint law, and the trees differ") {
  const std::vector<std::size_t> shape{3, 2, 2};
  const toy_source<double> q(vocabulary, 7), p(vocabulary, 8);
  std::set<std::vector<std::uint32_t>> trees;
  double worst = 0;
  const auto check = [&](const policies& policy, const sampling& sample, double node_cost,
                         token_id end) {
    std::size_t reused = 0;
    const std::size_t length = 3;
    const auto law = exact_law(
        [&](exhaustive_chooser& every) {
          either chooser(every);
          toy_model draft_model(vocabulary, 7), target_model(vocabulary, 8);
          recording_growth growth(plan::draft_costs{.draft = .02, .verify = node_cost});
          penalty_memory memory;
          witness processor{memory.with({}), {}};
          const any_tree_verifier verifier = traversal();
          std::vector<token_id> buffer(1 + length);
          text t{buffer, 1};
          const tree_options options{
              .shape = shape, .sample = sample, .end_of_text = end, .most_nodes = 5};
          tree_workspace<double> work(vocabulary, options);
          const auto watch = [&](const tree_result& r, const auto& w) {
            trees.insert({w.parents.begin(), w.parents.begin() + std::ptrdiff_t(r.drafted)});
          };
          const status ended = tree_decode(draft_model, target_model, policy, chooser,
                                           {.text = t,
                                            .most = length,
                                            .work = work,
                                            .processor = processor,
                                            .after_round = watch},
                                           verifier, growth);
          if (ended != status::ok) FAIL(name(ended));
          return std::vector(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
        },
        &reused);
    CHECK(reused == 0);
    worst = std::max(worst, worst_joint_error(law, length, end, [&](const auto& context) {
                       return target_law(policy, probabilities(q, context, sample),
                                         probabilities(p, context, sample));
                     }));
  };
  for (const double node_cost : {.05, .12, .2}) {
    check(lossless{}, {}, node_cost, no_token);
    check(token_v3{0.3}, {}, node_cost, 1);
    check(lossless{}, {.temperature = .5}, node_cost, 2);
  }
  CHECK(worst < 1e-13);
  CHECK(trees.size() > 6);
}
TEST_CASE("a tree grows as far as its nodes and levels pay") {
  // where p = q, a chain is the best tree
  toy_model draft_model(20, 1, 2, 6), target_model(20, 2, 2, 6);
  const std::vector<std::size_t> shape(6, 3);
  std::vector<std::size_t> nodes;
  for (const double node_cost : {0., .02, .1, .4, 5.}) {
    const tree_options options{.shape = shape, .most_nodes = 40};
    tree_workspace<double> work(20, options);
    recording_growth growth(plan::draft_costs{.draft = .02, .verify = node_cost});
    std::vector<token_id> buffer(201);
    text t{buffer, 1};
    std::size_t drafted = 0, rounds = 0;
    const auto watch = [&](const tree_result& r, tree_workspace<double>& w) {
      drafted += r.drafted;
      ++rounds;
      CHECK(r.drafted <= 40);
      for (std::size_t i = 1; i <= r.drafted; ++i)
        REQUIRE(w.reached[i] <= w.reached[w.parents[i - 1]]);
    };
    CHECK(decoded(t, 200, draft_model, target_model, policies(lossless{}), work, 1, watch,
                  growth) == status::ok);
    nodes.push_back(drafted / rounds);
  }
  CHECK(std::is_sorted(nodes.rbegin(), nodes.rend()));
  CHECK(nodes.front() > 12);
  CHECK(nodes.back() == 0);
  CHECK(draft_model.misuses + target_model.misuses == 0);
}
TEST_CASE("a tree that grows is told what its path offered, and what of it was likely or drawn") {
  const std::vector<std::size_t> shape(4, 3);
  std::size_t all_drawn = 0, all_likely = 0;
  for (const double temperature : {0., 1.})
    for (const std::uint64_t seed : {1u, 2u}) {  // of the target: the draft's own, or another
      toy_model draft_model(20, 1, 2, 6), target_model(20, seed, 2, 6);
      const tree_options options{.shape = shape, .sample = {temperature}, .most_nodes = 30};
      tree_workspace<double> work(20, options);
      recording_growth growth(plan::draft_costs{.draft = .02, .verify = .02});
      std::vector<token_id> buffer(201);
      text t{buffer, 1};
      std::size_t rounds = 0;
      double likely = 0, drawn = 0;
      const auto watch = [&](const tree_result& r, tree_workspace<double>& w) {
        const auto& path = growth.paths.back();
        REQUIRE(++rounds == growth.paths.size());
        CHECK(path.accepted_likely + path.accepted_drawn == r.accepted);
        CHECK((r.drafted == 0 || (path.levels >= r.accepted && path.levels <= r.accepted + 1)));
        CHECK(path.likely + path.drawn <= double(path.levels) + 1e-9);
        likely += path.likely;
        drawn += path.drawn;
        all_likely += path.accepted_likely;
        all_drawn += path.accepted_drawn;
        for (std::size_t i = 1; i <= r.drafted; ++i) {
          const std::size_t parent = w.parents[i - 1];
          const bool is_drawn = w.laws[i].row.index() == 0;
          double shares = 0;
          for (std::size_t k = 1; k <= r.drafted; ++k)
            if (w.parents[k - 1] == parent) shares += w.shares[k];
          if (is_drawn) CHECK(shares == Approx(1));
          else if (temperature > 0)
            CHECK(w.shares[i] == Approx(w.draft_rows[parent][std::size_t(w.tokens[i - 1])]));
          REQUIRE((w.shares[i] > 0 && w.reached[i] > 0 &&
                   w.reached[i] <= w.reached[parent] * w.shares[i] * 1.0000001));
        }
      };
      CHECK(decoded(t, 200, draft_model, target_model, policies(lossless{}), work, 3, watch,
                    growth) == status::ok);
      INFO("temperature " << temperature << ", target " << seed << ": rounds " << rounds
                          << ", likely " << growth.likely.rate());
      if (temperature == 0) CHECK((drawn == 0 && likely > 0));  // nothing is drawn
      else CHECK(drawn > 0);
      if (seed == 1) CHECK((growth.likely.rate() > .8 && rounds < 90));  // of 200 tokens
    }
  CHECK((all_likely > 0 && all_drawn > 0));
}
TEST_CASE("a tree that grows is told how often its draft model was called, after a leaf too") {
  toy_model draft_model(20, 1, 2, 6), target_model(20, 1, 2, 6);
  const std::vector<std::size_t> shape{3, 2};
  tree_workspace<double> work(20, tree_options{shape});
  recording_growth growth(plan::draft_costs{.draft = .02, .verify = .02});
  std::vector<token_id> buffer(61);
  text t{buffer, 1};
  std::size_t calls = 0, after_a_leaf = 0;
  const auto watch = [&](const tree_result&, tree_workspace<double>&) {
    CHECK(growth.steps.back() == draft_model.calls - calls);
    calls = draft_model.calls;
    after_a_leaf += growth.steps.back() > shape.size();
  };
  CHECK(decoded(t, 60, draft_model, target_model, policies(ensemble{0.4}), work, 1, watch,
                growth) == status::ok);
  CHECK(after_a_leaf > 5);
}
TEST_CASE("a tree of a lookup needs a policy that does not read the draft") {
  toy_model target_model(vocabulary, 8);
  lookup_drafter<float> lookup(vocabulary, 10);
  std::vector<token_id> buffer(10);
  text t{buffer, 1};
  random_streams chooser(1);
  const std::vector<std::size_t> shape{2};
  tree_workspace<double> work(vocabulary, tree_options{shape}, false);
  CHECK(
      tree_round(lookup, target_model, token_v3{0.3}, chooser, {.text = t, .most = 5, .work = work})
          .why == status::invalid_parameter);
  CHECK(t.size == 1);
}

namespace {

std::vector<token_id> long_text(std::size_t length, const sampling& sample,
                                std::span<const std::size_t> shape, auto& draft_model,
                                auto& target_model, double& per_call) {
  std::vector<token_id> buffer(length + 1);
  text t{buffer, 1};
  tree_workspace<double> work(draft_model.vocab_size(),
                              tree_options{shape, proposal::greedy, sample});
  std::size_t rounds = 0;
  const auto count = [&](const tree_result&, tree_workspace<double>&) { ++rounds; };
  CHECK(decoded(t, length, draft_model, target_model, lossless{}, work, 5, count) == status::ok);
  per_call = double(length) / double(rounds);
  return buffer;
}

}  // namespace

TEST_CASE("at temperature 0 a text decoded with trees is the target's own") {
  toy_model target_model(50, 3, 2, 8), same(50, 3, 2, 8), other(50, 4, 2, 8);
  const std::vector<std::size_t> shape{3, 2, 1, 1};
  double with = 0, alone = 0;
  const auto a = long_text(200, {.temperature = 0}, shape, other, target_model, with);
  const auto b = long_text(200, {.temperature = 0}, {}, other, target_model, alone);
  CHECK(a == b);
  CHECK(alone == 1);
  const auto c = long_text(200, {.temperature = 0}, shape, same, target_model, with);
  CHECK(a == c);
  CHECK(with == 5);  // a draft model equal to the target: every round accepts a whole path
  suffix_automaton documents;
  for (const token_id t : a) documents.push(t);
  lookup_drafter<float> lookup(50, 300, &documents), of_the_text_alone(50, 300);
  CHECK(long_text(200, {.temperature = 0}, shape, lookup, target_model, with) == a);
  CHECK(with > 3);
  CHECK(long_text(200, {.temperature = 0}, shape, of_the_text_alone, target_model, with) == a);
  CHECK(target_model.misuses + same.misuses + other.misuses == 0);
}
TEST_CASE("a round with a tree calls the target once, and the draft once for each level") {
  toy_model draft_model(20, 1), target_model(20, 2);
  const std::vector<std::size_t> shape{2, 2, 1};
  tree_workspace<double> work(20, tree_options{shape});
  std::vector<token_id> buffer(100);
  text t{buffer, 1};
  for (int i = 0; i < 10; ++i) {
    const std::size_t a = draft_model.calls, b = target_model.calls;
    const auto r = round_of(t, 50, draft_model, target_model, lossless{}, work);
    REQUIRE(r.why == status::ok);
    CHECK(r.drafted == 10);
    CHECK(draft_model.calls - a == 3);
    CHECK(target_model.calls - b == 1);
  }
  CHECK(tree_size(shape) == 10);
  CHECK(tree_size(std::vector<std::size_t>(64, 1000)) == std::size_t(-1));
}
TEST_CASE("trees: models that fail, that are full, and texts without room") {
  const std::vector<std::size_t> shape{2, 2};
  const tree_options options{shape};
  for (std::size_t at = 0; at < 4; ++at) {
    // A context that is full after a few tokens: of the draft, which then stops drafting; of the
    // target, which ends.
    toy_model draft_model(10, 1, 2, 3, 3 + at), target_model(10, 2), small(10, 2, 2, 3, 3 + at);
    tree_workspace<double> work(10, options);
    std::vector<token_id> buffer(20);
    text t{buffer, 1};
    CHECK(decoded(t, 12, draft_model, target_model, lossless{}, work) == status::ok);
    CHECK(t.size == 13);
    text u{buffer, 1};
    toy_model free_draft(10, 1);
    CHECK(decoded(u, 12, free_draft, small, lossless{}, work) == status::context_full);
    CHECK(u.size == 3 + at);
    CHECK(draft_model.misuses + target_model.misuses + small.misuses + free_draft.misuses == 0);
  }
  toy_model a(10, 1), b(11, 1);
  tree_workspace<double> work(10, {.shape = shape});
  std::vector<token_id> buffer(20);
  text t{buffer, 1};
  CHECK(round_of(t, 5, b, a, lossless{}, work).why == status::vocabulary_mismatch);
  CHECK(round_of(t, 0, a, a, lossless{}, work).why == status::invalid_parameter);
  const std::vector<std::size_t> larger{3, 2};
  work.options = {.shape = larger};
  CHECK(round_of(t, 5, a, a, lossless{}, work).why == status::invalid_parameter);
}

TEST_CASE("a model that does not keep a path reads it again: the text is the target's own") {
  for (const auto& shape : std::vector<std::vector<std::size_t>>{{1}, {1, 1, 1}, {2, 2}})
    for (const std::size_t every : {1u, 2u, 3u})
      for (const bool of_the_target : {true, false}) {
        toy_model alone(20, 3, 2, 8), none(20, 4, 2, 8);
        toy_model target_model(20, 3, 2, 8), draft_model(20, 3, 2, 7);
        (of_the_target ? target_model : draft_model).fails_every = every;
        double unused = 0;
        const sampling greedy{.temperature = 0};
        CHECK(long_text(60, greedy, shape, draft_model, target_model, unused) ==
              long_text(60, greedy, {}, none, alone, unused));
        CHECK(target_model.misuses + draft_model.misuses == 0);
      }
}
TEST_CASE(
    "a policy that reads the draft decodes with trees until a model's context is full, not "
    "before") {
  for (const auto& shape : std::vector<std::vector<std::size_t>>{{}, {1, 1}, {4, 4}, {6, 6}}) {
    toy_model draft_model(10, 1, 2, 3, 40), target_model(10, 2);
    tree_workspace<double> work(10, tree_options{shape});
    std::vector<token_id> buffer(90);
    text t{buffer, 1};
    CHECK(decoded(t, 80, draft_model, target_model, policies(ensemble{0.5}), work) ==
          status::context_full);
    CHECK(t.size == 41);
  }
}
TEST_CASE(
    "trees: what cannot be counted is refused, and a broken target is not taken for a full draft") {
  const std::vector<std::size_t> huge(64, 1000);
  toy_model a(10, 1), b(10, 2);
  tree_workspace<double> none_of_it(10, tree_options{huge});
  std::vector<token_id> buffer(30);
  text t{buffer, 1};
  CHECK(round_of(t, 5, a, b, lossless{}, none_of_it).why == status::invalid_parameter);
  CHECK(t.size == 1);
  const std::vector<std::size_t> shape{2, 2};
  tree_workspace<double> work(10, tree_options{shape});
  toy_model target_model(10, 2);
  target_model.nan_after = 0;
  toy_model small(10, 1, 2, 3, 2);
  CHECK(round_of(t, 5, small, target_model, policies(ensemble{0.5}), work).why ==
        status::invalid_row);
}
