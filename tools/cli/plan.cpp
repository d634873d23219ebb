// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

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

#include "options.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using json = nlohmann::ordered_json;

void require(const std::string& command, const char* option, double x, double low, double high) {
  if (!(x >= low && x <= high))
    throw error("plan " + command, option,
                fmt::format("{:g} is not in [{:g}, {:g}]", x, low, high));
}
void require(const std::string& command, const char* option, const std::vector<double>& all,
             double low, double high) {
  for (const double x : all) require(command, option, x, low, high);
}
void require(const std::string& command, const char* option, const std::vector<std::size_t>& all,
             double low, double high) {
  for (const std::size_t x : all) require(command, option, double(x), low, high);
}
constexpr double tiny = 1e-9, huge = 1e9, most_gamma = 1000;

// The options of one subcommand live as long as the program that parses them.
template <class Options, class Run>
CLI::App* add(CLI::App& plan, const char* name, const char* what, std::shared_ptr<Options> o,
              Run run, std::vector<no_effect> (*without_effect)(const Options&) = nullptr) {
  CLI::App* sub = plan.add_subcommand(name, what);
  sub->add_flag("--json", o->as_json, "One JSON object instead of text");
  sub->callback([=] {
    if (without_effect) refuse_without_effect(*sub, without_effect(*o));
    run(*o);
  });
  return sub;
}

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
  sub->add_option("--lambda", o->lambda, "Weight of q in the ensemble");
  sub->add_option("--gamma", o->gamma, "Tokens a proposal of q and of p")
      ->delimiter(',')
      ->expected(1, 2);
  sub->add_option("--c", o->c, "Cost of a step of q over one of p");
  sub->add_option("--v", o->v, "Cost of scoring a proposal over that of one step");
  sub->callback([=] {
    o->from_tv = tv->count() > 0;
    o->checks = true;
    refuse_without_effect(*sub, {{o->from_tv, "with --tv", {"--acceptance"}},
                                 {!o->from_tv, "without --tv", {"--lambda"}}});
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

// --- dssd ---
struct dssd_options {
  std::vector<double> acceptance{0.5, 0.6, 0.7, 0.8, 0.9, 0.99};
  std::vector<std::size_t> gamma{2, 4, 6, 8};
  double vocabulary = 50000, bits = 16, rate = 100, rate_up = 0, ntt = 20, t_slm = 5, t_llm = 50,
         v = 1;
  std::size_t kept = 8, counts = 64;
  bool schemes = false, as_json = false;
};
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
  const double down = 1e3 * o.rate, up = o.rate_up > 0 ? 1e3 * o.rate_up : down;  // bits / ms
  json table = json::array(), all = json::array();
  const auto t_comm = [&](double a, std::size_t g) {
    return plan::dssd_communication(a, g, o.vocabulary, o.bits, down, o.ntt);
  };
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
      const double rejected = 1 - plan::integer_power(a, g), ms = t_comm(a, g);
      table.push_back({{"gamma", g}, {"acceptance", a}, {"rejected", rejected}, {"t_comm_ms", ms}});
      if (!o.as_json && !o.schemes)
        fmt::print("{:>17}", fmt::format("{:.2f} ({:.2f} ms)", rejected, ms));
    }
    if (!o.as_json && !o.schemes) fmt::print("\n");
  }
  // With ids and positions of 32 bits counted. The Gumbel-max coupling: the least match rate of
  // such rows.
  if (o.schemes && !o.as_json)
    fmt::print(
        "gamma acceptance  scheme           bytes up  bytes down  T_comm ms  round ms  tokens  "
        "speed-up\n");
  const double row = plan::quantised_row_bits(std::size_t(o.vocabulary), o.kept, o.counts);
  for (const std::size_t g : o.gamma)
    for (const double a : o.acceptance) {
      const plan::split s{g, o.vocabulary, o.bits, 32};
      const auto line = [&](const char* scheme, const plan::traffic& t, double acceptance) {
        const double comm = plan::communication(t, {up, down, o.ntt}),
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
  if (o.as_json) fmt::print("{}\n", json{{"table", table}, {"schemes", all}}.dump(2));
}
std::vector<no_effect> without_effect(const dssd_options& o) {
  return {{o.as_json, "with --json: it has both tables", {"--schemes"}},
          {!o.as_json && !o.schemes,
           "without --schemes",
           {"--rate-up", "--t-slm", "--t-llm", "--v", "--kept", "--counts"}}};
}
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
                "Compare DSD, DSSD, Gumbel-max coupling and quantised drafts instead");
  sub->add_option("--t-slm", o->t_slm, "Time of a draft step, ms")->capture_default_str();
  sub->add_option("--t-llm", o->t_llm, "Time of a target step, ms")->capture_default_str();
  sub->add_option("--v", o->v, "Cost of a scoring over a target step")->capture_default_str();
  sub->add_option("--kept", o->kept, "Quantised: tokens kept of a row")->capture_default_str();
  sub->add_option("--counts", o->counts, "Quantised: counts they share")->capture_default_str();
  sub->footer("The DSSD authors state a patent filing on their protocol (CN2025108856278).");
}

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
void run_dragon(const dragon_options& o) {
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
  const auto name = [](side s) { return s == side::l ? "l" : "r"; };
  const plan::dragon times{o.c_l, o.c_r, o.t_l, o.t_r, {}};
  const double token_wise = plan::token_wise_latency(times),
               sequence_wise = plan::sequence_wise_latency(times, o.sequence, o.row);
  const double first = plan::first_token_latency(times),
               by_text = plan::first_token_by_text(times, o.read),
               by_cache = plan::first_token_by_cache(times, 8 * o.cache / o.rate);
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
    for (const double a_l : o.a_l) {
      const plan::dragon d{o.c_l, o.c_r, o.t_l, o.t_r, plan::agreement_of(a_l, a_r, o.correlation)},
          e = exchanged(d);
      const double z_l = plan::latency(d), z_r = plan::latency(e), e7_l = plan::latency_eq7(d),
                   e7_r = plan::latency_eq7(e);
      const double dz = plan::latency_difference_eq8(d), speedup = plan::speedup_eq9(d);
      const double s_l = plan::simulated_latency(d, side::l, o.tokens, o.seed, o.look_ahead);
      const double s_r = plan::simulated_latency(d, side::r, o.tokens, o.seed, o.look_ahead);
      const double moving =
          plan::scheduled_latency(d, std::min<std::size_t>(o.tokens, 5000), o.seed, o.look_ahead);
      const char *by_recursion = name(plan::side_by_recursion(d)),
                 *by_eq8 = name(plan::side_by_eq8(d));
      all.push_back({{"a_l", a_l},
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
                     {"speedup_eq9", speedup}});
      if (!o.as_json)
        fmt::print(
            "{:4.2f}  {:4.2f} | {:9.4f} {:7.4f} {:>5} | {:8.4f} {:7.4f} {:9.4f} {:>5} | {:11.4f} "
            "{:8.4f} {:8.4f} | "
            "{:.3f}\n",
            a_l, a_r, z_l, z_r, by_recursion, e7_l, e7_r, dz, by_eq8, s_l, s_r, moving, speedup);
    }
  if (o.as_json) {
    const json baselines{
        {"device_alone", o.c_l}, {"token_wise", token_wise}, {"sequence_wise", sequence_wise}};
    const json first_token{
        {"device_alone", o.c_l}, {"dragon", first}, {"by_text", by_text}, {"by_cache", by_cache}};
    fmt::print(
        "{}\n",
        json{{"settings", all}, {"baselines", baselines}, {"first_token", first_token}}.dump(2));
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

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* plan =
      app.add_subcommand("plan", "Speed-ups, draft lengths and latencies in closed form");
  plan->require_subcommand(1);
  add_cos(*plan);
  add_speculative(*plan);
  add_dssd(*plan);
  add_dragon(*plan);
  add_acceptance(*plan);
  add_schedulers(*plan);
}

}  // namespace cli
