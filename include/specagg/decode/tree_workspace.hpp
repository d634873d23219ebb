// SPDX-License-Identifier: Apache-2.0
// The options, the memory and the result of a round with a tree of drafts (tree.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/draft/propose.hpp>
#include <specagg/text.hpp>

SPECAGG_BEGIN

// Nodes of a tree of this shape, without its root. SIZE_MAX if there are more than can be counted.
constexpr std::size_t tree_size(std::span<const std::size_t> shape) {
  constexpr std::size_t most = std::size_t(-1);
  std::size_t nodes = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 0 && nodes + 1 > most / shape[d]) return most;
    nodes = shape[d] * (nodes + 1);
  }
  return nodes;
}

// The options of a tree_workspace.
struct tree_options {
  // children of every node at depth 0, 1, ...; must outlive the options and the workspace
  std::span<const std::size_t> shape = {};
  proposal propose = proposal::greedy;
  sampling sample = {};  // for draft and target
  end_tokens end_of_text = {};
  std::size_t most_nodes = std::size_t(-1);  // of a tree; those that come first are drafted
  // Nodes of the largest tree.
  std::size_t nodes() const { return std::min(specagg::tree_size(shape), most_nodes); }
};

// The result of one round. drafted: nodes of the tree; accepted: of them, on the path that was
// kept. The rest as in speculative_result (workspace.hpp).
struct [[nodiscard]] tree_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

// All memory that a round needs, allocated once, for trees as large as those of the options; and
// the options. These may be changed between rounds, but for larger trees. No more is kept for the
// next round; any text may use it then. T: the type of the logits.
template <class T>
struct tree_workspace {
  using value_type = T;
  using result_type = tree_result;
  using row = normal_form<processed_row<T>>;
  tree_options options;
  std::size_t vocabulary, nodes, depth;  // nodes, depth: that there is memory for
  // By node; 0 is the text.
  std::vector<T> draft_logits, target_logits = std::vector<T>((nodes + 1) * vocabulary);
  std::vector<row> draft_rows = std::vector<row>(nodes + 1), target_rows = draft_rows;
  // The row that each node was drawn from.
  std::vector<proposal_row<row>> laws = std::vector<proposal_row<row>>(nodes + 1);
  std::vector<std::uint32_t> depths = std::vector<std::uint32_t>(nodes + 1);
  // For a tree that grows: R and q of plan/tree_growth.hpp.
  std::vector<double> reached = std::vector<double>(nodes + 1), shares = reached;
  std::vector<tree_node> memory = std::vector<tree_node>(nodes + 1);
  // Node i stands at i - 1.
  std::vector<token_id> tokens = std::vector<token_id>(nodes + 1);
  std::vector<std::uint32_t> parents = depths;
  std::vector<token_id> path = tokens;  // of one path
  // The tokens and parents that one call of a model appends.
  std::vector<token_id> call_tokens = std::vector<token_id>(nodes + depth + 1);
  std::vector<std::uint32_t> call_parents = std::vector<std::uint32_t>(nodes + depth + 1);
  std::vector<typename row::value_type> residual =
      std::vector<typename row::value_type>(std::max<std::size_t>(depth, 1) * vocabulary);
  std::vector<emission> emissions = std::vector<emission>(depth + 1);
  std::vector<double> scratch = std::vector<double>(verify_scratch(vocabulary));

  // If the tree has more nodes than memory can be counted for, it is made for none: rounds are
  // refused. by_model: a model drafts; else its rows take no memory.
  tree_workspace(std::size_t vocab_size, const tree_options& of, bool by_model = true)
      : options(of),
        vocabulary(vocab_size),
        nodes(options.nodes() < (std::size_t(1) << 48) / (vocabulary + 1) ? options.nodes() : 0),
        depth(options.shape.size()),
        draft_logits(by_model ? (nodes + 1) * vocabulary : 0) {}

  // The path to node n: its tokens, or the numbers of its nodes.
  template <class Word, class Of>
  std::span<Word> path_to(std::size_t n, std::vector<Word>& out, const Of& of) const {
    const std::size_t length = depths[n];
    for (std::size_t i = length; i-- > 0; n = parents[n - 1]) out[i] = of(n);
    return std::span(out).first(length);
  }
  // The tokens after the text on the path to node n; in `path`, until the next call.
  std::span<token_id> tokens_to(std::size_t n) {
    return path_to(n, path, [&](std::size_t i) { return tokens[i - 1]; });
  }
};

SPECAGG_END
