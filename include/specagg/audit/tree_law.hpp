// SPDX-License-Identifier: Apache-2.0
// The exact law of a round with a tree of drafts. For tests and analysis: allocates; the time grows
// with the number of trees that can be drafted.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/draft/propose.hpp>

SPECAGG_BEGIN

// A tree of drafts with all that its verification reads. shape[d]: the number of children of every
// node at depth d. draft_model(prefix), target_model(prefix): vectors of probabilities after a
// prefix of drafted tokens.
template <class T>
struct drafted_tree {
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents, depths;
  std::vector<std::vector<token_id>> paths;  // of each node
  std::vector<std::vector<T>> q, p;          // after each node
  std::vector<proposal_row<dense_row<T>>> laws;

  drafted_tree(std::span<const std::size_t> shape, proposal kind, auto&& draft_model,
               auto&& target_model, auto&& chooser, std::uint32_t start = 0) {
    std::size_t most = 1;  // nodes; vectors must not move, because laws view them
    for (std::size_t d = shape.size(); d-- > 0;) most = 1 + shape[d] * most;
    tokens.reserve(most);
    laws.reserve(most);
    q.reserve(most);
    p.reserve(most);
    parents.push_back(0);
    depths.push_back(0);
    paths.push_back({});
    laws.push_back({});
    for (std::size_t n = 0; n < paths.size(); ++n) {
      q.push_back(draft_model(paths[n]));
      p.push_back(target_model(paths[n]));
      if (depths[n] == shape.size()) continue;
      const std::size_t first = paths.size(), b = shape[depths[n]];
      tokens.resize(first - 1 + b);
      laws.resize(first + b);
      std::vector<double> scratch(verify_scratch(q[n].size()));
      dense_row<T> row(q[n]);
      const std::size_t children =
          propose_children(kind, row, {first, depths[n] + 1, start}, chooser,
                           std::span(tokens).last(b), std::span(laws).last(b), scratch);
      tokens.resize(first - 1 + children);
      laws.resize(first + children);
      for (std::size_t i = 0; i < children; ++i) {
        parents.push_back(std::uint32_t(n));
        depths.push_back(depths[n] + 1);
        paths.push_back(paths[n]);
        paths.back().push_back(tokens[first - 1 + i]);
      }
    }
  }
  draft_tree tree(std::uint32_t start = 0) const {
    return {tokens, std::span(parents).subspan(1), start};
  }
};

// worst_error_of_round (audit/exact_law.hpp) for trees. verify(tree, laws, q_rows, p_rows, policy,
// chooser, work) is the verifier.
round_error worst_error_of_tree(const auto& policy, std::span<const std::size_t> shape,
                                proposal kind, auto&& draft_model, auto&& target_model,
                                auto&& verify, auto&& promised) {
  std::map<std::vector<token_id>, double> reach;
  exhaustive_chooser chooser;
  std::size_t reused = 0;
  double accepted = 0;
  do {
    using T = std::remove_cvref_t<decltype(draft_model(std::vector<token_id>())[0])>;
    const drafted_tree<T> drafts(shape, kind, draft_model, target_model, chooser);
    const std::size_t V = drafts.p[0].size(), nodes = drafts.paths.size();
    std::vector<emission> out(shape.size() + 1);
    std::vector<tree_node> memory(nodes);
    std::vector<T> residual(V * (shape.size() + 1));
    std::vector<double> sums(verify_scratch(V));
    const tree_verdict v = verify(drafts.tree(), drafts.laws, drafts.q, drafts.p, policy, chooser,
                                  tree_memory<T>{out, memory, residual, sums});
    accepted += chooser.probability * double(v.accepted);
    std::vector<token_id> text;
    if (v.why == status::ok && v.emitted == 0 && !promised(text).empty())
      return {1, text, no_token, status::ok};
    reach[text] += chooser.probability;
    for (std::size_t i = 0; i < v.emitted; ++i) {
      text.push_back(out[i].token);
      reach[text] += chooser.probability;
    }
    // A decoder keeps the path of the last accepted node, with any emissions.
    if (v.node >= nodes || v.accepted != drafts.depths[v.node] || v.emitted < v.accepted ||
        !std::equal(drafts.paths[v.node].begin(), drafts.paths[v.node].end(), text.begin()))
      return {1, text, no_token, status::ok};
    if (v.why != status::ok && !(v.why == status::undefined_target && promised(text).empty()))
      return {1, text, no_token, v.why};
    reused += chooser.reused;
  } while (chooser.next());
  round_error worst =
      detail::worst_of_texts(reach, policy, shape.size(), draft_model, target_model, promised);
  worst.reused = reused;
  worst.accepted = accepted;
  return worst;
}

// The largest probability with which any verifier can emit one of n tokens that were drawn
// independently from q, if the emitted token has the law pi: 1 + the least value of pi(H) - q(H)^n
// over all sets H of tokens. pi(H) - q(H)^n is concave in the share of a token that is in H, so the
// least value belongs to a set of the tokens with the smallest pi / q: one sort, for any
// vocabulary. The optimal transport of Global Resolution (arXiv:2511.15898) accepts with this
// probability. Rows of equal size that sum to 1.
inline double optimum_of_independent(std::span<const double> q, std::span<const double> pi,
                                     std::size_t n) {
  std::vector<std::size_t> order;
  for (std::size_t v = 0; v < q.size(); ++v)
    if (q[v] > 0 || pi[v] > 0) order.push_back(v);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return pi[a] * q[b] < pi[b] * q[a]; });
  double least = 0, in_pi = 0, in_q = 0;
  for (const std::size_t v : order) {
    in_pi += pi[v];
    in_q += q[v];
    least = std::min(least, in_pi - std::pow(in_q, double(n)));
  }
  return 1 + least;
}

SPECAGG_END
