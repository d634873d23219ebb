// SPDX-License-Identifier: Apache-2.0
// Verification of a tree of drafts towards any law pi. Every emitted token has exactly the law pi, whatever the shape
// of the tree and however its tokens were proposed.
//
// verify_tree follows Traversal Verification (Weng et al. 2025, arXiv:2505.12398), with any law pi, and with any
// conditional law that a child may have been drawn from. verify_tree_recursive is what engines do today (SpecInfer,
// EAGLE). docs/trees.md has the proof and what each accepts.
// Proved: proofs/tree.v, `verify_tree_emits_pi`, `verify_tree_recursive_emits_pi`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include <specagg/policy/beside.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// Node 0 is the text. Node i has token tokens[i - 1] and follows node parents[i - 1] < i. The children of a node stand
// in proposal order: each was drawn from a law L that may depend on the path to it and on the siblings before it, but
// not on coins. A node at depth d has position start + d - 1. A node is left out, with all that follows it, if
//   * its token is no_token: padding
//   * its token is foreign, or its L is invalid (struct draft): the emission at that position says it in `why`
//   * its parent is an end of text
// Two siblings may have the same token.
struct draft_tree {
  std::span<const token_id> tokens = {};
  std::span<const std::uint32_t> parents = {};
  std::uint32_t start = 0;
  end_tokens end_of_text = {};
  bool bonus = true;  // draw one more token after a leaf, if the text has not ended

  SPECAGG_FUNCTION std::size_t size() const { return tokens.size(); }
  // moment::branch of node i's draw and coin: different for all nodes of one depth, 0 in a chain.
  SPECAGG_FUNCTION static std::uint32_t branch(std::size_t i, std::uint32_t depth) { return std::uint32_t(i) - depth; }
};

// What a verifier knows about a node; written for all of them. claim and accepted: 0 where it did not go.
struct tree_node {
  std::uint32_t depth = 0, child = 0, sibling = 0;  // the next child to visit, and the next sibling; 0: none
  std::uint32_t slot = 0;                           // where owed weights are stored
  bool settled = false;                             // one child has failed
  status why = status::ok;                          // why a child, or all children, were left out
  double pi = 0, log_pi = 0, log_p = 0;             // of its token, at its parent
  double claim = 0;                                 // the probability that its subtree is accepted, as it was visited
  double accepted = 0;                              // what is left of the claim after its children failed
  double scale = 0;
};

// accepted: the depth of `node`, the last accepted one. Its ancestors are the accepted path.
struct tree_verdict : verdict {
  std::uint32_t node = 0;
};

// Memory of a verification. T: value_type of the rows.
//   nodes   one more than the tree has
//   owed    owed_rows(nodes) V numbers; V for each level of the tree is enough
//   sums    verify_scratch(V) doubles
template <class T>
struct tree_scratch {
  std::span<tree_node> nodes;
  std::span<T> owed;
  std::span<double> sums;
};

// Links the nodes of a tree. Returns how many rows of owed weights it needs: one, if it has any node, and one more for
// each level on a path that has siblings. False if it is no tree, or there is too little memory.
SPECAGG_FUNCTION inline bool link_tree(const draft_tree& tree, std::span<tree_node> nodes, std::size_t& owed_rows,
                                       std::size_t& levels) {
  const std::size_t n = tree.size();
  owed_rows = levels = 0;
  if (tree.parents.size() != n || nodes.size() < n + 1) return false;
  for (std::size_t i = 0; i <= n; ++i) {
    nodes[i] = {};
    if (i > 0 && tree.parents[i - 1] >= i) return false;
    if (i > 0) nodes[i].depth = nodes[tree.parents[i - 1]].depth + 1;
    if (nodes[i].depth > levels) levels = nodes[i].depth;
  }
  for (std::size_t i = n; i > 0; --i) {
    tree_node& parent = nodes[tree.parents[i - 1]];
    nodes[i].sibling = parent.child, parent.child = std::uint32_t(i);
  }
  for (std::size_t i = 0; i <= n; ++i) {
    tree_node& node = nodes[i];
    if (i > 0) {
      const tree_node& parent = nodes[tree.parents[i - 1]];
      node.slot = parent.slot + (nodes[parent.child].sibling != 0);
    }
    if (node.child != 0 && node.slot + 1 > owed_rows) owed_rows = node.slot + 1;
  }
  return true;
}

namespace detail {

// A walk through a tree. While the children of a node n fail one after another, the node owes the weights
//   owed = a pi                          a: the claim on n; 1 in recursive rejection
//   owed = scale (owed - L)+             after each failed child, L the law that it was drawn from
// and a = sum owed is what is left of the claim. The weights are stored when the first child fails.
template <class Policy, class Laws, class QRows, class PRows, class T>
struct tree_walk {
  const draft_tree& tree;
  const Policy& policy;
  Laws& laws;
  QRows& q_rows;
  PRows& p_rows;
  tree_scratch<T> work;
  std::size_t owed_rows, vocabulary = 0;
  bool enough_memory = true;

  SPECAGG_FUNCTION tree_node& node(std::size_t i) const { return work.nodes[i]; }
  SPECAGG_FUNCTION token_id token(std::size_t i) const { return tree.tokens[i - 1]; }
  SPECAGG_FUNCTION T* owed(const tree_node& n) const { return work.owed.data() + n.slot * vocabulary; }

  // Comes to node n, which owes a pi. Finds pi of its children's tokens. If pi does not exist, the children are left
  // out.
  SPECAGG_FUNCTION void enter(std::size_t n, double a) {
    tree_node& here = node(n);
    here.accepted = a;
    if (n > 0 && tree.end_of_text.contains(token(n))) here.child = 0;
    if (here.child == 0) return;
    const status s = with_target_law(policy, q_rows, p_rows, n, [&](const auto& rows, const auto& pi) {
      if (n == 0) {
        vocabulary = rows.size();
        enough_memory = work.owed.size() >= owed_rows * vocabulary && can_weigh(rows, work.sums);
      }
      if (rows.size() != vocabulary) return status::vocabulary_mismatch;
      for (std::uint32_t c = here.child; c != 0; c = node(c).sibling) {
        if (foreign(token(c), vocabulary, 1) != status::ok) continue;
        const auto seen = at(rows, std::size_t(token(c)));
        tree_node& child = node(c);
        child.pi = as_double(pi(seen));
        if (!(child.pi < infinity)) return status::undefined_target;
        child.log_pi = log(child.pi), child.log_p = log(as_double(pair_sides::p(seen)));
      }
      return status::ok;
    });
    if (s != status::ok) here.child = 0, here.why = s;
  }

  // f(L) with the normalised law that node c was drawn from; or what is wrong with it.
  template <class F>
  SPECAGG_FUNCTION status with_proposal(std::size_t c, F&& f) {
    const auto given = [&](auto& law) {
      if (const status s = law.normalise(); s != status::ok) return s;
      return law.size() == vocabulary ? f(law) : status::vocabulary_mismatch;
    };
    auto row = row_at(laws, c);
    if constexpr (is_any_row<decltype(row)>) return with_row(row, given);
    else return given(row);
  }

  // Takes the next child of n that is not left out; 0: none. owes, drawn: what n owes for its token, and its L.
  SPECAGG_FUNCTION std::size_t next_child(std::size_t n, double& owes, double& drawn) {
    tree_node& parent = node(n);
    while (const std::size_t c = parent.child) {
      parent.child = node(c).sibling;
      const token_id y = token(c);
      if (y == no_token) continue;
      status s = foreign(y, vocabulary, 1);
      if (s == status::ok)
        s = with_proposal(c, [&](const auto& law) {
          drawn = double(law[std::size_t(y)]);
          return foreign(y, vocabulary, drawn);
        });
      if (s == status::ok) {
        owes = parent.settled ? parent.scale * double(owed(parent)[y]) : parent.accepted * node(c).pi;
        return c;
      }
      parent.why = s;
    }
    return 0;
  }

  // Child c of n has failed: its law is taken off what n owes.
  SPECAGG_FUNCTION status settle(std::size_t n, std::size_t c) {
    tree_node& parent = node(n);
    T* const weights = owed(parent);
    double left = 0;
    const status s = with_proposal(c, [&](const auto& law) {
      using L = std::remove_cvref_t<decltype(law)>;
      if (!parent.settled) {
        return with_target_law(policy, q_rows, p_rows, n, [&](const auto& rows, const auto& pi) {
          const beside all(rows, law);
          const double a = parent.accepted;
          left = walker_of(all).sum_stored(
              all, [&](auto at) { return positive(fma(a, pi(at), -at.proposal)); }, weights);
          parent.scale = 1;
          return status::ok;
        });
      } else if constexpr (requires { law.token(); }) {  // one token had all of L
        T& weight = weights[std::size_t(law.token())];
        left = positive(vec<double, 1>(parent.accepted - parent.scale * double(weight))).v;
        weight = 0;
      } else {
        const dense_row<T> before(weights, vocabulary);
        const row_pair<false, dense_row<T>, L> rows(before, law);
        const double scale = parent.scale;
        left = walker_of(rows).sum_stored(
            rows, [=](auto at) { return positive(fma(scale, at.q, -at.p)); }, weights);
        parent.scale = 1;
      }
      return status::ok;
    });
    if (s != status::ok) return s;
    parent.settled = true;
    const double failed = left + (1 - parent.accepted);  // the probability that the child failed
    const bool possible = failed > std::numeric_limits<double>::min();
    if (possible) parent.scale /= failed;
    parent.accepted = possible ? left / failed : 1;
    return status::ok;
  }

  // Node n is the last accepted one: draws the token after it from what n still owes, or from pi at a leaf.
  template <Chooser C>
  SPECAGG_FUNCTION void finish(std::size_t n, C& chooser, std::span<emission> out, tree_verdict& result) {
    const tree_node& last = node(n);
    result.node = std::uint32_t(n), result.accepted = result.emitted = last.depth;
    if (n > 0 && tree.end_of_text.contains(token(n))) return;
    if (!last.settled && !tree.bonus) return void(result.why = last.why);
    const std::uint32_t position = tree.start + last.depth;
    emission e{.from = last.settled ? origin::residual : origin::bonus, .why = last.why};
    const moment m{last.settled ? stream::residual : stream::bonus, position, tree.start};
    result.why = with_target_law(policy, q_rows, p_rows, n, [&](const auto& rows, const auto& pi) {
      if (vocabulary > 0 && rows.size() != vocabulary) return status::vocabulary_mismatch;
      if (last.settled) {
        const dense_row<T> left(owed(last), vocabulary);
        const beside all(rows, left);
        const auto weight = [](auto at) { return at.proposal; };
        if (draw_token<pair_sides>(all, pi, weight, m, chooser, work.sums, e) == status::ok) return status::ok;
      }
      return draw_token(rows, pi, pi, m, chooser, work.sums, e);  // a leaf, or round-off left nothing
    });
    if (result.why == status::ok) out[result.emitted++] = e;
  }
};

// The checks before a walk; then walk(state) from the root.
template <class Policy, class Laws, class QRows, class PRows, class T, class Walk>
SPECAGG_FUNCTION tree_verdict walk_tree(const draft_tree& tree, const Policy& policy, Laws& laws, QRows& q_rows,
                                        PRows& p_rows, std::span<emission> out, const tree_scratch<T>& work,
                                        Walk&& walk) {
  tree_verdict result;
  std::size_t owed_rows = 0, levels = 0;
  if (!valid(policy) || !link_tree(tree, work.nodes, owed_rows, levels) || out.size() < levels + 1)
    return result.why = status::invalid_parameter, result;
  tree_walk<Policy, Laws, QRows, PRows, T> state{tree, policy, laws, q_rows, p_rows, work, owed_rows};
  state.enter(0, 1);
  if (!state.enough_memory) return result.why = status::invalid_parameter, result;
  walk(state, result);
  return result;
}

}  // namespace detail

// Generalised traversal, from the leaves to the root:
//   visit(n, a):  owed = a pi_n                                            a: the claim on n
//     for each child (y, L):  visit(child, min(1, owed(y) / L(y)));  accepted: done
//                             owed = (owed - L)+ / (sum (owed - L)+ + 1 - a);  a = sum owed
//     accept n with probability a, and draw the next token from owed / a;  else n fails
//   visit(root, 1) always accepts.
// Arguments:
//   laws            laws[i] or laws(i): the row that the token of node i was drawn from, i >= 1: for drafts without
//                   replacement row_without (draft/row_without.hpp), for deterministic ones one_hot_row, else q
//   q_rows, p_rows  the rows of draft and target that follow node i, i >= 0. p_rows is asked for nodes where the walk
//                   goes, q_rows only if the policy reads the draft. Each may be asked for up to three times, laws
//                   twice; a processed_row or softmax_row that was normalised before costs no pass again
//   out             one emission more than the tree is deep
//   work            see tree_scratch; after the call its nodes say how each was visited
// A node whose own row is invalid is a leaf after which nothing can be drawn; reported if it is accepted. A chain of
// drafts is decided as by verify_block, coin for coin. The stored weights are of the rows' type: with floats a law is
// off by at most 4e-6 in total variation. No recursion and no allocation; time O(nodes + V rows visited).
template <class Policy, class Laws, class QRows, class PRows, Chooser C, class T>
SPECAGG_FUNCTION tree_verdict verify_tree(const draft_tree& tree, Laws&& laws, QRows&& q_rows, PRows&& p_rows,
                                          const Policy& policy, C& chooser, std::span<emission> out,
                                          const tree_scratch<T>& work) {
  return detail::walk_tree(tree, policy, laws, q_rows, p_rows, out, work, [&](auto& state, tree_verdict& result) {
    std::size_t n = 0;
    for (;;) {
      tree_node& here = state.node(n);
      double owes = 0, drawn = 1;
      if (const std::size_t c = state.next_child(n, owes, drawn)) {
        const double claim = owes < drawn ? owes / drawn : 1;
        out[here.depth] = {.token = state.token(c), .log_pi = state.node(c).log_pi, .log_p = state.node(c).log_p};
        state.node(c).claim = claim;
        if (claim > 0) state.enter(c, claim), n = c;
        else if (const status s = state.settle(n, c); s != status::ok) return void(result.why = s);
        continue;
      }
      const moment m{stream::coin, tree.start + here.depth - 1, tree.start, draft_tree::branch(n, here.depth)};
      if (n == 0 || chooser.coin(m, here.accepted, 1)) return state.finish(n, chooser, out, result);
      const std::size_t parent = tree.parents[n - 1];
      if (const status s = state.settle(parent, n); s != status::ok) return void(result.why = s);
      n = parent;
    }
  });
}

// Recursive rejection, from the root to the leaves: each child (y, L) is accepted with probability min(1, owed(y) /
// L(y)), where owed = pi at first and norm((owed - L)+) after each rejected child. The same law. Where all nodes of one
// depth have as many children it accepted at most as many tokens in expectation, in all cases that were enumerated; in
// ragged trees it may accept more. Arguments as for verify_tree. A chain is decided as by verify_token, coin for coin.
template <class Policy, class Laws, class QRows, class PRows, Chooser C, class T>
SPECAGG_FUNCTION tree_verdict verify_tree_recursive(const draft_tree& tree, Laws&& laws, QRows&& q_rows, PRows&& p_rows,
                                                    const Policy& policy, C& chooser, std::span<emission> out,
                                                    const tree_scratch<T>& work) {
  return detail::walk_tree(tree, policy, laws, q_rows, p_rows, out, work, [&](auto& state, tree_verdict& result) {
    std::size_t n = 0;
    double owes = 0, drawn = 1;
    while (const std::size_t c = state.next_child(n, owes, drawn)) {
      const std::uint32_t depth = state.node(c).depth;
      out[depth - 1] = {.token = state.token(c), .log_pi = state.node(c).log_pi, .log_p = state.node(c).log_p};
      const moment m{stream::coin, tree.start + depth - 1, tree.start, draft_tree::branch(c, depth)};
      state.node(c).claim = owes < drawn ? owes / drawn : 1;
      if (chooser.coin(m, owes, drawn)) state.enter(c, 1), n = c;
      else if (const status s = state.settle(n, c); s != status::ok) return void(result.why = s);
    }
    state.finish(n, chooser, out, result);
  });
}

// How a tree is verified: verify(tree, laws, q_rows, p_rows, policy, chooser, out, work), as verify_tree.
struct traversal {
  template <class... A>
  tree_verdict verify(A&&... a) const {
    return verify_tree(a...);
  }
};
struct recursive_rejection {
  template <class... A>
  tree_verdict verify(A&&... a) const {
    return verify_tree_recursive(a...);
  }
};

SPECAGG_END
