// SPDX-License-Identifier: Apache-2.0
// A tree of drafts, and the memory in which it is verified (verify/tree.hpp).
#pragma once
#include <cstdint>
#include <span>

#include <specagg/verify/verify.hpp>

// Plain data: the same types in every translation unit (verify/verify.hpp).
namespace specagg {

// Contract: specagg.hpp.
struct draft_tree {
  std::span<const token_id> tokens = {};
  std::span<const std::uint32_t> parents = {};
  std::uint32_t start = 0;
  end_tokens end_of_text = {};
  bonus_choice bonus = true;  // the token after an accepted leaf; given(): invalid_parameter

  SPECAGG_FUNCTION SPECAGG_LANE std::size_t size() const { return tokens.size(); }
  // moment::branch of node i's draw and coin: different for all nodes of one depth, 0 in a chain.
  SPECAGG_FUNCTION SPECAGG_LANE static std::uint32_t branch(std::size_t i, std::uint32_t depth) {
    return std::uint32_t(i) - depth;
  }
};

// A verifier's record of one node. It writes all of them. claim and accepted are 0 for nodes that
// it did not visit.
struct tree_node {
  // its first child, and the sibling after it; 0: none
  std::uint32_t depth = 0, child = 0, sibling = 0;
  std::uint32_t next = 0;                // the child to visit next; 0: none is left
  std::uint32_t slot = 0;                // where residual weights are stored
  std::uint32_t failed = 0;              // children that failed
  bool stored = false;                   // its residual weights are stored
  status why = status::ok;               // why a child, or all children, were left out
  double pi = 0, log_pi = 0, log_p = 0;  // of its token, at its parent
  // the probability that its subtree is accepted, when it was visited
  double claim = 0;
  // what is left of the claim after its children failed
  double accepted = 0;
  double scale = 0;
};

// accepted: the depth of `node`, the last accepted one. Its ancestors are the accepted path.
struct [[nodiscard]] tree_verdict : verdict {
  std::uint32_t node = 0;
};

}  // namespace specagg

SPECAGG_BEGIN

// Memory of the verification of a tree. T: value_type of the rows.
//   out       one emission more than the tree is deep: what is emitted
//   nodes     one more than the tree has; after the call they say how each was visited
//   residual  residual_rows V numbers (measure_tree); V for each level of the tree is enough
//   scratch   verify_scratch(V) doubles
//   walker    who walks: one thread; all threads of a CUDA block, which share the memory
//             (backend/cuda); or one rank of sharded rows, with a tree_memory<T,
//             vocabulary_shards&> and the rows' vocabulary_shards. A rank has its own
//             `residual`, and writes only the weights of its own tokens
template <class T, class Walker = one_thread>
struct tree_memory {
  std::span<emission> out;
  std::span<tree_node> nodes;
  std::span<T> residual;
  std::span<double> scratch;
  Walker walker = {};
};

// Whether parents stand before their children.
SPECAGG_FUNCTION inline bool is_tree(const draft_tree& tree) {
  if (tree.parents.size() != tree.size()) return false;
  for (std::size_t i = 1; i <= tree.size(); ++i)
    if (tree.parents[i - 1] >= i) return false;
  return true;
}
// Links the nodes of a tree. nodes: one more than it has.
SPECAGG_FUNCTION inline void link_tree(const draft_tree& tree, std::span<tree_node> nodes) {
  const std::size_t n = tree.size();
  for (std::size_t i = 0; i <= n; ++i) nodes[i] = {};
  for (std::size_t i = n; i > 0; --i) {
    tree_node& parent = nodes[tree.parents[i - 1]];
    nodes[i].sibling = parent.child;
    parent.child = std::uint32_t(i);
  }
  for (std::size_t i = 1; i <= n; ++i) {
    const tree_node& parent = nodes[tree.parents[i - 1]];
    nodes[i].depth = parent.depth + 1;
    nodes[i].slot = parent.slot + (nodes[parent.child].sibling != 0);
  }
}
// The levels of a linked tree, and how many rows of residual weights it needs: one, if it has any
// node, and one more for each level on a path that has siblings.
struct tree_extent {
  std::size_t levels = 0, residual_rows = 0;
};
// `nodes` as link_tree() leaves them.
SPECAGG_FUNCTION inline tree_extent measure_tree(std::span<const tree_node> nodes) {
  tree_extent size;
  for (const tree_node& node : nodes) {
    if (node.depth > size.levels) size.levels = node.depth;
    if (node.child != 0 && node.slot + 1 > size.residual_rows) size.residual_rows = node.slot + 1;
  }
  return size;
}

SPECAGG_END
