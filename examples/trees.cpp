// SPDX-License-Identifier: Apache-2.0
// Trees of drafts: children drawn and verified by hand; then a decoder with a chain and a tree.
#include <specagg/decoders.hpp>

#include <array>
#include <cstdio>
#include <vector>

#include <specagg/audit/toy_source.hpp>

using namespace specagg;
using row = processed_row<float>;
constexpr std::size_t V = 50, most = 20000, n = 10000;

// How often one of `children` tokens proposed after the text is accepted.
double accepted(std::size_t children) {
  std::vector<float> q_logits(V), p_logits(V), residual(V);
  toy_source<float>(V, 1, 2, /*spread=*/5).row({}, q_logits);
  toy_source<float>(V, 1, 2, /*spread=*/9).row({}, p_logits);
  row q(q_logits), p(p_logits);
  const std::vector<std::uint32_t> parents(children, 0);  // all follow node 0, the text
  std::vector<token_id> tokens(children);
  std::vector<proposal_row<row>> laws(children + 1);  // what each node was drawn from
  std::vector<double> scratch(verify_scratch(V));
  std::vector<tree_node> nodes(children + 1);
  std::size_t sum = 0;
  for (std::size_t request = 0; request < n; ++request) {
    random_streams random(/*seed=*/42, request);
    propose_children(proposal::greedy, q, {.first = 1, .depth = 1, .start = 0}, random, tokens,
                     std::span(laws).subspan(1), scratch);
    emission out[2];
    const draft_tree tree{.tokens = tokens, .parents = parents, .bonus = false};
    sum += verify_tree(tree, laws, std::span(&q, 1), std::span(&p, 1), lossless{}, random,
                       tree_memory<float>{out, nodes, residual, scratch})
               .accepted;
  }
  return double(sum) / double(n);
}

int main() {
  std::printf("one of 1, 2, 3 is accepted: %.2f %.2f %.2f\n", accepted(1), accepted(2),
              accepted(3));
  using widths = std::array<std::size_t, 4>;  // children of a node, at each depth
  for (const widths& shape : {widths{1, 1, 1, 1}, widths{3, 2, 1, 1}}) {
    toy_source<float> small(V, 1, 2, 5, most + 1), large(V, 1, 2, 9, most + 1);
    std::vector<token_id> memory(most + 1);
    text t{memory, 1};
    random_streams random(/*seed=*/42);
    tree_workspace<float> work(V, tree_options{shape});
    const status why =
        tree_decode(small, large, lossless{}, random, {.text = t, .most = most, .work = work});
    std::printf("tree of %zu nodes: %.2f tokens for each call of the target (%s)\n", work.nodes,
                double(t.size) / double(large.calls), name(why));
  }
}

// Output:
// one of 1, 2, 3 is accepted: 0.77 0.86 0.93
// tree of 4 nodes: 3.50 tokens for each call of the target (ok)
// tree of 21 nodes: 4.51 tokens for each call of the target (ok)
