// SPDX-License-Identifier: Apache-2.0
// Lemmas 5 and 7 of Narasimhan et al. 2025: what a plug-in deferral rule loses against the best
// one, at one position.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include <specagg/kernels.hpp>

namespace experiments {

struct regret {
  double regret = 0, bound = 0;
};

// L(r) = E_P[(1 - r) l(v, q) + r (l(v, p) + alpha TV(p, q))] of r = 0 and r = 1; rows of V
// probabilities. truth: P.
inline regret between(double keep, double defer, bool rule_defers, double bound) {
  return {(rule_defers ? defer : keep) - std::min(keep, defer), bound};
}

// The 0-1 loss: l(v, q) = 1 unless v = argmax q. OPT defers if max q < max p - alpha TV. Lemma 5's
// bound: max |P - q| + max |P - p|.
inline regret regret_01(std::span<const double> truth, std::span<const double> q,
                        std::span<const double> p, double alpha) {
  const auto top_q = std::max_element(q.begin(), q.end()) - q.begin(),
             top_p = std::max_element(p.begin(), p.end()) - p.begin();
  double far_q = 0, far_p = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    far_q = std::max(far_q, std::fabs(truth[v] - q[v]));
    far_p = std::max(far_p, std::fabs(truth[v] - p[v]));
  }
  const double cost = alpha * specagg::total_variation(q, p);
  const auto at = [](auto top) { return std::size_t(top); };
  return between(1 - truth[at(top_q)], 1 - truth[at(top_p)] + cost,
                 q[at(top_q)] < p[at(top_p)] - cost, far_q + far_p);
}

// The log loss: l(v, q) = -log q(v). OPTLog defers if H(p) < H(q) - alpha TV. Lemma 7's bound: B_q
// sum |P - q| + B_p sum |P - p| with B = max |log|. No probability may be 0.
inline regret regret_log(std::span<const double> truth, std::span<const double> q,
                         std::span<const double> p, double alpha) {
  double keep = 0, defer = 0, h_q = 0, h_p = 0, most_q = 0, most_p = 0, far_q = 0, far_p = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    const double log_q = std::log(q[v]), log_p = std::log(p[v]);
    keep -= truth[v] * log_q;
    defer -= truth[v] * log_p;
    h_q -= q[v] * log_q;
    h_p -= p[v] * log_p;
    most_q = std::max(most_q, -log_q);
    most_p = std::max(most_p, -log_p);
    far_q += std::fabs(truth[v] - q[v]);
    far_p += std::fabs(truth[v] - p[v]);
  }
  const double cost = alpha * specagg::total_variation(q, p);
  return between(keep, defer + cost, h_p < h_q - cost, most_q * far_q + most_p * far_p);
}

}  // namespace experiments
