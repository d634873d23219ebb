// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include <specagg/format.hpp>

#include "costs.hpp"
#include "job.hpp"
#include "lists.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0 : x[x.size() / 2];
}

// The acceptance with which drafts of gamma tokens give so many tokens a round.
double acceptance_of(double tokens, std::size_t gamma) {
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double a = (low + high) / 2;
    (plan::expected_tokens(a, gamma) < tokens ? low : high) = a;
  }
  return low;
}
void plan_gamma(comparison& r, const decoder& how) {
  r.d = std::max(0., r.v - 1) * double(r.chosen.rounds) / double(r.chosen.drafted);
  if (how.automatic || how.drafters != std::vector<std::string>{"model"}) return;
  r.acceptance = acceptance_of(r.chosen.expected / double(r.chosen.rounds), how.drafts);
  const auto cost = [&](std::size_t g) { return fma(r.c + r.d, double(g), 1); };
  r.best = plan::best_fixed_draft(*r.acceptance, cost, most_drafted);
}

}  // namespace

comparison compare(job& j) {
  comparison r;
  const decoder& d = j.how;
  const decoder alone = baseline(j.options);
  std::vector<double> ratio, c, v, calls;
  progress bar("decoding");
  const auto start = std::chrono::steady_clock::now();
  for (; r.repeats < comparison::most_repeats && seconds_since(start) < comparison::seconds;
       ++r.repeats) {
    const auto tick = [&](double half) {
      return [&, half](const emission&, const decoded& so_far) {
        // of this repetition
        const double one = half + 0.5 * double(so_far.emissions.size()) / double(j.most);
        const double spent = seconds_since(start), each = spent / (r.repeats + one);
        const double all =
            std::min<double>(comparison::most_repeats, std::ceil(comparison::seconds / each));
        bar.show(std::min(1., (r.repeats + one) / all));
      };
    };
    r.alone = j.run(alone, tick(0));
    r.chosen = j.run(d, tick(0.5));
    const double step = r.alone.target_seconds() / double(r.alone.target_calls());
    ratio.push_back(r.chosen.tokens_per_second() / r.alone.tokens_per_second());
    const auto mean = [](double seconds, std::size_t n) { return n ? seconds / double(n) : 0; };
    c.push_back(mean(r.chosen.draft_seconds(), r.chosen.draft_calls()) / step);
    v.push_back(mean(r.chosen.target_seconds(), r.chosen.target_calls()) / step);
    const auto in_models = [](const decoded& of) {
      return (of.draft_seconds() + of.target_seconds()) / double(of.emissions.size());
    };
    calls.push_back(in_models(r.alone) / in_models(r.chosen));
  }
  r.measured = median(ratio);
  r.c = median(c);
  r.v = median(v);
  if (d.name == "speculative") {
    const double rounds = double(r.chosen.rounds), expected = r.chosen.expected / rounds,
                 steps = double(r.chosen.draft_calls()) / rounds;
    r.predicted = expected / fma(r.c, steps, r.v);
    r.formula = fmt::format(
        "predicted from {:.3f} tokens a round, which costs {:.3f} steps of the target alone: "
        "drafting {:.3f}, scoring {:.3f}",
        expected, fma(r.c, steps, r.v), r.c * steps, r.v);
    if (r.chosen.drafted > 0) plan_gamma(r, d);
  } else {
    r.predicted = median(calls);
    r.formula = fmt::format(
        "predicted from the models' calls: {} of drafts, each {:.3f} steps of the target alone, "
        "and {} of the target",
        r.chosen.draft_calls(), r.c, r.chosen.target_calls());
  }
  return r;
}

}  // namespace cli
