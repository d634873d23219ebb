// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <specagg/decoders.hpp>

#include "plan_options.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::ordered_json;

// --- cos ---
struct cos_options {
  std::vector<double> acceptance{0.8};
  std::vector<std::size_t> gamma{5, 1};
  double lambda = 0.5, tv = 0, c = 0.1, v = 1;
  bool from_tv = false, checks = false, as_json = false;
};
void run_cos(const cos_options& o) {
  require("cos", "--acceptance", o.acceptance, 0, 1);
  require("cos", "--gamma", o.gamma, 1, most_gamma);
  require("cos", "--c", o.c, 0, huge);
  require("cos", "--v", o.v, tiny, huge);
  require("cos", "--lambda", o.lambda, 0, 1);
  require("cos", "--tv", o.tv, 0, 1);
  std::vector<plan::alternating> settings;
  if (o.checks) settings = {{0.8, 0.8, 1, 1, 0.1}, {0.8, 0.8, 1, 1, 1}, {0.8, 0.8, 5, 1, 0.1}};
  else {
    const plan::both_acceptances a =
        o.from_tv ? plan::ensemble_acceptance(o.lambda, o.tv)
                  : plan::both_acceptances{o.acceptance.front(), o.acceptance.back()};
    settings = {{a.q, a.p, o.gamma.front(), o.gamma.back(), o.c, o.v, o.v}};
  }
  json out = json::array();
  if (!o.as_json)
    fmt::print(
        "Speed-up over running both models for every token; D, P, Q: fraction of rounds that begin "
        "without a bonus "
        "token,\nwith one of p, with one of q; tokens, calls and cost (in steps of p) a round.\n\n"
        "  a_q   a_p  gamma      c |     D     P     Q  tokens calls q calls p   cost | "
        "alternating  naive\n");
  for (const plan::alternating& x : settings) {
    const plan::alternating_rates r = plan::rates(x);
    const double naive = plan::naive_cos_speedup(x.a_q, x.gamma_q, x.c, x.v_p);
    out.push_back({{"a_q", x.a_q},
                   {"a_p", x.a_p},
                   {"gamma_q", x.gamma_q},
                   {"gamma_p", x.gamma_p},
                   {"c", x.c},
                   {"v", x.v_p},
                   {"pi_d", r.pi_d},
                   {"pi_p", r.pi_p},
                   {"pi_q", r.pi_q},
                   {"expected_tokens_per_round", r.tokens},
                   {"calls_q", r.calls_q},
                   {"calls_p", r.calls_p},
                   {"cost", r.cost},
                   {"speedup", r.speedup},
                   {"speedup_naive", naive}});
    if (!o.as_json)
      fmt::print(
          "{:5.3f} {:5.3f}  {:>5} {:6.3g} | {:.3f} {:.3f} {:.3f} {:7.3f} {:7.3f} {:7.3f} {:6.3f} | "
          "{:11.3f} {:6.3f}\n",
          x.a_q, x.a_p, fmt::format("{},{}", x.gamma_q, x.gamma_p), x.c, r.pi_d, r.pi_p, r.pi_q,
          r.tokens, r.calls_q, r.calls_p, r.cost, r.speedup, naive);
  }
  if (o.as_json) fmt::print("{}\n", json{{"settings", out}}.dump(2));
}
void add_cos(CLI::App& app) {
  auto o = std::make_shared<cos_options>();
  CLI::App* sub = app.add_subcommand(
      "cos", "Collaborative decoding with alternating proposers; without options: check values");
  sub->add_flag("--json", o->as_json, "One JSON object instead of text");
  sub->add_option("--acceptance", o->acceptance, "Of drafts of q and of p (one number: both)")
      ->delimiter(',')
      ->expected(1, 2);
  CLI::Option* tv = sub->add_option("--tv", o->tv, "TV(p, q): acceptances of an ensemble instead");
  tv->excludes("--acceptance");
  sub->add_option("--lambda", o->lambda, "Weight of q in the ensemble")->needs(tv);
  sub->add_option("--gamma", o->gamma, "Tokens a proposal of q and of p")
      ->delimiter(',')
      ->expected(1, 2);
  sub->add_option("--c", o->c, "Cost of a step of q over one of p");
  sub->add_option("--v", o->v, "Cost of scoring a proposal over that of one step");
  sub->callback([=] {
    o->from_tv = tv->count() > 0;
    o->checks = true;
    for (const char* option : {"--acceptance", "--tv", "--lambda", "--gamma", "--c", "--v"})
      if (sub->count(option) > 0) o->checks = false;
    run_cos(*o);
  });
}

// --- speculative ---
struct speculative_options {
  std::vector<double> acceptance{0.8};
  std::size_t most = 12;
  double c = 0.1, v = 1, d = 0;
  bool law_reads_draft = false, as_json = false;
};
void run_speculative(const speculative_options& o) {
  require("speculative", "--acceptance", o.acceptance, 0, 1);
  require("speculative", "--most", double(o.most), 0, most_gamma);
  require("speculative", "--c", o.c, 0, huge);
  require("speculative", "--v", o.v, tiny, huge);
  require("speculative", "--d", o.d, 0, huge);
  // One acceptance: of every position; several: of each.
  std::vector<double> a = o.acceptance;
  if (a.size() == 1) a.resize(o.most, a[0]);
  const auto cost = [&](std::size_t g) {
    double all = 1;
    for (std::size_t k = 0; k < g; ++k) all *= a[k];
    const double more = o.law_reads_draft && g > 0 ? all : 0;
    return g == 0 ? 1 : o.c * (double(g) + more) + o.v + o.d * double(g);
  };
  const plan::fixed_draft best = plan::best_fixed_draft(a, cost);
  json rows = json::array();
  if (!o.as_json) fmt::print("gamma  tokens    cost  speed-up\n");
  for (std::size_t g = 0; g <= a.size(); ++g) {
    const double tokens = plan::expected_tokens(std::span<const double>(a).first(g));
    rows.push_back({{"gamma", g},
                    {"expected_tokens_per_round", tokens},
                    {"cost", cost(g)},
                    {"speedup", tokens / cost(g)}});
    if (!o.as_json)
      fmt::print("{:5} {:7.3f} {:7.3f} {:9.3f}{}\n", g, tokens, cost(g), tokens / cost(g),
                 g == best.gamma ? "  best" : "");
  }
  if (o.as_json)
    fmt::print(
        "{}\n",
        json{{"best_gamma", best.gamma}, {"best_speedup", best.rate}, {"rows", rows}}.dump(2));
}
std::vector<no_effect> without_effect(const speculative_options& o) {
  return {{o.acceptance.size() > 1, "with the acceptances of several positions", {"--most"}}};
}
void add_speculative(CLI::App& app) {
  auto o = std::make_shared<speculative_options>();
  CLI::App* sub = add(app, "speculative",
                      "Speed-up over the target alone, E / (c gamma + v + d gamma), for each gamma",
                      o, run_speculative, &without_effect);
  sub->add_option("--acceptance", o->acceptance,
                  "Of a draft; or of the 1st, 2nd, ... if those before were accepted")
      ->delimiter(',')
      ->expected(1, 1000)
      ->capture_default_str();
  sub->add_option("--c", o->c, "Cost of a draft step over a target step")->capture_default_str();
  sub->add_option("--v", o->v, "Cost of a scoring over a target step")->capture_default_str();
  sub->add_option("--d", o->d, "And of each drafted token in it")->capture_default_str();
  sub->add_option("--most", o->most, "The largest gamma shown")->capture_default_str();
  sub->add_flag("--law-reads-draft", o->law_reads_draft,
                "The bonus needs one more draft step (cascades, ensembles)");
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* plan =
      app.add_subcommand("plan", "Speed-ups, draft lengths and latencies in closed form");
  plan->require_subcommand(1);
  add_cos(*plan);
  add_speculative(*plan);
  add_record(*plan);
  add_dssd(*plan);
  add_dragon(*plan);
  add_acceptance(*plan);
  add_schedulers(*plan);
}

}  // namespace cli
