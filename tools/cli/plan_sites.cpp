// SPDX-License-Identifier: Apache-2.0
// plan dssd, dragon, acceptance: two sites in closed form.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/aggregate.hpp>
#include <specagg/decoders.hpp>

#include "plan_options.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using json = nlohmann::ordered_json;

// --- dssd ---
struct dssd_options {
  std::vector<double> acceptance{0.5, 0.6, 0.7, 0.8, 0.9, 0.99};
  std::vector<std::size_t> gamma{2, 4, 6, 8};
  double vocabulary = 50000, bits = 16, rate = 100, rate_up = 0, ntt = 20, t_slm = 5, t_llm = 50,
         v = 1;
  std::size_t kept = 8, counts = 64;
  bool schemes = false, as_json = false;
};
// Mbit/s as bits a ms.
double down(const dssd_options& o) { return 1e3 * o.rate; }
double up(const dssd_options& o) { return o.rate_up > 0 ? 1e3 * o.rate_up : down(o); }

// Table 1: how often a row comes down, and T_comm. Printed, unless something else is.
json dssd_table(const dssd_options& o) {
  json table = json::array();
  if (!o.as_json && !o.schemes) {
    fmt::print(
        "Chance 1 - a^gamma that a row of {:.0f} probabilities of {:g} bits comes down ({:g} "
        "Mbit/s), and expected "
        "T_comm with "
        "non-transmission time {:g} ms\n\ngamma",
        o.vocabulary, o.bits, o.rate, o.ntt);
    for (const double a : o.acceptance) fmt::print("{:>17}", fmt::format("a = {:g}", a));
    fmt::print("\n");
  }
  for (const std::size_t g : o.gamma) {
    if (!o.as_json && !o.schemes) fmt::print("{:5}", g);
    for (const double a : o.acceptance) {
      const double rejected = 1 - plan::integer_power(a, g),
                   ms = plan::dssd_communication(a, g, o.vocabulary, o.bits, down(o), o.ntt);
      table.push_back({{"gamma", g}, {"acceptance", a}, {"rejected", rejected}, {"t_comm_ms", ms}});
      if (!o.as_json && !o.schemes)
        fmt::print("{:>17}", fmt::format("{:.2f} ({:.2f} ms)", rejected, ms));
    }
    if (!o.as_json && !o.schemes) fmt::print("\n");
  }
  return table;
}

// With ids and positions of 32 bits counted. The Gumbel-max coupling: the least match rate of such
// rows.
json dssd_schemes(const dssd_options& o) {
  json all = json::array();
  if (o.schemes && !o.as_json)
    fmt::print(
        "gamma acceptance  scheme           bytes up  bytes down  T_comm ms  round ms  tokens  "
        "speed-up\n");
  const double row = plan::quantised_row_bits(std::size_t(o.vocabulary), o.kept, o.counts);
  for (const std::size_t g : o.gamma)
    for (const double a : o.acceptance) {
      const plan::split s{g, o.vocabulary, o.bits, 32};
      const auto line = [&](const char* scheme, const plan::traffic& t, double acceptance) {
        const double comm = plan::communication(t, {up(o), down(o), o.ntt}),
                     tokens = plan::expected_tokens(acceptance, g);
        const double round = plan::split_latency(g, o.t_slm, o.t_llm, comm, o.v);
        const double speedup = plan::split_speedup(tokens, g, o.t_slm, o.t_llm, comm, o.v);
        all.push_back({{"gamma", g},
                       {"scheme", scheme},
                       {"acceptance", acceptance},
                       {"bytes_up", plan::bytes(t.up)},
                       {"bytes_down", plan::bytes(t.down)},
                       {"t_comm_ms", comm},
                       {"round_ms", round},
                       {"expected_tokens_per_round", tokens},
                       {"speedup", speedup}});
        if (o.schemes && !o.as_json)
          fmt::print("{:5} {:10.3f}  {:<14} {:10.0f} {:11.0f} {:10.2f} {:9.2f} {:7.3f} {:9.3f}\n",
                     g, acceptance, scheme, plan::bytes(t.up), plan::bytes(t.down), comm, round,
                     tokens, speedup);
      };
      line("dsd", plan::dsd_traffic(s), a);
      line("dssd", plan::dssd_traffic(s, a), a);
      line("coupled", plan::coupled_traffic(s), plan::least_coupled_acceptance(1 - a));
      line("quantised", plan::quantised_traffic(s, row), a);
    }
  return all;
}
void run_dssd(const dssd_options& o) {
  require("dssd", "--acceptance", o.acceptance, 0, 1);
  require("dssd", "--gamma", o.gamma, 0, most_gamma);
  require("dssd", "--vocabulary", o.vocabulary, 1, 1e9);
  require("dssd", "--bits", o.bits, 0, 64);
  require("dssd", "--rate", o.rate, tiny, huge);
  require("dssd", "--ntt", o.ntt, 0, huge);
  if (o.rate_up != 0) require("dssd", "--rate-up", o.rate_up, tiny, huge);
  require("dssd", "--v", o.v, tiny, huge);
  require("dssd", "--t-slm", o.t_slm, 0, huge);
  require("dssd", "--t-llm", o.t_llm, tiny, huge);
  require("dssd", "--kept", double(o.kept), 1, std::min(o.vocabulary, 1e6));
  require("dssd", "--counts", double(o.counts), 1, 1e6);
  const json table = dssd_table(o), schemes = dssd_schemes(o);
  if (o.as_json) fmt::print("{}\n", json{{"table", table}, {"schemes", schemes}}.dump(2));
}
std::vector<no_effect> without_effect(const dssd_options& o) {
  return {{!o.as_json && !o.schemes,
           "without --schemes",
           {"--rate-up", "--t-slm", "--t-llm", "--v", "--kept", "--counts"}}};
}
}  // namespace

void add_dssd(CLI::App& app) {
  auto o = std::make_shared<dssd_options>();
  CLI::App* sub =
      add(app, "dssd",
          "Communication of split verification; without options: Table 1 of the DSSD paper", o,
          run_dssd, &without_effect);
  sub->add_option("--acceptance", o->acceptance, "Acceptances, the columns")
      ->delimiter(',')
      ->expected(1, 1000);
  sub->add_option("--gamma", o->gamma, "Draft lengths, the rows")
      ->delimiter(',')
      ->expected(1, 1000);
  sub->add_option("--vocabulary", o->vocabulary, "Probabilities of a row")->capture_default_str();
  sub->add_option("--bits", o->bits, "Bits of a probability")->capture_default_str();
  sub->add_option("--rate", o->rate, "Mbit/s down")->capture_default_str();
  sub->add_option("--rate-up", o->rate_up, "Mbit/s up; 0: as down")->capture_default_str();
  sub->add_option("--ntt", o->ntt,
                  "Non-transmission time of a round (processing, propagation, queueing), ms")
      ->capture_default_str();
  sub->add_flag("--schemes", o->schemes,
                "Compare DSD, DSSD, Gumbel-max coupling and quantised drafts instead (--json has "
                "both tables)")
      ->excludes("--json");
  sub->add_option("--t-slm", o->t_slm, "Time of a draft step, ms")->capture_default_str();
  sub->add_option("--t-llm", o->t_llm, "Time of a target step, ms")->capture_default_str();
  sub->add_option("--v", o->v, "Cost of a scoring over a target step")->capture_default_str();
  sub->add_option("--kept", o->kept, "Quantised: tokens kept of a row")->capture_default_str();
  sub->add_option("--counts", o->counts, "Quantised: counts they share")->capture_default_str();
  sub->footer("The DSSD authors state a patent filing on their protocol (CN2025108856278).");
}

namespace {

// --- dragon ---
struct dragon_options {
  std::vector<double> a_l{0.5, 0.9}, a_r{0.5};
  double c_l = 0.25, c_r = 0.05, t_l = 0.3, t_r = 0.3, correlation = 0;
  // of the baselines; MB, Mbit/s
  double sequence = 20, row = 0.008, read = 1, cache = 114, rate = 100;
  std::size_t look_ahead = 0, tokens = 200000;
  std::uint64_t seed = 1;
  bool as_json = false;
};
void check(const dragon_options& o) {
  require("dragon", "--a-l", o.a_l, 0, 1);
  require("dragon", "--a-r", o.a_r, 0, 1);
  require("dragon", "--c-l", o.c_l, 0, huge);
  require("dragon", "--c-r", o.c_r, 0, huge);
  require("dragon", "--t-l", o.t_l, 0, huge);
  require("dragon", "--t-r", o.t_r, 0, huge);
  require("dragon", "--c-l plus --c-r", o.c_l + o.c_r, tiny, 2 * huge);
  require("dragon", "--correlation", o.correlation, -1, 1);
  require("dragon", "--look-ahead", double(o.look_ahead), 0,
          double(plan::timeline::most_look_ahead));
  require("dragon", "--tokens", double(o.tokens), 1, 1e8);
  require("dragon", "--sequence", o.sequence, 1, huge);
  require("dragon", "--row", o.row, 0, huge);
  require("dragon", "--read", o.read, 0, huge);
  require("dragon", "--cache", o.cache, 0, huge);
  require("dragon", "--rate", o.rate, tiny, huge);
}
// A line of the table: both sites with these acceptances.
json dragon_setting(const dragon_options& o, double a_l, double a_r) {
  const auto name = [](side s) { return s == side::l ? "l" : "r"; };
  const plan::dragon d{o.c_l, o.c_r, o.t_l, o.t_r, plan::agreement_of(a_l, a_r, o.correlation)},
      e = exchanged(d);
  const double z_l = plan::latency(d), z_r = plan::latency(e), e7_l = plan::latency_eq7(d),
               e7_r = plan::latency_eq7(e);
  const double dz = plan::latency_difference_eq8(d), speedup = plan::speedup_eq9(d);
  const double s_l = plan::simulated_latency(d, side::l, o.tokens, o.seed, o.look_ahead);
  const double s_r = plan::simulated_latency(d, side::r, o.tokens, o.seed, o.look_ahead);
  const double moving =
      plan::scheduled_latency(d, std::min<std::size_t>(o.tokens, 5000), o.seed, o.look_ahead);
  const char *by_recursion = name(plan::side_by_recursion(d)), *by_eq8 = name(plan::side_by_eq8(d));
  const json line{{"a_l", a_l},
                  {"a_r", a_r},
                  {"both", d.accept.both},
                  {"exact_l", z_l},
                  {"exact_r", z_r},
                  {"side_exact", by_recursion},
                  {"eq7_l", e7_l},
                  {"eq7_r", e7_r},
                  {"eq8", dz},
                  {"side_eq8", by_eq8},
                  {"simulated_l", s_l},
                  {"simulated_r", s_r},
                  {"moving", moving},
                  {"speedup_eq9", speedup}};
  if (!o.as_json)
    fmt::print(
        "{:4.2f}  {:4.2f} | {:9.4f} {:7.4f} {:>5} | {:8.4f} {:7.4f} {:9.4f} {:>5} | {:11.4f} "
        "{:8.4f} {:8.4f} | "
        "{:.3f}\n",
        a_l, a_r, z_l, z_r, by_recursion, e7_l, e7_r, dz, by_eq8, s_l, s_r, moving, speedup);
  return line;
}
// What DRAGON is compared with; as_json: beside `settings`.
void print_baselines(const dragon_options& o, const json& settings) {
  const plan::dragon times{o.c_l, o.c_r, o.t_l, o.t_r, {}};
  const double token_wise = plan::token_wise_latency(times),
               sequence_wise = plan::sequence_wise_latency(times, o.sequence, o.row);
  const double first = plan::first_token_latency(times),
               by_text = plan::first_token_by_text(times, o.read),
               by_cache = plan::first_token_by_cache(times, 8 * o.cache / o.rate);
  if (o.as_json) {
    const json baselines{
        {"device_alone", o.c_l}, {"token_wise", token_wise}, {"sequence_wise", sequence_wise}};
    const json first_token{
        {"device_alone", o.c_l}, {"dragon", first}, {"by_text", by_text}, {"by_cache", by_cache}};
    fmt::print(
        "{}\n",
        json{{"settings", settings}, {"baselines", baselines}, {"first_token", first_token}}.dump(
            2));
  } else {
    fmt::print(
        "\nBaselines, s a token: l alone {:.4f}, token-wise {:.4f}, sequence-wise ({:g} tokens) "
        "{:.4f}.\n"
        "First token after the retrieval, of connected sites, s: l alone {:.4f}, both sites "
        "{:.4f}, r's documents by "
        "text {:.4f}, by "
        "cache "
        "{:.4f}.\n",
        o.c_l, token_wise, o.sequence, sequence_wise, o.c_l, first, by_text, by_cache);
  }
}
void run_dragon(const dragon_options& o) {
  check(o);
  json all = json::array();
  if (!o.as_json)
    fmt::print(
        "Time per token (s): decoding {:g} at l, {:g} at r; messages {:g} from l, {:g} from r; "
        "look-ahead {}; "
        "correlation of "
        "accepts {:g}.\nExact: the recursion, unbounded look-ahead. Moving: aggregation goes where "
        "the drafts are.\n\n"
        " a^l   a^r | exact Z^l     Z^r  side | Eq 7 Z^l     Z^r   Eq 8 dZ  side | simulated l     "
        "   r   moving | Eq "
        "9\n",
        o.c_l, o.c_r, o.t_l, o.t_r, o.look_ahead == 0 ? "unbounded" : std::to_string(o.look_ahead),
        o.correlation);
  for (const double a_r : o.a_r)
    for (const double a_l : o.a_l) all.push_back(dragon_setting(o, a_l, a_r));
  print_baselines(o, all);
}
}  // namespace

void add_dragon(CLI::App& app) {
  auto o = std::make_shared<dragon_options>();
  CLI::App* sub = add(app, "dragon",
                      "Time per token of two sites, and the side that should aggregate; without "
                      "options: check values",
                      o, run_dragon);
  sub->add_option("--a-l", o->a_l, "Acceptance of the drafts of l (several: a line each)")
      ->delimiter(',')
      ->expected(1, 1000);
  sub->add_option("--a-r", o->a_r, "Acceptance of the drafts of r")
      ->delimiter(',')
      ->expected(1, 1000);
  sub->add_option("--correlation", o->correlation, "Of the two; -0.2 to -0.6 is usual")
      ->capture_default_str();
  sub->add_option("--c-l", o->c_l, "Time to decode a token at l, s")->capture_default_str();
  sub->add_option("--c-r", o->c_r, "And at r")->capture_default_str();
  sub->add_option("--t-l", o->t_l, "Time of a message from l, s")->capture_default_str();
  sub->add_option("--t-r", o->t_r, "And from r")->capture_default_str();
  sub->add_option("--sequence", o->sequence, "Sequence-wise: tokens that both sites write apart")
      ->capture_default_str();
  sub->add_option("--row", o->row, "And time to send one row, s")->capture_default_str();
  sub->add_option("--read", o->read, "First token by text: time of l to read r's documents, s")
      ->capture_default_str();
  sub->add_option("--cache", o->cache,
                  "First token by cache: what r has computed of its documents, MB")
      ->capture_default_str();
  sub->add_option("--rate", o->rate, "Mbit/s of that")->capture_default_str();
  sub->add_option("--look-ahead", o->look_ahead,
                  "Drafts beyond the last aggregation, at most (simulated only); 0: unbounded")
      ->capture_default_str();
  sub->add_option("--tokens", o->tokens, "Tokens simulated")->capture_default_str();
  sub->add_option("--seed", o->seed, "Of the simulation")->capture_default_str();
}

namespace {

// --- acceptance ---
struct acceptance_options {
  std::vector<double> l{0.5, 0.3, 0.2}, r{0.2, 0.5, 0.3}, gamma_l{0.2, 0.5, 0.8};
  double eta_l = 0.5;
  bool as_json = false;
};
void run_acceptance(const acceptance_options& o) {
  require("acceptance", "--gamma-l", o.gamma_l, 0, 1);
  require("acceptance", "--eta-l", o.eta_l, 0, 1);
  if (o.l.size() != o.r.size())
    throw error("plan acceptance", "--l and --r",
                fmt::format("have {} and {} numbers", o.l.size(), o.r.size()));
  const site_weights eta{std::log(o.eta_l), std::log(1 - o.eta_l), o.eta_l, 1 - o.eta_l},
      back{eta.log_r, eta.log_l, eta.r, eta.l};
  if (std::isnan(agreement_of(o.l, o.r, eta).both))
    throw error("plan acceptance", "--l or --r", "is no row of probabilities");
  json all = json::array();
  if (!o.as_json) fmt::print("gamma_l | alpha^l  alpha^r (Eq 5) |    both  only l  only r\n");
  for (const double gamma_l : o.gamma_l) {
    const agreement a = agreement_of(o.l, o.r, eta, gamma_l);
    const double l = acceptance_eq5(o.l, o.r, eta, gamma_l),
                 r = acceptance_eq5(o.r, o.l, back, 1 - gamma_l);
    all.push_back({{"gamma_l", gamma_l},
                   {"acceptance_l", l},
                   {"acceptance_r", r},
                   {"both", a.both},
                   {"only_l", a.only_l},
                   {"only_r", a.only_r}});
    if (!o.as_json)
      fmt::print("{:7g} | {:.5f}  {:.5f}        | {:.5f} {:.5f} {:.5f}\n", gamma_l, l, r, a.both,
                 a.only_l, a.only_r);
  }
  if (o.as_json) fmt::print("{}\n", json{{"settings", all}}.dump(2));
}
}  // namespace

void add_acceptance(CLI::App& app) {
  auto o = std::make_shared<acceptance_options>();
  CLI::App* sub = add(app, "acceptance",
                      "How often two sites' drafts are accepted, from their rows (DRAGON, Eq 5)", o,
                      run_acceptance);
  sub->add_option("--l", o->l, "The row of l, its probabilities")
      ->delimiter(',')
      ->expected(1, 100000);
  sub->add_option("--r", o->r, "The row of r")->delimiter(',')->expected(1, 100000);
  sub->add_option("--eta-l", o->eta_l, "Weight of l in the law")->capture_default_str();
  sub->add_option("--gamma-l", o->gamma_l,
                  "How often the sample of l is taken (several: a line each)")
      ->delimiter(',')
      ->expected(1, 1000);
}

}  // namespace cli
