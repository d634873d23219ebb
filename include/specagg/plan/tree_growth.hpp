// SPDX-License-Identifier: Apache-2.0
// How far a tree of drafts grows: the marginal-value rule of plan/draft_length.hpp, on trees.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include <specagg/plan/draft_length.hpp>

SPECAGG_BEGIN
namespace plan {

// A node is drafted if it is accepted with a probability of at least rho times the cost of scoring it; a level, if its
// nodes together may bring rho times the cost of the draft step and of one node. rho is tokens over cost of the last
// rounds, and at least that of rounds without drafts.
//
// With m of the likeliest tokens, of shares q_1 >= q_2 ... of the draft's row, the children of a node that is reached
// with probability R bring
//   R likely (q_1 + ... + q_m)                                           and, with one more, drawn from the rest,
//   R likely (q_1 + ... + q_m) + R drawn (1 - q_1 - ... - q_m)
// tokens; it has those that bring the most beyond their costs. `likely`, `drawn` and `level` are learned: the parts of
// these shares, and of the levels behind a node of the path, that were accepted in the last rounds. (A certain token
// of a draft that is right on average is accepted with the probability of its share, a drawn one more seldom.) They
// fade by 1 in 50 with every round, as rho does. They start as those of five rounds of one share or level, of which
// .8, .5 and .5 were accepted, and start again after 32 rounds without a node.
//
// tree_round (decode/tree.hpp) calls begin, then worth_level and of_node, then observe. The tree is a function of the
// text, the drafted tokens and earlier rounds.
struct tree_growth {
  static constexpr bool grows = true;
  struct record {
    double accepted = 0, offered = 0;  // fading sums
    double rate() const { return offered > 0 ? std::min(1.0, accepted / offered) : 1; }
    void observe(double of_accepted, double of_offered) {
      accepted = fma(accepted, fade, of_accepted), offered = fma(offered, fade, of_offered);
    }
  };
  struct children {
    std::size_t likeliest = 0;
    bool draws = false;  // one more from the rest
  };
  // Of one round, on the path that was accepted.
  struct path_record {
    double likely = 0, drawn = 0;  // shares that its nodes offered
    std::size_t accepted_likely = 0, accepted_drawn = 0;
    std::size_t levels = 0;  // drafted behind a node of the path, also where no child was worth it
  };
  static constexpr double fade = 1 - 1.0 / 50;
  draft_costs cost;
  record likely, drawn, level;
  double tokens = 0, spent = 0;  // fading sums
  std::size_t idle = 0;          // rounds without a node, one after another

  explicit constexpr tree_growth(const draft_costs& c = {}) : cost(c) {}

  double rho() const { return std::max(tokens / spent, 1 / cost.target); }
  void begin() {
    if (spent > 0 && idle < 32) return;
    likely = {4, 5}, drawn = level = {2.5, 5}, idle = 0;
    tokens = 5, spent = 5 * cost.target;
  }
  // reached: the probability that one of the nodes is accepted that the level would follow.
  bool worth_level(double reached) const { return reached * level.rate() >= rho() * cost.token(); }
  // reached: the probability that the node is accepted; shares: of the likeliest tokens, descending; room: children at
  // most.
  children of_node(double reached, std::span<const double> shares, std::size_t room, bool may_draw) const {
    const double price = rho() * (cost.verify + cost.link);
    children best;
    double most = 0;
    for (const bool draws : {false, true}) {
      if (draws && (!may_draw || room == 0)) continue;
      const double rate = reached * (draws ? likely.rate() - drawn.rate() : likely.rate());
      double worth = draws ? reached * drawn.rate() - price : 0;
      std::size_t m = 0;
      for (; m + draws < room && m < shares.size() && shares[m] > 0 && rate * shares[m] >= price; ++m)
        worth += rate * shares[m] - price;
      if ((draws || m > 0) && worth >= most) most = worth, best = {m, draws};
    }
    return best;
  }
  void observe(const path_record& path, std::size_t emitted, std::size_t draft_steps, std::size_t nodes) {
    idle = nodes == 0 ? idle + 1 : 0;
    likely.observe(double(path.accepted_likely), path.likely), drawn.observe(double(path.accepted_drawn), path.drawn);
    level.observe(double(path.accepted_likely + path.accepted_drawn), double(path.levels));
    tokens = fma(tokens, fade, double(emitted)), spent = fma(spent, fade, cost.round(draft_steps, nodes));
  }
};

}  // namespace plan
SPECAGG_END
