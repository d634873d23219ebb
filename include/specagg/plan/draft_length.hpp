// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft: the best fixed number, and a controller that stops drafting where a token more costs more
// than it brings.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include <specagg/kernel/math.hpp>
#include <specagg/plan/speedup.hpp>

SPECAGG_BEGIN
namespace plan {

// The gamma in 0..most with the most tokens per cost; cost(gamma): of a round, in any unit, > 0 (cost(0): the target
// alone). Of equals the smallest. Costs may jump (a kernel's tile sizes): every gamma is looked at.
struct fixed_draft {
  std::size_t gamma = 0;
  double rate = 0;  // tokens per cost; with costs in steps of the target, the speed-up
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
// Of E / (c gamma + v(gamma)).
template <class V>
fixed_draft best_fixed_gamma(double a, double c, V&& v, std::size_t most) {
  const auto cost = [&](std::size_t g) { return fma(c, double(g), double(v(g))); };
  return best_fixed_draft(a, cost, most);
}

// Costs in one unit, all measured outside: seconds, or steps of the target (then target = 1, draft = c).
struct draft_costs {
  double target = 1;  // a round without drafts: one target step, and what a link adds to every round
  double draft = 0;   // one draft step
  double verify = 0;  // each token scored beyond the first
  double link = 0;    // each drafted token sent: bits / rate
  constexpr double token() const { return draft + verify + link; }
  double round(std::size_t draft_steps, std::size_t scored) const {
    return fma(draft, double(draft_steps), fma(verify + link, double(scored), target));
  }
};
// The marginal-value rule: draft token k while prod_{j<=k} a_j, the chance that it is emitted, is worth its time to a
// decoder that makes rho tokens per unit of time otherwise.
constexpr bool worth_drafting(double reached, double rho, const draft_costs& c) { return reached >= rho * c.token(); }

// How sure the draft model is of a row, in [0, 1]: max q, which its softmax knows already, or, a little better and one
// more pass, 1 - sqrt(kappa H(q)) with kappa = 1 / ln V and H the entropy in nats.
inline double confidence_of_entropy(double entropy, std::size_t vocabulary) {
  const double most = vocabulary > 1 ? log(double(vocabulary)) : 1;
  return 1 - std::sqrt(std::clamp(entropy / most, 0.0, 1.0));
}

// a_k before p is known: the mean of the overlaps sum min(q, pi) measured where the confidence was about the same, in
// 16 classes of [0, 1]. Start: 0.3 + 0.7 confidence, with the weight of 4 measurements; each fades by 1 in 1000 with
// every later one of its class. `seen` counts the rows of each class, drafted from or not, fading by 1 in 500 with
// every row: what the next one may be like. 0, if it is NaN, or 1 is taken for a confidence outside [0, 1].
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
    if (!(overlap >= 0)) return;  // NaN would stay for good
    const std::size_t i = class_of(confidence);
    sum[i] = fma(sum[i], 1 - 1.0 / 1000, overlap), weight[i] = fma(weight[i], 1 - 1.0 / 1000, 1.0);
  }
};

// Decides, token by token, whether to draft on. For each round
//   c.begin();
//   while (g < most && c.another()) {         // is one more draft step worth it, whatever its row will be?
//     make the draft row of position g;
//     if (!c.keep(max q)) break;              // now that the row is known (untempered): is drafting from it worth it?
//     draw token g from the row, g += 1;
//   }
//   verify; c.observe(acceptances of the g drafted positions, tokens emitted, draft steps made);
// which is how speculative_round (decode/speculative.hpp) calls it.
// The rule above needs the row of token k, which costs a draft step. With R = prod a_j of the tokens kept so far it
// falls into two: `another` before the step, over the rows seen: E max(0, R a - rho (verify + link)) >= rho draft; and
// `keep` after it: R a_k >= rho (verify + link). So a round may end with a row that nothing is drawn from.
// rho: tokens over cost of the last rounds, fading by 1 in 100; it starts with 4 rounds of the best fixed draft at
// acceptance 0.65. Every 32nd round drafts a token whatever the rule says: where drafting does not pay, that keeps the
// predictor informed, for 1/32 of what a drafted token costs. Plain numbers, exactly rounded operations: the same costs
// give the same drafts on every machine. tests/decode/speculative.models.test.cpp prints its tokens per cost beside
// those of the best fixed gamma, confidence being max q, and asserts at least 97 % of them.
struct draft_length_controller {
  static constexpr bool reads_acceptances = true, reads_confidence = true;
  static constexpr std::size_t most = 64;  // drafted a round; `another` is false from there
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
      if (!(drafted[k].of_token > 0)) break;  // behind a certain rejection a verifier may have measured nothing
    }
    tokens = fma(tokens, 1 - 1.0 / 100, double(emitted));
    spent = fma(spent, 1 - 1.0 / 100, cost.round(draft_steps, drafted.size()));
  }
};

}  // namespace plan
SPECAGG_END
