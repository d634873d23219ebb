// SPDX-License-Identifier: Apache-2.0
// plan schedulers: Figure 8 of Liu et al. 2025 (DRAGON), by simulating the protocol itself.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <specagg/error.hpp>

#include "options.hpp"
#include "plan.hpp"
#include "scheduled.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using json = nlohmann::ordered_json;

struct schedulers_options {
  std::vector<double> delay{0, 0.1, 0.2, 0.3, 0.5};
  double c_l = 0.25, c_r = 0.05, a_l = 0.8, a_r = 0.5, correlation = -0.3, base = 0.02;
  std::uint32_t tokens = 100, repeats = 50, look_ahead = 16;
  std::uint64_t seed = 1;
  bool as_json = false;
};

constexpr std::size_t eq8 = std::size_t(scheduling::eq8);

double run(const schedulers_options& o, double delay, scheduling how, std::uint64_t seed) {
  const agreement accept = plan::agreement_of(o.a_l, o.a_r, o.correlation);
  return scheduled_run({o.c_l, o.c_r, o.base, delay, accept, o.tokens, o.look_ahead}, how, seed)
      .all;
}

void run_schedulers(const schedulers_options& o) {
  const auto check = [](const char* option, double x, double low, double high) {
    if (!(x >= low && x <= high))
      throw error("plan schedulers", option,
                  fmt::format("{:g} is not in [{:g}, {:g}]", x, low, high));
  };
  for (const double d : o.delay) check("--delay", d, 0, 1e3);
  check("--c-l", o.c_l, 1e-6, 1e3);
  check("--c-r", o.c_r, 1e-6, 1e3);
  check("--base", o.base, 0, 1e3);
  check("--a-l", o.a_l, 0, 1);
  check("--a-r", o.a_r, 0, 1);
  check("--correlation", o.correlation, -1, 1);
  check("--tokens", o.tokens, 1, 10000);
  check("--repeats", o.repeats, 1, 10000);
  check("--look-ahead", o.look_ahead, 1, 64);
  json all = json::array();
  if (!o.as_json) {
    fmt::print(
        "Seconds for {} tokens, mean of {} sequences of acceptances (a^l {:g}, a^r {:g}, "
        "correlation {:g}); decoding "
        "{:g} s\nat l (device), {:g} at r (cloud); base delay {:g} each way, look-ahead {}. In "
        "brackets: two "
        "standard errors\nof the difference from Eq 8, sequence by sequence. From the connection "
        "on: the first token waits for up to\nthree ways (terms, progress, draft), that of `plan "
        "dragon`, of connected sites, for one.\n\n added delay |",
        o.tokens, o.repeats, o.a_l, o.a_r, o.correlation, o.c_l, o.c_r, o.base, o.look_ahead);
    for (const auto r : scheduling_names) fmt::print("{:>16}", r);
    fmt::print("\n");
  }
  for (const double delay : o.delay) {
    std::array<std::vector<double>, scheduling_names.size()> seconds;
    for (std::uint32_t i = 0; i < o.repeats; ++i)
      for (std::size_t r = 0; r < scheduling_names.size(); ++r)
        seconds[r].push_back(run(o, delay, scheduling(r), o.seed + i));
    json row{{"delay", delay}};
    if (!o.as_json) fmt::print("{:10.3f} s |", delay);
    for (std::size_t r = 0; r < scheduling_names.size(); ++r) {
      double mean = 0, difference = 0, square = 0;
      const auto n = double(o.repeats);
      for (std::uint32_t i = 0; i < o.repeats; ++i) {
        const double x = seconds[r][i] - seconds[eq8][i];
        mean += seconds[r][i] / n;
        difference += x / n;
        square += x * x / n;
      }
      const double noise =
          2 * std::sqrt(std::max(0.0, square - difference * difference) / std::max(1.0, n - 1));
      row[std::string(scheduling_names[r])] = {
          {"seconds", mean}, {"over_eq8", difference}, {"two_standard_errors", noise}};
      if (!o.as_json) fmt::print("{:>16}", fmt::format("{:.2f} ({:.2f})", mean, noise));
    }
    if (!o.as_json) fmt::print("\n");
    all.push_back(row);
  }
  if (o.as_json) fmt::print("{}\n", json{{"settings", all}}.dump(2));
}

}  // namespace

void add_schedulers(CLI::App& plan) {
  auto o = std::make_shared<schedulers_options>();
  CLI::App* sub = plan.add_subcommand("schedulers",
                                      "Where two sites should aggregate: the protocol simulated "
                                      "under six schedulers (DRAGON, Figure 8)");
  sub->add_flag("--json", o->as_json, "One JSON object instead of text");
  sub->add_option("--delay", o->delay, "Added to the round trip, s (several: a line each)")
      ->delimiter(',')
      ->expected(1, 1000);
  sub->add_option("--base", o->base, "One way without it, s")->capture_default_str();
  sub->add_option("--c-l", o->c_l, "Time to decode a token at l, the device, s")
      ->capture_default_str();
  sub->add_option("--c-r", o->c_r, "And at r, the cloud")->capture_default_str();
  sub->add_option("--a-l", o->a_l, "Acceptance of the drafts of l")->capture_default_str();
  sub->add_option("--a-r", o->a_r, "Acceptance of the drafts of r")->capture_default_str();
  sub->add_option("--correlation", o->correlation, "Of the two; -0.2 to -0.6 is usual")
      ->capture_default_str();
  sub->add_option("--tokens", o->tokens, "Tokens a run")->capture_default_str();
  sub->add_option("--repeats", o->repeats, "Sequences of acceptances")->capture_default_str();
  sub->add_option("--look-ahead", o->look_ahead, "Drafts beyond the last aggregation, at most")
      ->capture_default_str();
  sub->add_option("--seed", o->seed, "Of the simulation")->capture_default_str();
  sub->callback([=] { run_schedulers(*o); });
}

}  // namespace cli
