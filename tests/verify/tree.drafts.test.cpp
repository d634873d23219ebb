// SPDX-License-Identifier: Apache-2.0
// Several drafts at once: the optimum of n independent ones,
// trees that branch late, and trees whose levels are drawn from marginals.
#include "verify/random_rows.hpp"

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include <specagg/audit/tree_law.hpp>
#include <specagg/policy/lossless.hpp>

using namespace specagg;

namespace {

using path = std::vector<token_id>;
using probabilities = std::vector<double>;

probabilities row_after(const path& prefix, std::uint32_t model, std::size_t V) {
  std::uint32_t key = model;
  for (const token_id t : prefix) key = key * 31 + std::uint32_t(t) + 7;
  return random_row(key, V, 2.5);
}

// The largest flow from sets of drafted tokens (each tuple of n, with its probability) to the
// tokens in them (with room p): what an optimal coupling of drafts and emitted token accepts.
// Augmenting paths by depth-first search.
struct transport {
  static constexpr double none = 1e-15;          // what rounding leaves
  std::vector<double> supply, room;              // what is left
  std::vector<std::vector<double>> flow;         // of tuple i to token v
  std::vector<std::vector<std::size_t>> tokens;  // of tuple i
  std::vector<bool> seen;
  double push(std::size_t i, double most) {
    for (const std::size_t v : tokens[i]) {
      if (seen[v]) continue;
      seen[v] = true;
      double f = room[v] > none ? std::min(most, room[v]) : 0;
      room[v] -= f;
      // or another tuple gives up what it has there
      for (std::size_t k = 0; f <= 0 && k < tokens.size(); ++k)
        if (k != i && flow[k][v] > none) {
          f = push(k, std::min(most, flow[k][v]));
          flow[k][v] -= f;
        }
      if (f <= 0) continue;
      flow[i][v] += f;
      return f;
    }
    return 0;
  }
};
double by_transport(const probabilities& q, const probabilities& p, std::size_t n) {
  const std::size_t V = q.size();
  transport t;
  t.room = p;
  std::size_t tuples = 1;
  for (std::size_t i = 0; i < n; ++i) tuples *= V;
  for (std::size_t k = 0; k < tuples; ++k) {
    double probability = 1;
    std::vector<std::size_t> all;
    for (std::size_t i = 0, rest = k; i < n; ++i, rest /= V) {
      probability *= q[rest % V];
      all.push_back(rest % V);
    }
    t.supply.push_back(probability);
    t.tokens.push_back(all);
  }
  t.flow.assign(tuples, std::vector<double>(V));
  double sent = 0;
  for (std::size_t k = 0; k < tuples; ++k)
    while (t.supply[k] > transport::none) {
      t.seen.assign(V, false);
      const double f = t.push(k, t.supply[k]);
      if (f <= 0) break;
      t.supply[k] -= f;
      sent += f;
    }
  return sent;
}

using row_of_path = std::function<probabilities(const path&)>;
using law = proposal_row<dense_row<double>>;
using table = std::vector<probabilities>;

// By traversal, or recursively.
tree_verdict verified(bool traverses, const draft_tree& tree, const std::vector<law>& laws,
                      const table& q, const table& p, exhaustive_chooser& chooser,
                      const tree_memory<double>& work) {
  return traverses ? verify_tree(tree, laws, q, p, lossless{}, chooser, work)
                   : verify_tree_recursive(tree, laws, q, p, lossless{}, chooser, work);
}
// What a verifier accepts.
double accepted(bool traverses, proposal kind, const std::vector<std::size_t>& shape,
                const row_of_path& q, const row_of_path& p) {
  const round_error e = worst_error_of_tree(
      lossless{}, shape, kind, q, p,
      [&](const draft_tree& tree, const auto& laws, const table& q_rows, const table& p_rows,
          const lossless&, exhaustive_chooser& chooser, const auto& work) {
        return verified(traverses, tree, laws, q_rows, p_rows, chooser, work);
      },
      p);
  CHECK(e.error < 1e-12);
  return e.accepted;
}

}  // namespace

TEST_CASE("the optimum of n independent drafts is that of the transport problem, by one sort") {
  double worst = 0, by_rejection = 0, at_best = 0, greedy = 0;
  const std::size_t pairs = 60;
  for (std::uint32_t seed = 0; seed < pairs; ++seed) {
    const std::size_t V = 4, n = 2 + seed % 2;
    const probabilities q = random_row(2 * seed, V, 2.5), p = random_row(2 * seed + 1, V, 2.5);
    const double optimum = optimum_of_independent(q, p, n);
    double least = 0;
    for (std::size_t H = 0; H < 16; ++H) {
      double in_p = 0, in_q = 0;
      for (std::size_t v = 0; v < V; ++v)
        if (H >> v & 1) in_p += p[v], in_q += q[v];
      least = std::min(least, in_p - std::pow(in_q, double(n)));
    }
    worst = std::max(
        {worst, std::fabs(optimum - by_transport(q, p, n)), std::fabs(optimum - (1 + least))});
    const auto of_level = [&](bool traverses, proposal kind) {
      return accepted(
          traverses, kind, {n}, [&](const path&) { return q; }, [&](const path&) { return p; });
    };
    const double rejected = of_level(true, proposal::independent);
    CHECK(rejected <= optimum + 1e-12);
    CHECK(rejected == Approx(of_level(false, proposal::independent)));
    by_rejection += rejected / pairs;
    at_best += optimum / pairs;
    greedy += of_level(true, proposal::greedy) / pairs;
  }
  CHECK(worst < 1e-12);
  CHECK(at_best > by_rejection + 0.05);
  CHECK(greedy > by_rejection + 0.05);
  std::printf(
      "n independent drafts: recursive rejection and traversal accept %.4f, the optimum %.4f; "
      "n greedy proposals %.4f\n",
      by_rejection, at_best, greedy);
}
TEST_CASE("the optimum with one draft is 1 - TV, and grows with each more, to 1 where q has all") {
  const probabilities q{0.5, 0.3, 0.2}, p{0.2, 0.2, 0.6};
  CHECK(optimum_of_independent(q, p, 1) == Approx(0.6).epsilon(1e-14));
  CHECK(optimum_of_independent(q, p, 2) > optimum_of_independent(q, p, 1));
  CHECK(optimum_of_independent(q, p, 40) == Approx(1).epsilon(1e-3));
  CHECK(optimum_of_independent(q, q, 1) == 1);
  CHECK(optimum_of_independent(probabilities{1, 0}, probabilities{0.25, 0.75}, 9) == 0.25);
}
TEST_CASE("trees that branch after some tokens are exact, and may accept more than at the root") {
  // Rows that agree at the first position and differ after it: there a second draft is wasted.
  const auto p = [](const path& x) { return row_after(x, 1, 3); };
  const auto q = [](const path& x) { return row_after(x, x.empty() ? 1 : 2, 3); };
  const auto accepts = [&](const std::vector<std::size_t>& shape) {
    return accepted(true, proposal::sampled, shape, q, p);
  };
  const double late = accepts({1, 2}), early = accepts({2, 1});  // 3 nodes, 4 nodes
  CHECK(late > early);
}
TEST_CASE("a level drawn from a marginal is exact with the marginal as its proposal, else not") {
  // The drafter knows at depth 2 only what follows on average (DDTree's trees): every child there
  // is drawn from `marginal`, whatever its parent is.
  const std::size_t V = 3;
  const probabilities first = row_after({}, 3, V);
  probabilities marginal(V);
  for (std::size_t a = 0; a < V; ++a)
    for (std::size_t v = 0; v < V; ++v) marginal[v] += first[a] * row_after({token_id(a)}, 4, V)[v];
  const auto p = [&](const path& x) { return row_after(x, 9, V); };
  const auto error_of = [&](bool told_truly, bool traverses) {
    std::map<path, double> reach;
    exhaustive_chooser chooser;
    do {
      path y(2);
      const auto drawn_from = [](const probabilities& x) {
        return law(normalise(row_without(normalise(dense_row<double>(x)), {})));
      };
      std::vector<law> laws{{}, drawn_from(first), drawn_from(marginal)};
      std::vector<double> scratch(verify_scratch(V)), residual(2 * V);
      std::vector<tree_node> nodes(3);
      std::vector<emission> out(3);
      for (std::size_t i = 1; i <= 2; ++i)
        y[i - 1] = draw_node(laws[i], 0, i, std::uint32_t(i), chooser, scratch);
      const probabilities conditional = row_after({y[0]}, 4, V);
      if (!told_truly) laws[2] = drawn_from(conditional);
      const std::vector<probabilities> rows{p({}), p({y[0]}), p(y)};
      const std::vector<std::uint32_t> parents{0, 1};
      const draft_tree tree{y, parents, 0};
      const tree_memory<double> work{out, nodes, residual, scratch};
      const auto v = verified(traverses, tree, laws, rows, rows, chooser, work);
      REQUIRE(v.why == status::ok);
      path text;
      reach[text] += chooser.probability;
      for (std::size_t i = 0; i < v.emitted; ++i) {
        text.push_back(out[i].token);
        reach[text] += chooser.probability;
      }
    } while (chooser.next());
    return detail::worst_of_texts(reach, lossless{}, 2, p, p, p).error;
  };
  for (const bool traverses : {true, false}) {
    CHECK(error_of(true, traverses) < 1e-12);
    CHECK(error_of(false, traverses) > 0.01);
  }
}
