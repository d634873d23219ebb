// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025: quality against the rejection rate, for every rule over the whole range
// of its parameter. Each number is an average over the positions of one held-out window of what the
// exact law is worth there. The windows of a text are the observations of which report.py makes
// means and errors.
#include <specagg/error.hpp>

#include "exact.hpp"
#include "lab.hpp"
#include "rules.hpp"

namespace experiments {

void cascades(lab& lab, const pair& models, table& out) {
  struct setting {
    std::string rule;
    double value;
  };
  std::vector<setting> settings;
  for (const sweep& s : sweeps())
    for (const double x : s.values) settings.push_back({s.rule, x});
  const std::size_t n = texts.size() * lab.positions();
  const std::vector<double> temperatures{1, 0.5, 0};
  for (const std::string& m : {models.q, models.p})  // before the threads start
    for (const std::string& text : texts) lab.logits(m, text, 0);

  for (std::size_t t = 0; t < temperatures.size(); ++t) {
    const double temperature = temperatures[t];
    std::vector<outcome> all(n * settings.size());
    const auto position = [&](std::size_t i) {
      const auto ql = lab.logits(models.q, i), pl = lab.logits(models.p, i);
      const auto q = probabilities(ql, temperature), p = probabilities(pl, temperature);
      const auto q1 = probabilities(ql, 1), p1 = probabilities(pl, 1);
      const row q_row{dense_row<double>(q), dense_row<double>(q1)},
          p_row{dense_row<double>(p), dense_row<double>(p1)};
      const token_id y = lab.truth(i);
      for (std::size_t s = 0; s < settings.size(); ++s)
        with_rule(settings[s].rule, settings[s].value, [&](const auto& policy) {
          const status why =
              measure(policy, q_row, p_row, y, temperature == 1, all[i * settings.size() + s]);
          if (why != status::ok)
            throw error(settings[s].rule, std::to_string(i), std::string(name(why)));
        });
    };
    const std::size_t step = 32;
    for (std::size_t i = 0; i < n; i += step) {
      lab.each(std::min(step, n - i), [&](std::size_t k) { position(i + k); });
      lab.progress((double(t) + double(i + step) / double(n)) / double(temperatures.size()));
    }

    // a row for each window: errors are made of them
    for (std::size_t from = 0; from < n; from += lab.scored())
      for (std::size_t s = 0; s < settings.size(); ++s) {
        const auto& [rule, value] = settings[s];
        const auto mean = [&](double outcome::* what) {
          return mean_of(from, from + lab.scored(), 1,
                         [&](std::size_t i) { return all[i * settings.size() + s].*what; })
              .mean;
        };
        const double nan = temperature == 1 ? 0 : NAN;  // KL is measured at temperature 1 only
        out.add(models.name(), lab.text_of(from), from % lab.positions() / lab.scored(),
                temperature, rule, value, fmt::format("\"{}\"", policy_text(rule, value)),
                mean(&outcome::rejection), mean(&outcome::cross_entropy), mean(&outcome::likeliest),
                mean(&outcome::sampled), mean(&outcome::tv), mean(&outcome::kl) + nan);
      }
  }
}

}  // namespace experiments
