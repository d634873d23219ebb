// SPDX-License-Identifier: Apache-2.0
// Trees of drafts with sharded rows, and many requests in step: the verdicts of whole rows.
#include "shards/ranks.hpp"

#include <vector>

#include <specagg/policy/lossless.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/shards/sharded_row.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// A tree whose nodes have rows of their own; children are drawn from the draft's row of their
// parent, or chosen (`certain`).
struct example {
  std::size_t V;
  bool certain;
  std::vector<std::uint32_t> parents;
  std::vector<token_id> tokens;
  std::vector<float> q, p;  // [nodes + 1][V]
  std::uint64_t seed;
  sampling how;
  std::size_t nodes() const { return parents.size() + 1; }
  draft_tree tree() const { return {tokens, parents, 5}; }
  std::vector<token_id> children(std::size_t n) const {
    std::vector<token_id> found;
    for (std::size_t i = 1; i < nodes(); ++i)
      if (parents[i - 1] == n) found.push_back(tokens[i - 1]);
    return found;
  }
};
std::span<const float> row_of(const std::vector<float>& all, const example& e, std::size_t i) {
  return std::span(all).subspan(i * e.V, e.V);
}
example random_example(numbers& random, std::size_t V) {
  example e{V, random.below(3) == 0, {}, {}, {}, {}, random.word(), {}};
  e.how.temperature = std::array{1., 0.7, 0.}[random.below(3)];
  const std::size_t n = 4 + random.below(20);
  for (std::size_t i = 0; i < n; ++i) e.parents.push_back(std::uint32_t(random.below(i / 2 + 1)));
  e.p.resize((n + 1) * V);
  e.q.resize((n + 1) * V);
  for (std::size_t i = 0; i < e.p.size(); ++i) {
    e.p[i] = float(4 + 3 * random.bell());
    e.q[i] = e.p[i] + float(0.7 * random.bell());
  }
  random_streams chooser(e.seed, 3);
  std::vector<double> scratch(verify_scratch(V));
  std::vector<std::uint32_t> depth{0};
  for (std::size_t i = 1; i <= n; ++i) {
    depth.push_back(depth[e.parents[i - 1]] + 1);
    const processed_row<float> law(row_of(e.q, e, e.parents[i - 1]), e.how);
    e.tokens.push_back(draw_node(law, 5, i, depth[i], chooser, scratch));
  }
  if (random.below(6) == 0) e.p[random.below(e.p.size())] = NAN;
  return e;
}

struct result {
  tree_verdict v;
  std::vector<emission> out;
  bool operator==(const result& o) const {
    bool equal = v.accepted == o.v.accepted && v.emitted == o.v.emitted && v.why == o.v.why &&
                 v.node == o.v.node;
    for (std::size_t i = 0; equal && i < v.emitted; ++i)
      equal = out[i].token == o.out[i].token && out[i].why == o.out[i].why &&
              out[i].from == o.out[i].from && same(out[i].log_p, o.out[i].log_p) &&
              same(out[i].log_pi, o.out[i].log_pi);
    return equal;
  }
};
template <class Walker>
struct memory_of_tree {
  std::vector<emission> out;
  std::vector<tree_node> nodes;
  std::vector<float> residual;
  std::vector<double> scratch;
  explicit memory_of_tree(const example& e)
      : out(e.nodes() + 1),
        nodes(e.nodes()),
        residual(e.nodes() * e.V, NAN),
        scratch(verify_scratch(e.V)) {}
  tree_memory<float, Walker> with(Walker walker) { return {out, nodes, residual, scratch, walker}; }
};
template <class Verifier, class Policy, class Walker>
result verified(const example& e, const Verifier& verifier, const Policy& policy, const auto& q,
                const auto& p, memory_of_tree<Walker>& memory, Walker walker) {
  random_streams chooser(e.seed, 3);
  const auto work = memory.with(walker);
  using drawn_from = std::remove_cvref_t<decltype(q[0])>;
  const auto laws =
      rows_of(e.nodes(), [&](std::size_t i) -> any_row<drawn_from, one_hot_row<float>> {
        if (e.certain) return one_hot_row<float>(i > 0 ? e.tokens[i - 1] : 0, e.V);
        return q[i > 0 ? e.parents[i - 1] : 0];
      });
  const tree_verdict v = verifier.verify(e.tree(), laws, q, p, policy, chooser, work);
  return {v, memory.out};
}
template <class Verifier, class Policy>
result whole(const example& e, const Verifier& verifier, const Policy& policy) {
  memory_of_tree<one_thread> memory(e);
  return verified(e, verifier, policy, rows_of_logits(e.q, e.V, e.how),
                  rows_of_logits(e.p, e.V, e.how), memory, one_thread());
}

// Several trees of one rank: their rows in step, then the trees in step.
template <class Verifier, class Policy>
std::vector<result> by_rank(std::span<const example> trees, const Verifier& verifier,
                            const Policy& policy, any_exchange& exchange,
                            std::span<const std::size_t> begins, std::size_t rank) {
  using shards = vocabulary_shards;
  std::size_t all = 0;
  for (const example& e : trees) all += 2 * e.nodes();
  std::vector<double> memory(shards::memory_of(begins, 4 * all));
  shards together(exchange, begins, rank, memory);
  std::vector<std::vector<normalised_row<sharded_row<float>>>> q(trees.size()), p(trees.size());
  std::vector<std::pair<std::size_t, std::size_t>> at;  // tree, row
  for (std::size_t t = 0; t < trees.size(); ++t) {
    q[t].resize(trees[t].nodes());
    p[t].resize(trees[t].nodes());
    for (std::size_t i = 0; i < 2 * trees[t].nodes(); ++i) at.emplace_back(t, i);
  }
  bool ok = together.run(at.size(), [&](std::size_t k) {
    const auto [t, i] = at[k];
    const example& e = trees[t];
    const std::size_t n = i / 2;
    const auto expected = e.children(n);
    const float* own = row_of(i % 2 ? e.p : e.q, e, n).data() + begins[rank];
    (i % 2 ? p : q)[t][n] =
        normalise(sharded_row<float>(own, together, e.how, expected), reads_confidence<Policy>);
  });
  std::vector<result> results(trees.size());
  ok = ok && together.run(trees.size(), [&](std::size_t t) {
    memory_of_tree<shards&> memory_of(trees[t]);
    results[t] = verified<Verifier, Policy, shards&>(
        trees[t], verifier, policy, std::span<const normalised_row<sharded_row<float>>>(q[t]),
        std::span<const normalised_row<sharded_row<float>>>(p[t]), memory_of, together);
  });
  return ok ? results : std::vector<result>();
}
template <class Verifier, class Policy>
void check_trees(const Verifier& verifier, const Policy& policy, std::uint64_t seed) {
  numbers random(seed);
  std::size_t rejected = 0, failed = 0, accepted = 0;
  for (int round = 0; round < 8; ++round) {
    const std::size_t V = round % 2 ? 5000 : 1 + random.below(2000);
    std::vector<example> trees;
    for (int i = 0; i < 3; ++i) trees.push_back(random_example(random, V));
    std::vector<result> due;
    for (const example& e : trees) due.push_back(whole(e, verifier, policy));
    const std::size_t ranks = std::array<std::size_t, 4>{1, 2, 3, 7}[random.below(4)];
    const auto begins = begins_of(V, ranks, random.below(2));
    std::vector<std::vector<result>> got(ranks);
    on_threads(ranks, [&](std::size_t r, auto& exchange) {
      got[r] = by_rank(std::span<const example>(trees), verifier, policy, exchange, begins, r);
    });
    CAPTURE(round, V, begins);
    for (const auto& r : got) CHECK(r == due);
    for (const result& r : due) {
      failed += r.v.why != status::ok;
      accepted += r.v.accepted;
      rejected += r.v.emitted > 0 && r.out[r.v.emitted - 1].from == origin::residual;
    }
  }
  CHECK(rejected > 0);
  CHECK(failed > 0);
  CHECK(accepted > 10);
}

}  // namespace

TEST_CASE("sharded rows: trees are verified as with whole rows, many in step") {
  check_trees(traversal{}, token_v3{0.3}, 2);
  check_trees(recursive_rejection{}, lossless{}, 3);
}
