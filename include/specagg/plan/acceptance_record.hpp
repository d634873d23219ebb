// SPDX-License-Identifier: Apache-2.0
// Records of what was accepted, step by step, as engines write them; and what these say about
// drafts of any length.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/plan/acceptance.hpp>

SPECAGG_BEGIN
namespace plan {

// Counts of steps that verified a draft of at least one token. It is vLLM's record of a request,
// `metrics.speculative_decoding`, and AIPerf's, with `whole` beside it.
//   accepted[j]   steps that accepted exactly j drafted tokens: `acceptance_histogram`
//   whole[j]      of those, the steps that drafted no more than j tokens
//   drafted       drafted tokens of all steps: `num_draft_tokens`
// The numbers are doubles, because rows give a step's outcomes with their probabilities.
struct acceptance_record {
  std::vector<double> accepted, whole;
  double drafted = 0;

  // A step that drafted so many tokens and accepted so many. A step without drafts is none.
  void observe(std::size_t drafted_tokens, std::size_t accepted_tokens, double times = 1) {
    if (drafted_tokens == 0) return;
    if (accepted.size() <= drafted_tokens) {
      accepted.resize(drafted_tokens + 1);
      whole.resize(drafted_tokens + 1);
    }
    accepted[accepted_tokens] += times;
    if (accepted_tokens == drafted_tokens) whole[accepted_tokens] += times;
    drafted += times * double(drafted_tokens);
  }
  // A step whose tokens have these probabilities of acceptance, each if those before it were
  // accepted.
  void observe_rows(std::span<const double> acceptances) {
    double reached = 1;
    for (std::size_t k = 0; k < acceptances.size(); ++k) {
      observe(acceptances.size(), k, reached * (1 - acceptances[k]));
      reached *= acceptances[k];
    }
    observe(acceptances.size(), acceptances.size(), reached);
  }
  // Adds the steps of another record.
  void add(const acceptance_record& other) {
    accepted.resize(std::max(accepted.size(), other.accepted.size()));
    whole.resize(accepted.size());
    for (std::size_t j = 0; j < other.accepted.size(); ++j) accepted[j] += other.accepted[j];
    for (std::size_t j = 0; j < other.whole.size(); ++j) whole[j] += other.whole[j];
    drafted += other.drafted;
  }

  // All steps, and the tokens that they accepted.
  double steps() const { return at_least(0); }
  double accepted_tokens() const {
    double sum = 0;
    for (std::size_t j = 1; j < accepted.size(); ++j) sum += double(j) * accepted[j];
    return sum;
  }
  // The acceptance length: tokens of a step, with the one that the target adds, 1 + accepted
  // tokens / steps; 1 without steps. Of a record that is a sum of others it is the pooled mean:
  // each step counts once. The mean of the requests' own lengths is another number.
  double length() const { return steps() > 0 ? 1 + accepted_tokens() / steps() : 1; }
  // The share of drafted tokens that was accepted; 0 without any.
  double rate() const { return drafted > 0 ? accepted_tokens() / drafted : 0; }
  // Steps that accepted at least j tokens; and of those the ones that had drafted another.
  double at_least(std::size_t j) const {
    double sum = 0;
    for (; j < accepted.size(); ++j) sum += accepted[j];
    return sum;
  }
  double reached(std::size_t k) const { return at_least(k) - (k < whole.size() ? whole[k] : 0); }
  // For each position, how often its token was accepted where it was drafted and those before it
  // were accepted. It ends before the first position that was never reached.
  std::vector<double> acceptances() const {
    std::vector<double> all;
    for (std::size_t k = 0; k + 1 < accepted.size() && reached(k) > 0; ++k)
      all.push_back(std::clamp(at_least(k + 1) / reached(k), 0., 1.));
    return all;
  }
};

}  // namespace plan
SPECAGG_END
