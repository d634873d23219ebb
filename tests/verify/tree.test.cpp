// SPDX-License-Identifier: Apache-2.0
#include "verify/every_policy.hpp"

#include <specagg/verify/tree.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/policy/detail/beside.hpp>
#include <specagg/verify/detail/tree_walk.hpp>
#include <specagg/verify/draft_tree.hpp>

#include "support/catch.hpp"
#include "verify/random_rows.hpp"

using namespace specagg;
using namespace every_policy;

namespace {

// Two models of V tokens whose rows depend on the whole prefix. Draft rows lie between independent
// ones and the target's.
struct pair_of_models {
  std::size_t V;
  std::uint32_t seed;
  std::uint32_t key(const std::vector<token_id>& prefix) const {
    std::uint32_t k = seed;
    for (const token_id t : prefix) k = k * 31 + std::uint32_t(t) + 7;
    return k;
  }
  std::vector<double> p(const std::vector<token_id>& prefix) const {
    return random_row(2 * key(prefix), V);
  }
  std::vector<double> q(const std::vector<token_id>& prefix) const {
    auto row = random_row(2 * key(prefix) + 1, V);
    const auto target = p(prefix);
    for (std::size_t v = 0; v < V; ++v) row[v] = (row[v] + target[v]) / 2;
    return row;
  }
};
const verify_nodes up = [](auto&&... a) { return by_tree(true, a...); };
const verify_nodes down = [](auto&&... a) { return by_tree(false, a...); };

round_error error_of(const any_policy& policy, const pair_of_models& m,
                     const std::vector<std::size_t>& shape, proposal kind,
                     const verify_nodes& verify, double* expected = nullptr) {
  const auto e = error_of_tree(
      policy, shape, kind, [&](const ids& x) { return m.q(x); },
      [&](const ids& x) { return m.p(x); }, verify,
      [&](const ids& x) { return target_law(policy, m.q(x), m.p(x)); });
  if (expected) *expected = e.accepted;
  CHECK(e.reused == 0);
  return e;
}
struct tree_case {
  std::size_t V;
  std::vector<std::size_t> shape;
  proposal kind;
};
const std::vector<tree_case> small{
    {3, {1, 1, 1}, proposal::sampled}, {2, {2, 2}, proposal::independent},
    {3, {3}, proposal::independent},   {3, {2, 1}, proposal::sampled},
    {3, {2, 1, 1}, proposal::greedy},  {4, {2, 3}, proposal::greedy},
    {4, {3, 2, 1}, proposal::top}};
const std::vector<tree_case> large{
    {4, {3, 1}, proposal::sampled},    {3, {2, 2}, proposal::sampled},
    {4, {1, 2, 1}, proposal::sampled}, {4, {3, 2}, proposal::greedy},
    {4, {3, 3, 3}, proposal::top},     {3, {2, 2}, proposal::independent},
    {4, {1, 1, 1}, proposal::greedy},  {2, {3, 1, 1}, proposal::independent}};

double largest_error(const any_policy& policy, const std::vector<tree_case>& cases,
                     std::uint32_t seeds) {
  double worst = 0;
  for (const auto& c : cases)
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      const pair_of_models m{c.V, 100 * seed};
      double by_traversal = 0, by_rejection = 0;
      const auto a = error_of(policy, m, c.shape, c.kind, up, &by_traversal);
      const auto b = error_of(policy, m, c.shape, c.kind, down, &by_rejection);
      INFO(name(c.kind) << " V " << c.V << " depth " << c.shape.size() << " seed " << seed);
      CHECK(a.error < 1e-12);
      CHECK(b.error < 1e-12);
      CHECK(by_traversal > by_rejection - 1e-12);
      if (c.kind == proposal::top) CHECK(by_traversal == Approx(by_rejection).epsilon(1e-12));
      worst = std::max({worst, a.error, b.error});
    }
  return worst;
}

}  // namespace

TEST_CASE("trees: every policy, every way to propose, both verifiers: exactly pi") {
  for (const auto& [name, policy] : all_policies()) {
    INFO(name);
    std::printf("%-22s largest error %.1e\n", name, largest_error(policy, small, 1));
  }
}
TEST_CASE("larger trees: exactly pi") {
  std::printf("lossless, token-v3, ensemble: largest errors %.1e %.1e %.1e\n",
              largest_error(lossless{}, large, 2), largest_error(token_v3{0.3}, large, 2),
              largest_error(ensemble{0.4}, large, 2));
}

namespace {

// Memory for trees of up to n nodes and rows of V tokens.
template <class T>
struct memory_of_tree {
  std::vector<tree_node> nodes;
  std::vector<T> residual;
  std::vector<double> sums;
  std::vector<emission> out;
  memory_of_tree(std::size_t n, std::size_t rows, std::size_t V)
      : nodes(n + 1), residual(rows * V), sums(verify_scratch(V)), out(n + 1) {}
  tree_memory<T> memory() { return {out, nodes, residual, sums}; }
};
const std::vector<std::uint32_t> chain{0, 1, 2, 3};

bool equal(const emission& a, const emission& b) {
  return a.token == b.token && a.from == b.from && a.why == b.why && a.log_pi == b.log_pi &&
         a.log_p == b.log_p;
}
// Logits drawn by a seed: drafts are near the target.
table logits(std::uint64_t seed, std::size_t rows, std::size_t V, double spread) {
  const random_streams noise(seed);
  table all(rows, row(V));
  for (std::size_t j = 0; j < rows; ++j)
    for (std::size_t v = 0; v < V; ++v)
      all[j][v] = spread * noise.uniform({stream::side, std::uint32_t(v), std::uint32_t(j)});
  return all;
}
// Their probabilities.
table softmax(table all) {
  for (row& x : all) {
    double sum = 0;
    for (double& l : x) sum += l = std::exp(l);
    for (double& l : x) l /= sum;
  }
  return all;
}

// A round of one level: two tokens drawn from `laws` one after another; law_of says which row the
// verifier is told.
double error_of_level(const std::vector<double>& p, bool whole, bool conditional, bool swapped) {
  const std::vector<double> q{0.5, 0.3, 0.2};
  std::map<token_id, double> seen;
  exhaustive_chooser chooser;
  do {
    memory_of_tree<double> m(2, 2, 3);
    std::vector<token_id> y(2);
    laws l(3);
    for (std::size_t i = 0; i < 2; ++i) {
      l[i + 1] = law_of(q, std::span(y).first(i));
      y[i] = draw_node(l[i + 1], 0, i + 1, 1, chooser, m.sums);
    }
    if (!conditional) l[2] = l[1];
    if (swapped) std::swap(y[0], y[1]);
    const std::vector<std::uint32_t> parents{0, 0};
    const auto v = by_tree(whole, draft_tree{y, parents, 0}, l, table(3, q), table(3, p),
                           lossless{}, chooser, m.memory());
    REQUIRE(v.emitted > 0);
    seen[m.out[0].token] += chooser.probability;
  } while (chooser.next());
  double worst = 0;
  for (token_id t = 0; t < 3; ++t) worst = std::max(worst, std::abs(seen[t] - p[std::size_t(t)]));
  return worst;
}

}  // namespace

TEST_CASE(
    "nodes that are drawn from one row are independent. Tokens drawn for one position of a chain "
    "are the same") {
  const std::vector<double> q{0.5, 0.3, 0.2};
  std::vector<double> scratch(verify_scratch(3)), law;
  for (const double first : q)
    for (const double second : q) law.push_back(first * second);
  std::vector<double> nodes(9), chain(9);
  const auto seen = [](std::vector<double>& counts, token_id first, token_id second) {
    counts[std::size_t(3 * first + second)] += 1;
  };
  for (std::uint64_t request = 0; request < 20000; ++request) {
    random_streams random(7, request);
    const auto node = [&](std::size_t i) {
      return draw_node(dense_row<double>(q), 5, i, 2, random, scratch);
    };
    const auto token = [&] { return draw_draft(dense_row<double>(q), 5, 1, random, scratch); };
    seen(nodes, node(3), node(4));
    seen(chain, token(), token());
  }
  CHECK(goodness_of_fit(nodes, law, 1e-9).passed);
  CHECK_FALSE(goodness_of_fit(chain, law, 1e-9).passed);
  CHECK(chain[0] + chain[4] + chain[8] == 20000);
}
TEST_CASE("a chain of drafts is decided as a block, or token by token, coin for coin") {
  constexpr std::size_t V = 1500;
  std::size_t residuals = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    table l = logits(2 * seed, 5, V, 6);
    const table p = softmax(l), noise = logits(2 * seed + 1, 5, V, 3);
    for (std::size_t j = 0; j < 5; ++j)
      for (std::size_t v = 0; v < V; ++v) l[j][v] += noise[j][v];
    const table q = softmax(l);
    laws drawn_from(5);
    for (std::size_t i = 1; i < 5; ++i) drawn_from[i] = law_of(q[i - 1]);
    some_noise chooser(seed);
    memory_of_tree<double> m(4, 1, V);
    std::vector<double> scratch(verify_scratch(V, 4));
    std::vector<token_id> y;
    for (std::size_t j = 0; j < 4; ++j)
      y.push_back(draw_draft(dense_row<double>(q[j]), 10, j, chooser, scratch));
    for (const any_policy& policy :
         {any_policy(lossless{}), any_policy(token_v3{0.3}), any_policy(ensemble{0.4})}) {
      std::vector<emission> out(5);
      const draft d{y, 10};
      const draft_tree tree{y, chain, 10};
      for (const bool whole : {true, false}) {
        const verdict a = whole ? by_block(d, q, p, policy, chooser, out, scratch)
                                : by_token(d, q, p, policy, chooser, out, scratch);
        const tree_verdict b = by_tree(whole, tree, drawn_from, q, p, policy, chooser, m.memory());
        REQUIRE(a.why == status::ok);
        REQUIRE(b.why == status::ok);
        REQUIRE(a.accepted == b.accepted);
        REQUIRE(a.emitted == b.emitted);
        REQUIRE(b.node == a.accepted);
        for (std::size_t i = 0; i < a.emitted; ++i) REQUIRE(equal(out[i], m.out[i]));
        residuals += m.out[b.accepted].from == origin::residual;
      }
    }
  }
  CHECK(residuals > 100);
}

TEST_CASE("a chain of certain drafts is decided as a block, or token by token, coin for coin") {
  constexpr std::size_t V = 1500;
  std::size_t residuals = 0, partial = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    table l = logits(seed, 5, V, 30);
    std::vector<token_id> y;  // the most likely ones
    for (std::size_t j = 0; j < 4; ++j) {
      const auto top = std::max_element(l[j].begin(), l[j].end());
      *top += 5;
      y.push_back(token_id(top - l[j].begin()));
    }
    const table p = softmax(l);
    std::vector<one_hot_row<double>> q;
    laws drawn_from(1);
    for (const token_id t : y) {
      q.emplace_back(t, V);
      drawn_from.push_back(only(t, V));
    }
    some_noise chooser(seed);
    memory_of_tree<double> m(4, 1, V);
    std::vector<double> scratch(verify_scratch(V, 4));
    std::vector<emission> out(5);
    const draft d{y, 10};
    const draft_tree tree{y, chain, 10};
    for (const bool whole : {true, false}) {
      const verdict a = whole ? verify_block(d, q, p, lossless{}, chooser, out, scratch)
                              : verify_token(d, q, p, lossless{}, chooser, out, scratch);
      const tree_verdict b =
          by_tree(whole, tree, drawn_from, p, p, lossless{}, chooser, m.memory());
      REQUIRE(b.why == status::ok);
      REQUIRE(a.accepted == b.accepted);
      REQUIRE(a.emitted == b.emitted);
      for (std::size_t i = 0; i < a.accepted; ++i) REQUIRE(equal(out[i], m.out[i]));
      REQUIRE(out[a.accepted].from == m.out[a.accepted].from);
      // Both draw from pi without the rejected token, from weights that differ in the last bits.
      residuals += m.out[b.accepted].from == origin::residual;
      partial += b.accepted > 0 && b.accepted < 4;
    }
  }
  CHECK(residuals > 300);
  CHECK(partial > 100);
}

TEST_CASE("siblings of every kind in any order, equal ones too: exactly pi") {
  // Kinds of the root's children: a digit is that token for certain, q is drawn from the draft's
  // row. Tokens of which many failed are no longer searched for, but stored.
  const pair_of_models m{3, 5}, other{3, 77};
  for (const std::string kinds : {"00q", "0q1", "q01q", "01qq0", "2222222222222222222222q1",
                                  "01201201201201201201201", "0000000000000000q00", "qq00120"}) {
    INFO(kinds);
    const std::size_t n = kinds.size();
    for (const bool whole : {true, false}) {
      std::map<std::vector<token_id>, double> reach;
      exhaustive_chooser chooser;
      do {
        memory_of_tree<double> memory(2 * n, 2, 3);
        std::vector<token_id> y(n);
        std::vector<std::uint32_t> parents(n, 0);
        std::vector<std::vector<double>> q(n + 1), rows{m.p({})};
        laws l(n + 1);
        for (std::size_t i = 1; i <= n; ++i) {
          q[i] = i % 2 ? m.q({}) : other.q({});
          y[i - 1] = kinds[i - 1] - '0';
          if (kinds[i - 1] == 'q')
            y[i - 1] = draw_node(as_row(q[i]), 0, i, 1, chooser, memory.sums);
          l[i] = kinds[i - 1] == 'q' ? law_of(q[i]) : only(y[i - 1], 3);
          rows.push_back(m.p({y[i - 1]}));
        }
        // a certain token after child 2
        y.push_back(1);
        parents.push_back(2);
        rows.push_back(m.p({y[1], 1}));
        l.push_back(only(1, 3));
        const draft_tree tree{y, parents, 0};
        const auto v = by_tree(whole, tree, l, rows, rows, lossless{}, chooser, memory.memory());
        REQUIRE(v.why == status::ok);
        REQUIRE(chooser.reused == 0);
        std::vector<token_id> text;
        reach[text] += chooser.probability;
        for (std::size_t i = 0; i < v.emitted; ++i) {
          text.push_back(memory.out[i].token);
          reach[text] += chooser.probability;
        }
      } while (chooser.next());
      const auto p = [&](const std::vector<token_id>& x) { return m.p(x); };
      CHECK(detail::worst_of_texts(reach, lossless{}, 2, p, p, p).error < 1e-14);
    }
  }
}

namespace {
// Counts the blocks that are read by more than a token.
struct counted_row : dense_row<double> {
  std::size_t* blocks = nullptr;
  counted_row(const std::vector<double>& x, std::size_t& n)
      : dense_row<double>(x.data(), x.size()), blocks(&n) {}
  status why() const { return status::ok; }
  detail::scaled_block<double> open(std::size_t begin, std::size_t count) const {
    *blocks += count > 1;
    return dense_row<double>::open({}, begin, count);
  }
  double operator[](std::size_t v) const { return open(v, 1).x[0]; }
};
}  // namespace

TEST_CASE(
    "a failed child that was certain costs no pass, any other one pass over the target and its "
    "law") {
  constexpr std::size_t V = 3000, passes = 3;  // blocks of a row
  const auto p = random_row(1, V), q = random_row(2, V);
  some_noise never(1, false);
  const std::vector<std::uint32_t> parents{0, 0, 0, 1, 1, 2, 6};
  const std::vector<token_id> y{5, 2999, 7, 8, 9, 10, 11};
  const auto run = [&](std::uint32_t drawn, bool whole) {  // bit i: node i was drawn from a row
    std::size_t of_target = 0, of_laws = 0;
    memory_of_tree<double> m(7, 4, V);
    const auto p_row =
        rows_of(y.size() + 1, [&](std::size_t) { return counted_row(p, of_target); });
    const auto l =
        rows_of(y.size() + 1, [&](std::size_t i) -> any_row<counted_row, one_hot_row<double>> {
          if (drawn >> i & 1) return counted_row(q, of_laws);
          return one_hot_row<double>(y[i - 1], V);
        });
    const draft_tree tree{y, parents, 0};
    const auto v =
        whole ? verify_tree(tree, l, p_row, p_row, lossless{}, never, m.memory())
              : verify_tree_recursive(tree, l, p_row, p_row, lossless{}, never, m.memory());
    REQUIRE(v.why == status::ok);
    REQUIRE(v.accepted == 0);
    return std::pair(of_target, of_laws);
  };
  const std::size_t draw = passes + 1;  // the weights' sums, and a block of them
  // All are certain: the token is drawn from pi without them.
  CHECK(run(0, true) == std::pair(draw, std::size_t(0)));
  CHECK(run(0, false) == std::pair(draw, std::size_t(0)));
  // Node 1 and its first child: each takes a pass over both rows; then nothing is left to be
  // stored.
  CHECK(run(2 | 16, true) == std::pair(2 * passes + draw, 2 * passes));
  CHECK(run(2 | 16, false) == std::pair(passes + draw, passes));
  // Node 2, after a certain sibling: first what is left is stored; its law is taken off the stored
  // weights.
  CHECK(run(4, true) == std::pair(passes + draw, passes));
  // Nodes 1, 2 and 3: the second and the third take a pass over their law, none over the target.
  CHECK(run(2 | 4 | 8, true) == std::pair(passes + draw, 3 * passes));
}

TEST_CASE("mutants: a sibling's law that is not conditional, and swapped siblings, are found") {
  const std::vector<double> p{0.2, 0.4, 0.4};
  for (const bool whole : {true, false}) {
    CHECK(error_of_level(p, whole, true, false) < 1e-15);
    CHECK(error_of_level(p, whole, false, false) > 0.01);
    CHECK(error_of_level(p, whole, true, true) > 0.01);
  }
}

TEST_CASE("greedy proposals attain the optimum of one level") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::size_t V = 4, b = 1 + seed % 3;
    const pair_of_models m{V, 1000 + seed};
    const auto q = m.q({}), p = m.p({});
    const std::vector<std::size_t> shape{b};
    double expected = 0;
    CHECK(error_of(lossless{}, m, shape, proposal::greedy, up, &expected).error < 1e-14);
    // 1 + min over sets H of p(H) - Pr[every drafted token lies in H]: the b - 1 most likely, and
    // one of the others.
    std::vector<std::size_t> order{0, 1, 2, 3};
    std::sort(order.begin(), order.end(),
              [&](std::size_t x, std::size_t y) { return q[x] > q[y]; });
    double least = 0, rest = 0;
    for (std::size_t i = b - 1; i < V; ++i) rest += q[order[i]];
    for (std::size_t H = 0; H < 16; ++H) {
      double in = 0, all = 0;
      bool top = true;
      for (std::size_t i = 0; i < V; ++i) {
        if (!(H >> order[i] & 1)) {
          top = top && i >= b - 1;
          continue;
        }
        in += p[order[i]];
        if (i >= b - 1) all += q[order[i]] / rest;
      }
      least = std::min(least, in - (top ? all : 0));
    }
    CHECK(expected == Approx(1 + least).epsilon(1e-12));
  }
}

TEST_CASE("children from different models: any law that a child was drawn from") {
  // The root has a child of model 0, then one of model 1; both have a child of the other model.
  const pair_of_models one{3, 5}, two{3, 77};
  double worst = 0;
  for (const bool whole : {true, false}) {
    std::map<std::vector<token_id>, double> reach;
    exhaustive_chooser chooser;
    do {
      memory_of_tree<double> m(4, 2, 3);
      std::vector<std::vector<double>> q(5), rows(5);
      laws l(5);
      std::vector<token_id> y(4);
      const std::vector<std::uint32_t> parents{0, 0, 1, 2};
      std::vector<std::vector<token_id>> paths(5);
      for (std::size_t i = 0; i <= 4; ++i) {
        if (i > 0) {
          const auto& from = paths[parents[i - 1]];
          q[i] = i % 2 ? one.q(from) : two.q(from);
          l[i] = law_of(q[i]);
          const auto depth = std::uint32_t(from.size()) + 1;
          y[i - 1] = draw_node(l[i], 0, i, depth, chooser, m.sums);
          paths[i] = from;
          paths[i].push_back(y[i - 1]);
        }
        rows[i] = one.p(paths[i]);
      }
      const draft_tree tree{y, parents, 0};
      const auto v = by_tree(whole, tree, l, rows, rows, lossless{}, chooser, m.memory());
      REQUIRE(v.why == status::ok);
      REQUIRE(chooser.reused == 0);
      std::vector<token_id> text;
      reach[text] += chooser.probability;
      for (std::size_t i = 0; i < v.emitted; ++i) {
        text.push_back(m.out[i].token);
        reach[text] += chooser.probability;
      }
    } while (chooser.next());
    const auto p = [&](const std::vector<token_id>& x) { return one.p(x); };
    worst = std::max(worst, detail::worst_of_texts(reach, lossless{}, 2, p, p, p).error);
  }
  CHECK(worst < 1e-14);
}

TEST_CASE("what is left out of a tree, and what it is reported as") {
  const std::vector<std::vector<double>> q(4, {0.5, 0.5, 0}), p(4, {0.25, 0.25, 0.5});
  const std::vector<std::uint32_t> parents{0, 0, 1};
  const laws l(4, law_of(q[0]));
  for (const bool whole : {true, false}) {
    const auto law_with = [&](const std::vector<token_id>& y, status why) {
      memory_of_tree<double> m(3, 2, 3);
      return exact_law([&](auto& chooser) {
        const draft_tree tree{y, parents, 0};
        const auto v = by_tree(whole, tree, l, q, p, lossless{}, chooser, m.memory());
        CHECK(v.why == status::ok);
        CHECK(m.out[v.accepted].why == (v.accepted == 0 ? why : status::ok));
        return m.out[0].token;
      });
    };
    const auto near_p = [](const std::map<token_id, double>& law) {
      return std::abs(law.at(0) - 0.25) < 1e-15 && std::abs(law.at(2) - 0.5) < 1e-15;
    };
    CHECK(near_p(law_with({7, -5, 0}, status::token_out_of_range)));
    // q(2) = 0; node 3 goes with its parent
    CHECK(near_p(law_with({2, 2, 0}, status::draft_not_in_support)));
    CHECK(near_p(law_with({no_token, no_token, 0}, status::ok)));
  }
}

TEST_CASE("a node whose row is invalid is a leaf with nothing after it") {
  const std::vector<std::uint32_t> parents{0, 0, 1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::vector<double>> rows(4, {1, 0, 0}), bad = rows;
  bad[1] = {nan, 0, 0};
  const std::vector<token_id> y{0, 0, 0};
  const laws good(4, law_of(rows[0]));
  for (const bool whole : {true, false}) {
    memory_of_tree<double> m(3, 2, 3);
    some_noise chooser(1);
    const auto verify = [&](const draft_tree& tree, const laws& l, const table& p) {
      return by_tree(whole, tree, l, rows, p, lossless{}, chooser, m.memory());
    };
    const draft_tree tree{y, parents, 0};
    const auto v = verify(tree, good, bad);
    CHECK(v.why == status::invalid_row);
    CHECK(v.node == 1);
    CHECK(v.emitted == 1);
    const auto w = verify({y, parents, 0, token_id(0)}, good, bad);
    CHECK(w.why == status::ok);  // the text ended at node 1: no row is asked for after it
    CHECK(w.emitted == 1);
    const auto x = verify({y, parents, 0, no_token, false}, good, rows);
    CHECK(x.why == status::ok);
    CHECK(x.node == 3);
    CHECK(x.emitted == 2);
    const row none{nan, nan, nan};
    const auto z = verify(tree, laws(4, law_of(none)), rows);
    CHECK(z.why == status::ok);
    CHECK(m.out[0].why == status::invalid_row);
    CHECK(z.emitted == 1);
  }
}

TEST_CASE("rows of another size than the root's give no token") {
  const row half{0.5, 0.5};
  const laws l(3, law_of(half));
  std::vector<std::vector<double>> p(3, {0.5, 0.5});
  p[1] = {0.25, 0.25, 0.25, 0.25};
  const std::vector<token_id> y{0, 1};
  const std::vector<std::uint32_t> parents{0, 1};
  for (const auto& d : {draft_tree{y, parents, 0},
                        draft_tree{std::span(y).first(1), std::span(parents).first(1), 0}}) {
    memory_of_tree<double> m(2, 2, 4);
    some_noise chooser(1);
    for (const bool whole : {true, false})
      CHECK(by_tree(whole, d, l, p, p, lossless{}, chooser, m.memory()).why ==
            status::vocabulary_mismatch);
  }
}
TEST_CASE("what is no tree, and too little memory, is refused before anything is decided") {
  const table rows(4, {0.5, 0.5});
  const laws l(4, law_of(rows[0]));
  const std::vector<token_id> y{0, 1, 0};
  some_noise chooser(3);
  const auto run = [&](std::vector<std::uint32_t> parents, memory_of_tree<double> m) {
    const auto s = m.memory();
    const auto a = by_tree(true, {y, parents, 0}, l, rows, rows, lossless{}, chooser, s);
    const auto b = by_tree(false, {y, parents, 0}, l, rows, rows, lossless{}, chooser, s);
    CHECK(a.why == b.why);
    CHECK((a.why == status::ok || a.emitted + b.emitted == 0));
    return a.why;
  };
  const auto memory = [](std::size_t nodes, std::size_t residual, std::size_t sums,
                         std::size_t out) {
    memory_of_tree<double> m(3, 2, 2);
    m.nodes.resize(nodes);
    m.residual.resize(residual);
    m.sums.resize(sums);
    m.out.resize(out);
    return m;
  };
  CHECK(run({0, 0, 1}, memory(4, 4, 1, 3)) == status::ok);
  // a chain needs one row
  CHECK(run({0, 1, 2}, memory(4, 2, 1, 4)) == status::ok);
  CHECK(run({0, 0, 3}, memory(4, 4, 1, 4)) == status::invalid_parameter);  // its own parent
  // a parent after its child
  CHECK(run({2, 0, 1}, memory(4, 4, 1, 4)) == status::invalid_parameter);
  CHECK(run({0, 0, 9}, memory(4, 4, 1, 4)) == status::invalid_parameter);
  CHECK(run({0, 0}, memory(4, 4, 1, 4)) == status::invalid_parameter);
  CHECK(run({0, 0, 1}, memory(3, 4, 1, 3)) == status::invalid_parameter);
  CHECK(run({0, 0, 1}, memory(4, 3, 1, 3)) == status::invalid_parameter);
  CHECK(run({0, 0, 1}, memory(4, 4, 0, 3)) == status::invalid_parameter);
  CHECK(run({0, 0, 1}, memory(4, 4, 1, 2)) == status::invalid_parameter);
}

TEST_CASE("trees of 100,000 nodes: a chain, a star, a comb, random ones") {
  constexpr std::size_t n = 100000, V = 8;
  const row x = random_row(1, V);
  const laws l(n + 1, law_of(x));
  const table q(n + 1, x), p(n + 1, random_row(2, V));
  for (const std::size_t kind : {0u, 1u, 2u, 3u})
    for (const bool whole : {true, false}) {
      const random_streams noise(kind);
      std::vector<std::uint32_t> parents(n);
      std::vector<token_id> y(n);
      for (std::size_t i = 1; i <= n; ++i) {
        const auto u = noise.uniform({stream::side, std::uint32_t(i), 0});
        parents[i - 1] = std::uint32_t(kind == 0   ? i - 1
                                       : kind == 1 ? 0
                                       : kind == 2 ? (i % 2 ? i - 1 : i - 2)
                                                   : std::size_t(u * double(i)));
        y[i - 1] = token_id(noise.uniform({stream::side, std::uint32_t(i), 1}) * V);
      }
      memory_of_tree<double> m(n, n, V);
      some_noise chooser(7);
      const draft_tree tree{y, parents, 5};
      const auto v = by_tree(whole, tree, l, q, p, lossless{}, chooser, m.memory());
      CHECK(v.why == status::ok);
      CHECK(v.emitted == v.accepted + 1);
    }
}

TEST_CASE("rows of floats: the law of a tree is off by at most 4e-6 in total variation") {
  // One level, three tokens drawn without replacement from 2,000; the law given the drafts, in
  // floats and in doubles.
  constexpr std::size_t V = 2000;
  const std::vector<std::uint32_t> parents{0, 0, 0};
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const table p = softmax(logits(2 * seed, 1, V, 8)), q = softmax(logits(2 * seed + 1, 1, V, 8));
    // Every coin fails, so what is left of the root at last is what this test compares;
    // accepted[i] are the claims.
    some_noise never(seed, false);
    std::vector<token_id> y(3);
    const auto left = [&](const auto& m) {
      std::vector<double> result;
      for (std::size_t i = 1; i <= 3; ++i) result.push_back(m.nodes[i].claim);
      for (std::size_t x = 0; x < V; ++x)
        result.push_back(m.nodes[0].scale * double(m.residual[x]));
      return result;
    };
    memory_of_tree<double> in_doubles(3, 2, V);
    laws l(4);
    for (std::size_t i = 0; i < 3; ++i) {
      l[i + 1] = law_of(q[0], std::span(y).first(i));
      y[i] = draw_node(l[i + 1], 0, i + 1, 1, never, in_doubles.sums);
    }
    CHECK(by_tree(true, {y, parents, 0}, l, table(4, q[0]), table(4, p[0]), lossless{}, never,
                  in_doubles.memory())
              .accepted == 0);
    memory_of_tree<float> in_floats(3, 2, V);
    const std::vector<float> p_floats(p[0].begin(), p[0].end()), q_floats(q[0].begin(), q[0].end());
    const auto p_row = normalise(dense_row<float>(p_floats)),
               q_row = normalise(dense_row<float>(q_floats));
    std::vector<row_without<normal_form<dense_row<float>>>> laws_of_floats(4);
    for (std::size_t i = 0; i < 3; ++i) laws_of_floats[i + 1] = {q_row, std::span(y).first(i)};
    CHECK(verify_tree({y, parents, 0}, laws_of_floats, std::vector(4, p_row), std::vector(4, p_row),
                      lossless{}, never, in_floats.memory())
              .accepted == 0);
    const auto a = left(in_floats), b = left(in_doubles);
    double distance = 0;
    for (std::size_t i = 0; i < 3; ++i) CHECK(a[i] == Approx(b[i]).epsilon(1e-5));
    for (std::size_t x = 3; x < a.size(); ++x) distance += std::abs(a[x] - b[x]) / 2;
    worst = std::max(worst, distance);
  }
  std::printf("largest distance %.1e\n", worst);
  CHECK(worst < 4e-6);
}
