// SPDX-License-Identifier: Apache-2.0
// How far a tree of drafts grows: the marginal-value rule of plan/draft_length.hpp, on trees.
#pragma once
#include <algorithm>
#include <cstddef>

#include <specagg/plan/draft_length.hpp>

SPECAGG_BEGIN
namespace plan {

// A node is drafted if it is accepted with a probability of at least rho times the cost of scoring it; a level, if its
// nodes together may bring rho times the cost of the draft step and of one node. rho is tokens over cost of the last
// rounds, and at least that of rounds without drafts.
//
// The probability of a node is that of its parent, times the share of the draft's row that it stands for, times
// `acceptance`. Of a likeliest token the share is q, of the token that is drawn from the rest it is all of the rest:
// with p = q a child is accepted with the probability of its share. `acceptance` is the part of the shares that was
// accepted in the last rounds. It fades by 1 in 50 with every round, as rho does. Both start as those of five rounds
// with eight nodes and three levels, in which .8 of the shares were accepted, and start again after 32 rounds without a
// node.
//
// tree_round (decode/tree.hpp) calls begin, then worth_level and worth_node, then observe. The tree is a function of
// the text, the drafted tokens and earlier rounds.
struct tree_growth {
  static constexpr bool grows = true;
  draft_costs cost;
  double accepted = 0, shares = 0;  // fading sums
  double tokens = 0, spent = 0;
  std::size_t idle = 0;  // rounds without a node, one after another

  explicit constexpr tree_growth(const draft_costs& c = {}) : cost(c) {}

  double acceptance() const { return std::min(1.0, accepted / shares); }
  double rho() const { return std::max(tokens / spent, 1 / cost.target); }
  void begin() {
    if (shares > 0 && idle < 32) return;
    accepted = 8, shares = 10, idle = 0;
    spent = 5 * cost.round(3, 8), tokens = 5 * 2.5;
  }
  // reached: the probability that the node is accepted.
  bool worth_node(double reached) const { return reached > 0 && reached >= rho() * (cost.verify + cost.link); }
  // reached: the sum of these over the nodes that the level would follow.
  bool worth_level(double reached) const { return reached * acceptance() >= rho() * cost.token(); }
  // offered: the shares of all children of the nodes on the accepted path, of which `path` is the length.
  void observe(double offered, std::size_t path, std::size_t emitted, std::size_t draft_steps, std::size_t nodes) {
    constexpr double fade = 1 - 1.0 / 50;
    idle = nodes == 0 ? idle + 1 : 0;
    accepted = fma(accepted, fade, double(path)), shares = fma(shares, fade, offered);
    tokens = fma(tokens, fade, double(emitted)), spent = fma(spent, fade, cost.round(draft_steps, nodes));
  }
};

}  // namespace plan
SPECAGG_END
