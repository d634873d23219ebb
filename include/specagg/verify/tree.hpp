// SPDX-License-Identifier: Apache-2.0
// Verification of a tree of drafts towards any law pi.
//
// verify_tree follows Traversal Verification (Weng et al. 2025, arXiv:2505.12398), with any law pi,
// and with any conditional law that a child may have been drawn from. verify_tree_recursive is what
// engines do today (SpecInfer, EAGLE). docs/trees.md has the proof and what each accepts.
// Proved: proofs/tree.v, `verify_tree_emits_pi`, `verify_tree_recursive_emits_pi`.
#pragma once
#include <specagg/verify/detail/tree_walk.hpp>
#include <specagg/verify/draft_tree.hpp>

SPECAGG_BEGIN

// Draws the token of node i of a tree, 1 <= i <= size, at this depth (1 for a child of the root),
// from the row that it is proposed from, laws[i] of verify_tree. Each node has a random number of
// its own; in a chain it is draw_draft's. start: as in draft_tree. The rest, and the result, as for
// draw_draft (verify/verify.hpp).
template <Row R, Chooser C>
token_id draw_node(const R& row, std::uint32_t start, std::size_t i, std::uint32_t depth,
                   C&& chooser, std::span<double> scratch) {
  const moment m{stream::draft, start + depth - 1, start, draft_tree::branch(i, depth)};
  return specagg::draw_draft(row, m, chooser, scratch);
}

namespace detail {

// Checks the arguments, then calls walk(state, result) at the root.
template <class Policy, class Laws, class QRows, class PRows, class T, class Walker, class Walk>
SPECAGG_FUNCTION tree_verdict walk_tree(const draft_tree& tree, const Policy& policy, Laws& laws,
                                        QRows& q_rows, PRows& p_rows,
                                        const tree_memory<T, Walker>& work, Walk&& walk) {
  tree_verdict result;
  result.why = status::invalid_parameter;
  if (!specagg::valid(policy) || !is_tree(tree) || tree.bonus.is_given() ||
      work.nodes.size() < tree.size() + 1)
    return result;
  tree_walk<Policy, Laws, QRows, PRows, T, Walker> state{
      tree, {policy, q_rows, p_rows}, laws, work, 0};
  state.write([&] { link_tree(tree, work.nodes); });
  const tree_extent size = measure_tree(work.nodes.first(tree.size() + 1));
  if (work.out.size() < size.levels + 1) return result;
  result.why = status::ok;
  state.residual_rows = size.residual_rows;
  state.enter(0, 1);
  if (!state.enough_memory) {
    result.why = status::invalid_parameter;
    return result;
  }
  walk(state, result);
  return result;
}

}  // namespace detail

// Generalised traversal, from the leaves to the root:
//   visit(n, a):  residual = a pi_n                                            a: the claim on n
//     for each child (y, L):  visit(child, min(1, residual(y) / L(y)));  accepted: done
//                             residual = (residual - L)+ / (sum (residual - L)+ + 1 - a);  a = sum
//                             residual
//     accept n with probability a, and draw the next token from residual / a;  else n fails
//   visit(root, 1) always accepts.
// Contract: specagg.hpp. A node whose own row is invalid is a leaf after which nothing can be
// drawn; reported if it is accepted. A chain of drafts is decided as by verify_block, coin for
// coin. The stored weights are of the rows' type: with floats a law is off by at most 4e-6 in total
// variation. No recursion and no allocation; time O(nodes + V rows visited).
template <class Policy, class Laws = detail::in_braces, class QRows = detail::in_braces,
          class PRows = detail::in_braces, Chooser C, class T, class Walker>
SPECAGG_FUNCTION tree_verdict verify_tree(const draft_tree& tree, Laws&& laws, QRows&& q_rows,
                                          PRows&& p_rows, const Policy& policy, C&& chooser,
                                          const tree_memory<T, Walker>& work) {
  return detail::walk_tree(tree, policy, laws, q_rows, p_rows, work,
                           [&](auto& state, tree_verdict& result) {
                             std::size_t n = 0;
                             for (;;) {
                               tree_node& here = state.node(n);
                               double left = 0, drawn = 1;
                               if (const std::size_t c = state.next_child(n, left, drawn)) {
                                 const double claim = left < drawn ? left / drawn : 1;
                                 // The type is named for nvcc, which takes no designated
                                 // initialisers in an assignment.
                                 work.out[here.depth] = emission{.token = state.token(c),
                                                                 .log_pi = state.node(c).log_pi,
                                                                 .log_p = state.node(c).log_p};
                                 state.write([&] { state.node(c).claim = claim; });
                                 if (claim > 0) {
                                   state.enter(c, claim);
                                   n = c;
                                 } else if (const status s = state.settle(n, c); s != status::ok)
                                   return void(result.why = s);
                                 continue;
                               }
                               const moment m{stream::coin, tree.start + here.depth - 1, tree.start,
                                              draft_tree::branch(n, here.depth)};
                               if (n == 0 || chooser.coin(m, here.accepted, 1))
                                 return state.finish(n, chooser, result);
                               const std::size_t parent = tree.parents[n - 1];
                               if (const status s = state.settle(parent, n); s != status::ok)
                                 return void(result.why = s);
                               n = parent;
                             }
                           });
}

// Recursive rejection, from the root to the leaves: each child (y, L) is accepted with probability
// min(1, residual(y) / L(y)), where residual = pi at first and norm((residual - L)+) after each
// rejected child. The law is that of verify_tree. If all nodes of one depth have the same number of
// children, it accepted at most as many tokens as verify_tree in expectation, in all cases that
// were enumerated. In ragged trees it may accept more. Arguments as for verify_tree. A chain is
// decided as by verify_token, coin for coin.
template <class Policy, class Laws = detail::in_braces, class QRows = detail::in_braces,
          class PRows = detail::in_braces, Chooser C, class T, class Walker>
SPECAGG_FUNCTION tree_verdict verify_tree_recursive(const draft_tree& tree, Laws&& laws,
                                                    QRows&& q_rows, PRows&& p_rows,
                                                    const Policy& policy, C&& chooser,
                                                    const tree_memory<T, Walker>& work) {
  return detail::walk_tree(
      tree, policy, laws, q_rows, p_rows, work, [&](auto& state, tree_verdict& result) {
        std::size_t n = 0;
        double left = 0, drawn = 1;
        while (const std::size_t c = state.next_child(n, left, drawn)) {
          const std::uint32_t depth = state.node(c).depth;
          work.out[depth - 1] = emission{.token = state.token(c),
                                         .log_pi = state.node(c).log_pi,
                                         .log_p = state.node(c).log_p};
          const moment m{stream::coin, tree.start + depth - 1, tree.start,
                         draft_tree::branch(c, depth)};
          state.write([&] { state.node(c).claim = left < drawn ? left / drawn : 1; });
          if (chooser.coin(m, left, drawn)) {
            state.enter(c, 1);
            n = c;
          } else if (const status s = state.settle(n, c); s != status::ok)
            return void(result.why = s);
        }
        state.finish(n, chooser, result);
      });
}

SPECAGG_END
