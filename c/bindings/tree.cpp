// SPDX-License-Identifier: Apache-2.0
// Verification of trees of drafts. Built once for each instruction set.
#include <algorithm>
#include <vector>

#include <specagg/draft/propose.hpp>
#include <specagg/verify/verifiers.hpp>

#include "any.hpp"

namespace {

// laws[i]: what the token of node i was drawn from. tokens: written, siblings side by side, in
// proposal order, without padding; what a child was drawn without views them.
template <class Any>
std::vector<proposal_row<Any>> laws_of(const engine::tree_request& r,
                                       std::vector<token_id>& tokens) {
  using T = typename Any::value_type;
  const draft_tree& tree = r.tree;
  const std::size_t n = tree.size();
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < n; ++i)
    if (tree.tokens[i] != no_token) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tree.parents[a] < tree.parents[b]; });
  for (const std::size_t i : order) tokens.push_back(tree.tokens[i]);

  const auto proposed = proposal(r.proposed);
  std::vector<proposal_row<Any>> laws(n + 1);
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const std::uint32_t parent = tree.parents[order[begin]];
    while (end < order.size() && tree.parents[order[end]] == parent) ++end;
    const std::span<const token_id> siblings(&tokens[begin], end - begin);
    const auto q = normalise(row_at<Any>(r.q, parent, r.vocabulary, no_token));
    for (std::size_t k = 0; k < siblings.size(); ++k) {
      auto& law = laws[order[begin + k] + 1];
      const auto alone = normalise(one_hot_row<T>(siblings[k], r.vocabulary));
      if (proposed == proposal::top || r.q.kind == engine::row_kind::one_hot ||
          (proposed == proposal::greedy && k > 0))
        law = alone;
      else if (proposed == proposal::greedy) {
        law = normalise(row_without(q, siblings.subspan(1)));
        // Where temperature or top-k leave no other token, the first was chosen without chance.
        if (siblings.size() > 1 && law.why() != status::ok && q.why() == status::ok) law = alone;
      } else if (proposed == proposal::sampled) law = normalise(row_without(q, siblings.first(k)));
      else law = normalise(row_without(q, std::span<const token_id>()));
    }
  }
  return laws;
}

template <class Any>
tree_verdict verify_tree_in(const engine::tree_request& r, std::uint32_t* path) {
  using T = typename Any::value_type;
  const draft_tree& tree = r.tree;
  const std::size_t n = tree.size();

  std::vector<token_id> tokens;
  const auto laws = laws_of<Any>(r, tokens);
  std::vector<tree_node> nodes(n + 1);
  link_tree(tree, nodes);
  std::vector<T> residual(measure_tree(std::span<const tree_node>(nodes)).residual_rows *
                          r.vocabulary);
  const auto rows = [&](const engine::rows& all) {
    return lasting_rows_of(
        all.count, [&](std::size_t j) { return row_at<Any>(all, j, r.vocabulary, no_token); });
  };
  random_streams chooser(r.seed, r.id);
  const tree_memory<T> work{r.out, nodes, residual, r.scratch};
  tree_verdict v;
  with_verifier<all_tree_verifiers>(r.verifier, 0, 0, [&](const auto& verifier) {
    v = with_policy(r.policy, [&](const auto& policy) {
      return verifier.verify(tree, laws, rows(r.q), rows(r.p), policy, chooser, work);
    });
  });
  std::size_t node = v.node;
  for (std::size_t d = v.accepted; d > 0; --d) {
    path[d - 1] = std::uint32_t(node);
    node = tree.parents[node - 1];
  }
  return v;
}

}  // namespace

extern "C" void specagg_engine_verify_tree(const engine::tree_request* r, tree_verdict* result,
                                           std::uint32_t* path) {
  *result = engine::in_double(r->p.kind) ? verify_tree_in<double_row>(*r, path)
                                         : verify_tree_in<float_row>(*r, path);
}
