// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft: the best fixed number, and a controller that stops drafting when one more token costs more
// than it is worth.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include <specagg/kernel/math.hpp>
#include <specagg/plan/speedup.hpp>

SPECAGG_BEGIN
namespace plan {

// The gamma in 0..most with the most tokens per cost; of equals the smallest. cost(gamma) is the cost of a round, > 0,
// in any unit; cost(0) is that of the target alone. Every gamma is tried, because costs may jump (a kernel's tile
// sizes).
struct fixed_draft {
  std::size_t gamma = 0;
  double rate = 0;  // tokens per cost; if costs are in steps of the target, the speed-up
};
template <class Cost>
fixed_draft best_fixed_draft(std::span<const double> a, Cost&& cost) {
  fixed_draft best{0, 1 / cost(std::size_t(0))};
  double tokens = 1, reached = 1;
  for (std::size_t g = 1; g <= a.size(); ++g) {
    tokens = fma(reached, a[g - 1], tokens), reached *= a[g - 1];
    if (const double rate = tokens / cost(g); rate > best.rate) best = {g, rate};
  }
  return best;
}
template <class Cost>
fixed_draft best_fixed_draft(double a, Cost&& cost, std::size_t most) {
  fixed_draft best{0, 1 / cost(std::size_t(0))};
  double tokens = 1, reached = 1;
  for (std::size_t g = 1; g <= most; ++g) {
    tokens = fma(reached, a, tokens), reached *= a;
    if (const double rate = tokens / cost(g); rate > best.rate) best = {g, rate};
  }
  return best;
}
// The same, for the rate E / (c gamma + v(gamma)).
template <class V>
fixed_draft best_fixed_gamma(double a, double c, V&& v, std::size_t most) {
  const auto cost = [&](std::size_t g) { return fma(c, double(g), double(v(g))); };
  return best_fixed_draft(a, cost, most);
}

// Costs, all in one unit and measured by the caller: in seconds, or in steps of the target (then target = 1, draft =
// c).
struct draft_costs {
  double target = 1;  // a round without drafts: one target step, and the link's cost per round
  double draft = 0;   // one draft step
  double verify = 0;  // each scored token after the first
  double link = 0;    // each drafted token that is sent: bits / rate
  constexpr double token() const { return draft + verify + link; }
  double round(std::size_t draft_steps, std::size_t scored) const {
    return fma(draft, double(draft_steps), fma(verify + link, double(scored), target));
  }
};
// The marginal-value rule. Draft token k while the probability that it is emitted, prod_{j<=k} a_j, is at least rho
// times its cost. rho is the decoder's rate: emitted tokens per unit of cost.
constexpr bool worth_drafting(double reached, double rho, const draft_costs& c) { return reached >= rho * c.token(); }

// How confident the draft model is of a row, in [0, 1]. Either max q, which softmax has already computed; or 1 -
// sqrt(kappa H(q)) with kappa = 1 / ln V and H the entropy in nats, which is a little better and costs one more pass.
inline double confidence_of_entropy(double entropy, std::size_t vocabulary) {
  const double most = vocabulary > 1 ? log(double(vocabulary)) : 1;
  return 1 - std::sqrt(std::clamp(entropy / most, 0.0, 1.0));
}

// Predicts a_k before p is known. It is the mean of the measured overlaps sum min(q, pi) of rows with about the same
// confidence, in 16 classes of [0, 1]. A class starts at 0.3 + 0.7 confidence, with the weight of 4 measurements. The
// weight of a measurement fades by 1 in 1000 with every later one of its class. `seen` counts the rows of each class,
// also those that no token was drafted from; a count fades by 1 in 500 with every row. It predicts the class of the
// next row. A confidence below 0 or NaN counts as 0, one above 1 as 1.
struct acceptance_predictor {
  static constexpr std::size_t classes = 16;
  std::array<double, classes> sum, weight, seen;

  constexpr acceptance_predictor() : sum(), weight(), seen() {
    for (std::size_t i = 0; i < classes; ++i)
      weight[i] = 4, seen[i] = 1, sum[i] = 4 * (0.3 + 0.7 * (double(i) + 0.5) / double(classes));
  }
  static constexpr std::size_t class_of(double confidence) {
    return confidence > 0 ? std::min(std::size_t(std::min(confidence, 1.0) * classes), classes - 1) : 0;
  }
  constexpr double mean(std::size_t i) const { return sum[i] / weight[i]; }
  constexpr double operator()(double confidence) const { return mean(class_of(confidence)); }
  void see(double confidence) {
    const std::size_t c = class_of(confidence);
    for (std::size_t i = 0; i < classes; ++i) seen[i] = fma(seen[i], 1 - 1.0 / 500, i == c ? 1.0 : 0.0);
  }
  void observe(double confidence, double overlap) {
    if (!(overlap >= 0)) return;  // a NaN would stay in the sum forever
    const std::size_t i = class_of(confidence);
    sum[i] = fma(sum[i], 1 - 1.0 / 1000, overlap), weight[i] = fma(weight[i], 1 - 1.0 / 1000, 1.0);
  }
};

// Decides, token by token, whether to draft on. For each round
//   c.begin();
//   while (g < most && c.another()) {         // is one more draft step worth its cost, before its row is known?
//     make the draft row of position g;
//     if (!c.keep(max q)) break;              // the row is known now (untempered): is drafting from it worth the cost?
//     draw token g from the row, g += 1;
//   }
//   verify; c.observe(acceptances of the g drafted positions, tokens emitted, draft steps made);
// speculative_round (decode/speculative.hpp) calls it in this way.
//
// The rule above needs the row of token k, which costs a draft step. So it is split into two tests, with R = prod a_j
// of the tokens drafted so far. `another`, before the step, averages over the rows seen: E max(0, R a - rho (verify +
// link)) >= rho draft. `keep`, after the step: R a_k >= rho (verify + link). So a round may end with a row that no
// token is drawn from.
//
// rho is tokens over cost of the last rounds, fading by 1 in 100. It starts with 4 rounds of the best fixed draft at
// acceptance 0.65. Every 32nd round drafts one token even if the rule says no. If drafting does not pay, this keeps the
// predictor informed, for 1/32 of the cost of a drafted token per round. All numbers are plain doubles with exactly
// rounded operations, so the same costs give the same drafts on every machine. tests/decode/speculative.models.test.cpp
// prints its tokens per cost beside those of the best fixed gamma, with max q as confidence, and asserts at least 97 %
// of them.
struct draft_length_controller {
  static constexpr bool reads_acceptances = true, reads_confidence = true;
  static constexpr std::size_t most = 64;  // most tokens drafted in a round; then `another` is false
  draft_costs cost;
  acceptance_predictor acceptance;
  double tokens = 0, spent = 0;  // fading sums
  double reached = 1;
  std::size_t round = 0, kept = 0;
  std::array<double, most> confidence = {};  // of the rows kept in this round

  explicit constexpr draft_length_controller(const draft_costs& c = {}) : cost(c) {}

  double rho() const { return tokens / spent; }
  bool explores() const { return kept == 0 && round % 32 == 0; }
  void begin() {
    if (!(spent > 0)) {
      const auto of = [&](std::size_t g) { return cost.round(g, g); };
      const fixed_draft start = best_fixed_draft(0.65, of, 16);
      spent = 4 * of(start.gamma), tokens = start.rate * spent;
    }
    reached = 1, kept = 0, ++round;
  }
  bool another() const {
    if (kept >= most) return false;
    if (explores()) return true;
    const double price = rho() * (cost.verify + cost.link);
    double worth = 0, all = 0;
    for (std::size_t i = 0; i < acceptance_predictor::classes; ++i) {
      worth = fma(acceptance.seen[i], std::max(0.0, fma(reached, acceptance.mean(i), -price)), worth);
      all += acceptance.seen[i];
    }
    return worth >= rho() * cost.draft * all;
  }
  bool keep(double row_confidence) {
    acceptance.see(row_confidence);
    const double next = reached * acceptance(row_confidence);
    if (kept >= most || !(explores() || next >= rho() * (cost.verify + cost.link))) return false;
    confidence[kept++] = row_confidence, reached = next;
    return true;
  }
  void observe(std::span<const draft_acceptance> drafted, std::size_t emitted, std::size_t draft_steps) {
    for (std::size_t k = 0; k < std::min(drafted.size(), kept); ++k) {
      acceptance.observe(confidence[k], drafted[k].of_row);
      if (!(drafted[k].of_token > 0)) break;  // after a certain rejection a verifier may measure nothing
    }
    tokens = fma(tokens, 1 - 1.0 / 100, double(emitted));
    spent = fma(spent, 1 - 1.0 / 100, cost.round(draft_steps, drafted.size()));
  }
};

}  // namespace plan
SPECAGG_END
