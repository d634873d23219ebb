// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025: quality against the rejection rate, for every rule over the whole range of its
// parameter. Each number is an average over held-out positions of what the exact law is worth there.
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
    struct models_at {
      double q = 0, p = 0, tv = 0;  // q(y), p(y), TV
    };
    std::vector<models_at> own(n);
    const auto position = [&](std::size_t i) {
      const auto ql = lab.logits(models.q, i), pl = lab.logits(models.p, i);
      const auto q = probabilities(ql, temperature), p = probabilities(pl, temperature);
      const auto q1 = probabilities(ql, 1), p1 = probabilities(pl, 1);
      const row q_row{dense_row<double>(q), dense_row<double>(q1)}, p_row{dense_row<double>(p), dense_row<double>(p1)};
      const token_id y = lab.truth(i);
      for (std::size_t s = 0; s < settings.size(); ++s)
        with_rule(settings[s].rule, settings[s].value, [&](const auto& policy) {
          const status why = measure(policy, q_row, p_row, y, temperature == 1, all[i * settings.size() + s]);
          if (why != status::ok) throw error(settings[s].rule, std::to_string(i), std::string(name(why)));
        });
      outcome draft_alone, target_alone;
      measure(ensemble{1}, q_row, p_row, y, false, draft_alone);
      measure(ensemble{0}, q_row, p_row, y, false, target_alone);
      own[i] = {draft_alone.sampled, target_alone.sampled, draft_alone.tv};
    };
    const std::size_t step = 32;
    for (std::size_t i = 0; i < n; i += step) {
      lab.each(std::min(step, n - i), [&](std::size_t k) { position(i + k); });
      lab.progress((double(t) + double(i + step) / double(n)) / double(temperatures.size()));
    }

    for (std::size_t where = 0; where <= texts.size(); ++where) {  // each text, then both: the mix
      const std::size_t begin = where < texts.size() ? where * lab.positions() : 0;
      const std::size_t end = where < texts.size() ? begin + lab.positions() : n;
      const auto mean = [&](auto&& f) { return mean_of(begin, end, lab.scored(), f); };
      const double tv = mean([&](std::size_t i) { return own[i].tv; }).mean;
      for (std::size_t s = 0; s < settings.size(); ++s) {
        const auto& [rule, value] = settings[s];
        const auto at = [&](std::size_t i) -> const outcome& { return all[i * settings.size() + s]; };
        const double rejection = mean([&](std::size_t i) { return at(i).rejection; }).mean;
        // The static ensemble that rejects as much: its rejection is (1 - lambda) TV. A rule that rejects more than TV
        // is compared with the target.
        const double lambda = tv > 0 ? std::clamp(1 - rejection / tv, 0.0, 1.0) : 0;
        const auto ensemble_at = [&](std::size_t i) { return std::lerp(own[i].p, own[i].q, lambda); };
        const auto ce = mean([&](std::size_t i) { return at(i).cross_entropy; });
        const auto ce_target = mean([&](std::size_t i) { return at(i).cross_entropy + std::log(own[i].p); });
        const auto ce_ensemble = mean([&](std::size_t i) { return at(i).cross_entropy + std::log(ensemble_at(i)); });
        const auto likeliest = mean([&](std::size_t i) { return at(i).likeliest; });
        const auto sampled = mean([&](std::size_t i) { return at(i).sampled; });
        const auto to_target = mean([&](std::size_t i) { return at(i).sampled - own[i].p; });
        const auto more = mean([&](std::size_t i) { return at(i).sampled - ensemble_at(i); });
        const double nan = temperature == 1 ? 0 : NAN;  // KL is measured at temperature 1 only
        out.add(models.name(), where < texts.size() ? texts[where] : "mix", temperature, rule, value,
                fmt::format("\"{}\"", policy_text(rule, value)), end - begin, rejection, ce.mean, ce.se, ce_target.mean,
                ce_target.se, likeliest.mean, likeliest.se, sampled.mean, sampled.se, to_target.mean, to_target.se,
                lambda, ce_ensemble.mean, ce_ensemble.se, more.mean, more.se,
                mean([&](std::size_t i) { return at(i).tv; }).mean,
                mean([&](std::size_t i) { return at(i).kl; }).mean + nan);
      }
    }
  }
}

}  // namespace experiments
