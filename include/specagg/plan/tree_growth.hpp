// SPDX-License-Identifier: Apache-2.0
// How far a tree of drafts grows: the marginal-value rule of plan/draft_length.hpp, on trees.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include <specagg/plan/draft_length.hpp>

SPECAGG_BEGIN
namespace plan {

// A node has the children that bring the most tokens beyond rho times the cost of scoring them; a
// level is drafted if its nodes together may bring rho times the cost of the draft step and of one
// node. rho is tokens over cost of the last rounds, and at least that of rounds without drafts.
//
// A node is reached with probability R. Its m most likely children have the shares q_1 >= q_2 ...
// of the draft's row, and one more child may be drawn from the rest. These children bring
//   R likely (q_1 + ... + q_m) + R drawn (1 - q_1 - ... - q_m)
// tokens; without a drawn child the second term is 0. `likely`, `drawn` and `level` are learned:
// the fractions of such shares, and of the levels after a node of the path, that were accepted in
// the last rounds. (If the draft is right on average, a deterministic token is accepted as often as
// its share says, and a drawn token less often.) The records of the three fade by 1 in 50 with
// every round, as rho does. Each starts as if five rounds had offered one share or level each, of
// which 0.8, 0.5 and 0.8 were accepted. In a round that offers nothing of a kind, the record of the
// kind moves back to its start by 1 in 50, so that no kind is given up for good. All records start
// again after 32 rounds without a node.
//
// tree_round (decode/tree.hpp) calls begin; worth_level for each level; worth_node, of_node,
// of_likely and of_drawn for its nodes; then observe. The tree is a function of the text, the
// drafted tokens and earlier rounds. A policy may read a row of the draft also in rounds without
// drafts. The cost of these rounds leaves it out: if this row costs much, fewer nodes are drafted
// than would pay.
struct tree_growth {
  static constexpr bool grows = true;
  struct record {
    double start;                              // the rate of five rounds at first
    double accepted = 5 * start, offered = 5;  // fading sums
    double rate() const { return std::min(1.0, accepted / offered); }
    void observe(std::size_t of_accepted, double of_offered) {
      const bool none = !(of_offered > 0);
      accepted = fma(accepted, fade, none ? (1 - fade) * 5 * start : double(of_accepted));
      offered = fma(offered, fade, none ? (1 - fade) * 5 : of_offered);
    }
  };
  struct children {
    std::size_t most_likely = 0;  // how many of the most likely tokens
    bool draws = false;           // whether one more is drawn from the rest
  };
  // The record of one round, on the path that was accepted.
  struct path_record {
    double likely = 0, drawn = 0;  // shares offered by the nodes of the path
    std::size_t accepted_likely = 0, accepted_drawn = 0;
    std::size_t levels = 0;  // drafted after a node of the path, also where no child was worth it
  };
  static constexpr double fade = 1 - 1.0 / 50;
  draft_costs cost;
  record likely{0.8}, drawn{0.5}, level{0.8};
  double tokens = 0, spent = 0;  // fading sums
  std::size_t idle = 0;          // rounds without a node, one after another

  explicit constexpr tree_growth(const draft_costs& c = {}) : cost(c) {}

  // Tokens per unit of cost; and the tokens that the cost of one more node would be worth.
  double rho() const { return std::max(tokens / spent, 1 / cost.target); }
  double price() const { return rho() * (cost.verify + cost.link); }
  void begin() {
    if (spent > 0 && idle < 32) return;
    likely = {0.8};
    drawn = {0.5};
    level = {0.8};
    idle = 0;
    tokens = 5;
    spent = 5 * cost.target;
  }
  // reached: the sum of the probabilities with which the nodes of the deepest level are accepted.
  bool worth_level(double reached) const { return reached * level.rate() >= rho() * cost.token(); }
  // Whether a node that is accepted with probability `reached` may have a child at all.
  bool worth_node(double reached) const {
    return reached > 0 && reached * std::max(likely.rate(), drawn.rate()) >= price();
  }
  // The probability with which a child is accepted; rest: 1 minus the shares of the likely tokens.
  double of_likely(double reached, double share) const { return reached * likely.rate() * share; }
  double of_drawn(double reached, double rest) const { return reached * drawn.rate() * rest; }
  // shares: of the most likely tokens, descending; room: children at most.
  children of_node(double reached, std::span<const double> shares, std::size_t room,
                   bool may_draw) const {
    children best;
    if (!(reached > 0)) return best;
    double most = 0;
    for (const bool draws : {false, true}) {
      if (draws && (!may_draw || room == 0)) continue;
      // Beside a drawn token a likely token brings only what the drawn token would not have
      // brought.
      const double rate = reached * (draws ? likely.rate() - drawn.rate() : likely.rate());
      const auto brings = [&](double share) { return fma(rate, share, -price()); };
      double worth = draws ? fma(reached, drawn.rate(), -price()) : 0, rest = 1;
      std::size_t m = 0;
      for (; m + draws < room && m < shares.size() && shares[m] > 0 && brings(shares[m]) >= 0;
           ++m) {
        worth += brings(shares[m]);
        rest -= shares[m];
      }
      // a rest of round-off is no rest
      if (draws ? worth > most && rest > 1e-6 : m > 0) {
        most = worth;
        best = {m, draws};
      }
    }
    return best;
  }
  void observe(const path_record& path, std::size_t emitted, std::size_t draft_steps,
               std::size_t nodes) {
    idle = nodes == 0 ? idle + 1 : 0;
    likely.observe(path.accepted_likely, path.likely);
    drawn.observe(path.accepted_drawn, path.drawn);
    level.observe(path.accepted_likely + path.accepted_drawn, double(path.levels));
    tokens = fma(tokens, fade, double(emitted));
    spent = fma(spent, fade, cost.round(draft_steps, nodes));
  }
};

}  // namespace plan
SPECAGG_END
