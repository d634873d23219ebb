// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft: the best fixed number, and a controller that stops drafting when one
// more token costs more than it is worth.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <specagg/kernel/math.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN
namespace plan {

// The gamma in 0..most with the most tokens per cost; the smallest of equals. cost(gamma) is the
// cost of a round, > 0, in any unit; cost(0) is the cost of the target alone. Every gamma is tried,
// because costs may jump (a kernel's tile sizes).
struct fixed_draft {
  std::size_t gamma = 0;
  double rate = 0;  // tokens per cost; if costs are in steps of the target, the speed-up
};
// a[k]: the acceptance of drafted token k if the tokens before it were accepted, most = a.size();
// or one acceptance for all.
fixed_draft best_fixed_draft(std::span<const double> a, auto&& cost) {
  fixed_draft best{0, 1 / cost(std::size_t(0))};
  double tokens = 1, reached = 1;
  for (std::size_t g = 1; g <= a.size(); ++g) {
    tokens = fma(reached, a[g - 1], tokens);
    reached *= a[g - 1];
    if (const double rate = tokens / cost(g); rate > best.rate) best = {g, rate};
  }
  return best;
}
fixed_draft best_fixed_draft(double a, auto&& cost, std::size_t most) {
  fixed_draft best{0, 1 / cost(std::size_t(0))};
  double tokens = 1, reached = 1;
  for (std::size_t g = 1; g <= most; ++g) {
    tokens = fma(reached, a, tokens);
    reached *= a;
    if (const double rate = tokens / cost(g); rate > best.rate) best = {g, rate};
  }
  return best;
}
// The best fixed draft where a draft of gamma tokens costs c gamma + v(gamma).
fixed_draft best_fixed_gamma(double a, double c, auto&& v, std::size_t most) {
  const auto cost = [&](std::size_t g) { return fma(c, double(g), double(v(g))); };
  return best_fixed_draft(a, cost, most);
}

// Costs, all in one unit and measured by the caller: in seconds, or in steps of the target (then
// target = 1, draft = c).
struct draft_costs {
  // a round without drafts: one target step, and the link's cost per round
  double target = 1;
  double draft = 0;   // one row of the drafter; 0 for a lookup
  double verify = 0;  // each scored token after the first
  double link = 0;    // each drafted token that is sent: bits / rate
  // one row of drafter 1, 2 and 3, where there are several (draft/first_of.hpp)
  std::array<double, 3> others = {};
  // The cost of scoring n drafted tokens beyond verify n: element n - 1 for n = 1..8, the last
  // element for more. For kernels whose cost jumps.
  std::array<double, 8> jumps = {};
  constexpr double token() const { return draft + verify + link; }
  constexpr double row(std::size_t drafter) const {
    return drafter == 0 ? draft : others[drafter - 1];
  }
  double scoring(std::size_t n) const {
    return n == 0 ? 0 : fma(verify + link, double(n), jumps[std::min(n, jumps.size()) - 1]);
  }
  double round(std::size_t draft_steps, std::size_t scored) const {
    return fma(draft, double(draft_steps), target + scoring(scored));
  }
  // asked: the rows asked of each drafter, at most 4.
  double round(std::span<const std::size_t> asked, std::size_t scored) const {
    double price = target + scoring(scored);
    for (std::size_t k = 0; k < std::min(asked.size(), 1 + others.size()); ++k)
      price = fma(row(k), double(asked[k]), price);
    return price;
  }
};
// Predicts a_k before p is known, for a row at depth d of a draft: d tokens are drafted before it.
// It learns from measured overlaps sum min(q, pi) of rows. Rows belong to 16 classes by confidence,
// equal parts of [0, 1]. A confidence below 0 or NaN counts as 0, a confidence above 1 as 1.
//   prediction     mean x at_depth(d), at most 1
//   mean           of the overlaps of the row's class, with a prior of weight 4 at scale() x first
//                  guess; at most 1
//   first guess    0.3 + 0.7 confidence, for the middle of the class
//   scale()        the sum of the overlaps of all classes / the sum of the first guesses for their
//                  rows. So a class without measurements learns from the other classes
//   at_depth(d)    the sum of the overlaps at depth d / the sum of the means of their classes.
//                  Depths above 3 count as 3. A draft model may predict later tokens worse (a head
//                  reads the target's states until the first token), or better
//   seen           the number of rows of each class, also of rows without a drafted token. It
//                  predicts the class of the next row
// Both quotients have 4 guesses of 0.65 added above and below. The weight of a measurement fades by
// 1 in 1000 with every later measurement: in `mean` of its class, in scale() of any class, in
// at_depth() of its depth. at_depth(1) and deeper also fade by 1 in 500 with every round, because a
// depth that was found bad may not be drafted again. `seen` fades by 1 in 500 with every row.
struct acceptance_predictor {
  static constexpr std::size_t classes = 16, depths = 4;
  static constexpr double fade = 1 - 1.0 / 1000;
  struct measured {
    double overlaps = 0;
    std::array<double, classes> rows = {};
    void multiply(double x) {
      overlaps *= x;
      for (double& r : rows) r *= x;
    }
  };
  std::array<double, classes> sum = {}, weight = {}, seen;
  double overlaps = 0, expected = 0;
  std::array<measured, depths> of_depth = {};  // for at_depth()

  constexpr acceptance_predictor() : seen() { seen.fill(1); }
  // The class of a confidence, its first guess, and a quotient with 4 guesses of 0.65, as above.
  static constexpr std::size_t class_of(double confidence) {
    return confidence > 0 ? std::min(std::size_t(std::min(confidence, 1.0) * classes), classes - 1)
                          : 0;
  }
  static double first_guess(std::size_t i) {
    return fma(0.7, (double(i) + 0.5) / double(classes), 0.3);
  }
  static double ratio(double is, double was_expected) {
    return (4 * 0.65 + is) / (4 * 0.65 + was_expected);
  }
  double scale() const { return ratio(overlaps, expected); }
  double mean(std::size_t i) const {
    return std::min(fma(4 * scale(), first_guess(i), sum[i]) / (weight[i] + 4), 1.0);
  }
  double at_depth(std::size_t depth) const {
    const measured& here = of_depth[std::min(depth, depths - 1)];
    double means = 0;
    for (std::size_t i = 0; i < classes; ++i) means = fma(here.rows[i], mean(i), means);
    return ratio(here.overlaps, means);
  }
  double operator()(double confidence, std::size_t depth = 0) const {
    return std::min(mean(class_of(confidence)) * at_depth(depth), 1.0);
  }
  // The mean of f(acceptance at this depth) over the rows seen.
  double over_seen(std::size_t depth, auto&& f) const {
    const double here = at_depth(depth);
    double total = 0, rows = 0;
    for (std::size_t i = 0; i < classes; ++i) {
      total = fma(seen[i], double(f(std::min(mean(i) * here, 1.0))), total);
      rows += seen[i];
    }
    return total / rows;
  }
  // A row was seen; a round begins; the overlap of a row at this depth was measured.
  void see(double confidence) {
    const std::size_t c = class_of(confidence);
    for (std::size_t i = 0; i < classes; ++i)
      seen[i] = fma(seen[i], 1 - 1.0 / 500, i == c ? 1.0 : 0.0);
  }
  void begin_round() {
    for (std::size_t d = 1; d < depths; ++d) of_depth[d].multiply(1 - 1.0 / 500);
  }
  void observe(double confidence, double overlap, std::size_t depth = 0) {
    if (!(overlap >= 0)) return;  // a NaN would stay in the sum forever
    const std::size_t i = class_of(confidence);
    sum[i] = fma(sum[i], fade, overlap);
    weight[i] = fma(weight[i], fade, 1.0);
    overlaps = fma(overlaps, fade, overlap);
    expected = fma(expected, fade, first_guess(i));
    measured& here = of_depth[std::min(depth, depths - 1)];
    here.multiply(fade);
    here.overlaps += overlap;
    here.rows[i] += 1;
  }
};

// Predicts the acceptances of a draft's tokens before p is known, for up to 4 drafters. It reads
// rows and measured acceptances, and no token. It is a length (decode/length.hpp: begin, another,
// keep, observe) that refuses no row. draft_length_controller, which refuses rows, derives
// from it.
struct draft_forecast {
  static constexpr bool reads_acceptances = true, reads_confidence = true;
  // most tokens drafted in a round; then `another` is false
  static constexpr std::size_t most = 64;
  static constexpr std::size_t most_drafters = 4;
  std::size_t drafters = 1;
  std::array<acceptance_predictor, most_drafters> acceptance = {};
  // m_d, of each drafter: the mean of the acceptances predicted at depth d for the rows seen
  std::array<std::array<double, acceptance_predictor::depths>, most_drafters> mean = {};
  double reached = 1;    // the product of the acceptances of the rows kept
  std::size_t kept = 0;  // rows, in this round
  // rounds since a token of this drafter was measured
  std::array<std::size_t, most_drafters> unmeasured = {};
  std::array<double, most> confidence = {};     // of the rows kept in this round
  std::array<std::uint8_t, most> drafter = {};  // which drafter gave them

  void begin() {
    reached = 1;
    kept = 0;
    for (std::size_t k = 0; k < drafters; ++k) {
      ++unmeasured[k];
      acceptance[k].begin_round();
      for (std::size_t d = 0; d < mean[k].size(); ++d)
        mean[k][d] = acceptance[k].over_seen(d, [](double a) { return a; });
    }
  }
  bool another(std::size_t /*drafter*/) const { return kept < most; }
  bool keep(std::size_t k, double row_confidence) {
    acceptance[k].see(row_confidence);
    if (kept >= most) return false;
    add(k, row_confidence, acceptance[k](row_confidence, kept));
    return true;
  }
  void observe(std::span<const draft_acceptance> drafted, std::size_t /*emitted*/,
               std::span<const std::size_t> /*asked*/) {
    for (std::size_t k = 0; k < std::min(drafted.size(), kept); ++k) {
      acceptance[drafter[k]].observe(confidence[k], drafted[k].of_row, k);
      unmeasured[drafter[k]] = 0;
      // after a certain rejection a verifier may measure nothing
      if (!(drafted[k].of_token > 0)) break;
    }
  }
  // Keeps a row whose acceptance is predicted as a.
  void add(std::size_t k, double row_confidence, double a) {
    confidence[kept] = row_confidence;
    drafter[kept] = std::uint8_t(k);
    ++kept;
    reached *= a;
  }
  // The acceptance expected of a row of drafter k after n rows.
  double expected(std::size_t k, std::size_t n) const {
    return mean[k][std::min(n, mean[k].size() - 1)];
  }
  // For draft_load, with one drafter. The gain of a token beyond this price before its row is
  // known: the mean over the rows seen.
  double gain(double price) const {
    return acceptance[0].over_seen(
        kept, [&](double a) { return std::max(0.0, fma(reached, a, -price)); });
  }
  // The acceptance expected n tokens after the last row kept.
  double expected_after(std::size_t n) const { return expected(drafter[kept - 1], kept + n); }
  // Whether `rows` rows were kept, and the drafter of the first is stale (of no rows: drafter 0).
  bool stale_after(std::size_t rows, double row_cost) const {
    return kept == rows && stale(rows > 0 ? drafter[0] : 0, row_cost);
  }
  // Whether no token of drafter k was measured for 32 rounds, or for more rounds if drafting a
  // token costs more than 1/100 of them. cost: of drafting a token, in rounds without drafts.
  bool stale(std::size_t k, double cost) const {
    return double(unmeasured[k]) >= std::max(32.0, 100 * cost);
  }
};

// Decides, token by token, whether to draft on, and which of several drafters proposes the token.
// For each round
//   c.begin();
//   while (g < most) {                     // drafters k = 0, 1, ... in turn, until one is kept
//     if (!c.another(k)) next k;           // is a row of drafter k worth its cost, not known yet?
//     make the row;                        // if there is none: next k
//     if (!c.keep(k, confidence)) next k;  // the row is known now: draft from it?
//     draw token g from the row, g += 1;   // if no drafter was kept, the draft ends
//   }
//   verify;
//   c.observe(acceptances of the g drafted positions, tokens emitted, rows asked of each drafter);
// speculative_round (decode/speculative.hpp) calls it in this way.
//
// With R = prod a_j of the tokens drafted so far, g tokens, a the acceptance predicted for the next
// row, and m_d the mean over the rows seen as if they were at depth d, drafting n more tokens is
// worth
//   worth(R, a) = max_n  R a (1 + m_(g+1) + ... + m_(g+1) ... m_(g+n-1))
//                        - rho (scoring(g + n) - scoring(g) + (n - 1) row)
// tokens. If scoring has no jumps, n = 1 decides the sign: one more token is drafted if it brings
// at least its cost. This rule needs the row, which costs a draft step, so it is split into two
// tests. `another`, before the step, averages over the rows seen: E max(0, worth(R, a)) >= rho row.
// `keep`, after the step: worth(R, a) >= 0, and not less than E max(0, worth(R, a)) - rho row, the
// worth of asking a later drafter. The last row of a round may thus have no token drawn from it.
//
// rho is tokens over cost of the last rounds, fading by 1 in 100. It starts with 4 rounds of the
// best fixed draft at acceptance 0.65. Each drafter has a predictor of its own. A predictor needs
// measurements also while drafting does not pay. So a round drafts one token against the rule if no
// token of that drafter was measured for 32 rounds, or for more rounds if the token costs more than
// 1/100 of them. All numbers are plain doubles with exactly rounded operations, so the same costs
// give the same drafts on every machine. tests/decode/speculative.models.slow.test.cpp prints the
// controller's tokens per cost beside those of the best fixed gamma, with max q as confidence, and
// asserts that the controller has at least 97 % of the best fixed gamma's.
struct draft_length_controller : draft_forecast {
  draft_costs cost;
  // fading sums
  double tokens = 0, spent = 0;

  // number_of_drafters: at most 4; their costs are cost.draft and cost.others.
  explicit constexpr draft_length_controller(const draft_costs& c = {},
                                             std::size_t number_of_drafters = 1)
      : draft_forecast{.drafters = number_of_drafters}, cost(c) {}

  double rho() const { return tokens / spent; }
  // worth(R, a), of a row of drafter k.
  double worth(std::size_t k, double a) const {
    double best = -infinity, gained = 0, next = reached * a;
    for (std::size_t n = 1; n <= 1 + cost.jumps.size() && kept + n <= most; ++n) {
      gained += next;
      next *= expected(k, kept + n);
      const double price =
          fma(cost.row(k), double(n - 1), cost.scoring(kept + n) - cost.scoring(kept));
      best = std::max(best, fma(-rho(), price, gained));
    }
    return best;
  }
  // The worth of a row of drafter k before it is known, less its cost.
  double promises(std::size_t k) const {
    return acceptance[k].over_seen(kept, [&](double a) { return std::max(0.0, worth(k, a)); }) -
           rho() * cost.row(k);
  }
  bool explores(std::size_t k) const {
    return kept == 0 && stale(k, (cost.row(k) + cost.scoring(1)) / cost.target);
  }
  void begin() {
    if (!(spent > 0)) {
      const auto of = [&](std::size_t g) { return cost.round(g, g); };
      const fixed_draft start = best_fixed_draft(0.65, of, 16);
      spent = 4 * of(start.gamma);
      tokens = start.rate * spent;
    }
    draft_forecast::begin();
  }
  bool another(std::size_t k) const { return kept < most && (explores(k) || promises(k) >= 0); }
  bool keep(std::size_t k, double row_confidence) {
    acceptance[k].see(row_confidence);
    if (kept >= most) return false;
    const double a = acceptance[k](row_confidence, kept), value = worth(k, a);
    bool better = value >= 0;
    for (std::size_t later = k + 1; later < drafters && better; ++later)
      better = value >= promises(later);
    if (!better && !explores(k)) return false;
    add(k, row_confidence, a);
    return true;
  }
  // asked: the rows asked of each drafter. A lookup that proposed nothing was asked, too.
  void observe(std::span<const draft_acceptance> drafted, std::size_t emitted,
               std::span<const std::size_t> asked) {
    draft_forecast::observe(drafted, emitted, asked);
    tokens = fma(tokens, 1 - 1.0 / 100, double(emitted));
    spent = fma(spent, 1 - 1.0 / 100, cost.round(asked, drafted.size()));
  }
};

}  // namespace plan
SPECAGG_END
