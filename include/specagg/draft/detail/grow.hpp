// SPDX-License-Identifier: Apache-2.0
// A proposer of trees that grow: which nodes are worth children, and how many.
#pragma once
#include <algorithm>
#include <numeric>
#include <span>

#include <specagg/draft/propose.hpp>

SPECAGG_BEGIN
namespace detail {

// G: an object with the public members of plan::tree_growth.
template <class G>
struct growing_tree {
  G growth;
  // For each node: R, the probability that it is accepted, and q, its share of its parent's row. A
  // drawn node has the share that the likely ones left. Both have one element more than there may
  // be nodes: node 0 is the text.
  std::span<double> reached, shares;

  void begin() {
    growth.begin();
    reached[0] = 1;
  }
  // Whether the nodes [first, end), the deepest ones, are worth a draft step.
  bool worth_level(std::size_t first, std::size_t end) const {
    return growth.worth_level(std::accumulate(reached.begin() + std::ptrdiff_t(first),
                                              reached.begin() + std::ptrdiff_t(end), 0.0));
  }
  // Proposes up to `most` children of a node, as the nodes first, first + 1, ...: the most likely
  // tokens, and before them one drawn from the rest where that is worth it. Returns how many.
  //   row                    after the node. Without temperature it has one token alone: then the
  //                          shares are of the row at temperature 1
  //   tokens                 written by propose: the children's tokens
  //   propose(kind, count)   writes up to `count` children (propose_children), returns how many
  template <class R, class Propose>
  std::size_t children_of(std::size_t node, std::size_t first, std::size_t most, const R& row,
                          bool sampled, std::span<const token_id> tokens, Propose&& propose) {
    const double reach = reached[node];
    if (!growth.worth_node(reach)) return 0;
    const auto most_likely = shares.subspan(first, propose(proposal::top, most));
    const target_rows<true, R> rows(row);
    for (std::size_t i = 0; i < most_likely.size(); ++i) {
      const auto seen = specagg::at(rows, std::size_t(tokens[i]));
      most_likely[i] = as_double(sampled ? seen.p : seen.confidence_p);
    }
    const auto worth = growth.of_node(reach, most_likely, most, sampled);
    const std::size_t m = worth.most_likely;
    const std::size_t count = worth.draws ? propose(proposal::greedy, m + 1) : m;
    const std::size_t drawn = count - std::min(count, m);  // 0 or 1; it stands first
    double rest = 1;
    for (std::size_t i = std::min(count, m); i-- > 0;) {
      const double share = shares[first + i];
      shares[first + drawn + i] = share;
      reached[first + drawn + i] = growth.of_likely(reach, share);
      rest -= share;
    }
    if (drawn > 0) {
      shares[first] = rest;
      reached[first] = growth.of_drawn(reach, rest);
    }
    return count;
  }
  // The record of the path to node `last`: the shares that it offered, and its accepted nodes.
  // parents: by node, from node 1. is_drawn(n): whether node n was drawn.
  auto path_to(std::size_t last, std::span<const std::uint32_t> parents, auto&& is_drawn) const {
    typename G::path_record path;
    for (std::size_t n = last;; n = parents[n - 1]) {
      for (std::size_t i = 1; i <= parents.size(); ++i)
        if (parents[i - 1] == n) (is_drawn(i) ? path.drawn : path.likely) += shares[i];
      if (n == 0) return path;
      ++(is_drawn(n) ? path.accepted_drawn : path.accepted_likely);
    }
  }
};

}  // namespace detail
SPECAGG_END
