// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025: quality against the rejection rate, for every rule over the whole range
// of its parameter. Each number is an average over the positions of one held-out window of what the
// exact law is worth there. The windows of a text are the observations of which report.py makes
// means and errors.
#include <specagg/error.hpp>

#include "exact.hpp"
#include "lab.hpp"
#include "policies.hpp"

namespace experiments {

namespace {

struct setting {
  std::string rule;
  double value;
};
std::vector<setting> settings_of(const std::vector<std::string>& rules) {
  std::vector<setting> all;
  for (const sweep& s : sweeps())
    if (rules.empty() || std::find(rules.begin(), rules.end(), s.rule) != rules.end())
      for (const double x : s.values) all.push_back({s.rule, x});
  return all;
}

}  // namespace

void sweep_windows(lab& lab, const std::string& name, const std::vector<observed>& windows,
                   const std::vector<swept>& sweeps, table& out) {
  for (std::size_t t = 0; t < sweeps.size(); ++t) {
    const double temperature = sweeps[t].temperature;
    const std::vector<setting> settings = settings_of(sweeps[t].rules);
    std::size_t n = 0;
    std::vector<std::size_t> begins;
    for (const observed& w : windows) {
      begins.push_back(n);
      n += w.count;
    }
    std::vector<outcome> all(n * settings.size());
    const auto position = [&](const observed& w, std::size_t i, outcome* to) {
      const auto [ql, pl, token] = w.at(i);
      const auto y = token;  // clang++ 14 captures no structured binding
      const auto q = probabilities(ql, temperature), p = probabilities(pl, temperature);
      const auto q1 = probabilities(ql, 1), p1 = probabilities(pl, 1);
      const row q_row{dense_row<double>(q), dense_row<double>(q1)},
          p_row{dense_row<double>(p), dense_row<double>(p1)};
      for (std::size_t s = 0; s < settings.size(); ++s)
        with_policy(settings[s].rule, settings[s].value, [&](const auto& policy) {
          const status why = measure(policy, q_row, p_row, y, temperature == 1, to[s]);
          if (why != status::ok)
            throw error(settings[s].rule, std::to_string(i), std::string(specagg::name(why)));
        });
    };
    for (std::size_t w = 0; w < windows.size(); ++w) {
      lab.each(windows[w].count, [&](std::size_t i) {
        position(windows[w], i, &all[(begins[w] + i) * settings.size()]);
      });
      lab.progress((double(t) + double(w + 1) / double(windows.size())) / double(sweeps.size()));
    }

    // a row for each window: errors are made of them
    for (std::size_t w = 0; w < windows.size(); ++w)
      for (std::size_t s = 0; s < settings.size(); ++s) {
        const auto& [rule, value] = settings[s];
        const auto mean = [&](double outcome::* what) {
          return mean_of(begins[w], begins[w] + windows[w].count, 1,
                         [&](std::size_t i) { return all[i * settings.size() + s].*what; })
              .mean;
        };
        const auto right = [&](double outcome::* what) {
          if (!windows[w].joint) return mean(what);
          double product = 1;
          for (std::size_t i = 0; i < windows[w].count; ++i)
            product *= all[(begins[w] + i) * settings.size() + s].*what;
          return product;
        };
        const double nan = temperature == 1 ? 0 : NAN;  // KL is measured at temperature 1 only
        out.add(name, windows[w].text, windows[w].number, temperature, rule, value,
                fmt::format("\"{}\"", policy_text(rule, value)), mean(&outcome::rejection),
                mean(&outcome::cross_entropy), right(&outcome::most_likely),
                right(&outcome::sampled), mean(&outcome::tv), mean(&outcome::kl) + nan);
      }
  }
}

void cascades(lab& lab, const pair& models, const std::vector<swept>& sweeps, table& out) {
  for (const std::string& m : {models.q, models.p})  // before the threads start
    for (const std::string& text : lab.texts()) lab.logits(m, text, 0);
  std::vector<observed> windows;
  for (std::size_t from = 0; from < lab.all_positions(); from += lab.scored())
    windows.push_back({lab.text_of(from), from % lab.positions() / lab.scored(), lab.scored(),
                       [&lab, models, from](std::size_t i) -> observed::position {
                         return {lab.logits(models.q, from + i), lab.logits(models.p, from + i),
                                 lab.truth(from + i)};
                       }});
  sweep_windows(lab, models.name(), windows, sweeps, out);
}

}  // namespace experiments
