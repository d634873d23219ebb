// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025, Lemmas 5 and 7: the regret of OPT and OPTLog beside its bound. The bounds
// hold for any truth P; here P is the law of `target`, so that every expectation is exact. q is
// `draft`, p is `bard` or `bible`.
#include "regret.hpp"

#include "exact.hpp"
#include "lab.hpp"

namespace experiments {

void regrets(lab& lab, table& out) {
  const std::size_t n = lab.all_positions(), every = lab.how.quick ? 4 : 8;
  const std::vector<double> alphas{0, 0.05, 0.1, 0.2, 0.5, 1, 2};
  for (const char* m : {"draft", "target", "bard", "bible"})
    for (const std::string& text : lab.texts()) lab.logits(m, text, 0);
  for (const std::string p_name : {"bard", "bible"}) {
    const std::size_t count = n / every;
    std::vector<regret> all(count * alphas.size() * 2);
    lab.each(count, [&](std::size_t k) {
      const auto truth = probabilities(lab.logits("target", k * every), 1),
                 q = probabilities(lab.logits("draft", k * every), 1),
                 p = probabilities(lab.logits(p_name, k * every), 1);
      for (std::size_t a = 0; a < alphas.size(); ++a) {
        all[(k * alphas.size() + a) * 2] = regret_01(truth, q, p, alphas[a]);
        all[(k * alphas.size() + a) * 2 + 1] = regret_log(truth, q, p, alphas[a]);
      }
    });
    for (const std::size_t log_loss : {std::size_t(0), std::size_t(1)})
      for (std::size_t a = 0; a < alphas.size(); ++a) {
        const auto at = [&](std::size_t k) -> const regret& {
          return all[(k * alphas.size() + a) * 2 + log_loss];
        };
        double worst = 0, wrong = 0;
        for (std::size_t k = 0; k < count; ++k) {
          worst = std::max(worst, at(k).regret / at(k).bound);
          wrong += double(at(k).regret > 0) / double(count);
        }
        const auto lost = mean_of(0, count, 1, [&](std::size_t k) { return at(k).regret; });
        const auto bound = mean_of(0, count, 1, [&](std::size_t k) { return at(k).bound; });
        out.add("draft-" + p_name, log_loss ? "log" : "0-1", alphas[a], count, lost.mean,
                bound.mean, wrong, worst);
      }
    lab.progress(p_name == "bard" ? 0.5 : 1);
  }
}

}  // namespace experiments
