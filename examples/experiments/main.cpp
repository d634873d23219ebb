// SPDX-License-Identifier: Apache-2.0
// The papers' experiments with the bundled models: one CSV file for each part, written at once when
// it is finished. A part whose file is there, with the line of settings that this run would write,
// is not run again.
//   exact/  the same numbers in every run with the same seed, on any number of threads
//   timed/  seconds; a finished part keeps those of the run that finished it
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include <specagg/error.hpp>

#include "../cli/effects.hpp"
#include "lab.hpp"

namespace experiments {
namespace {

constexpr const char* cascades_header =
    "pair,text,window,temperature,rule,parameter,policy,rejection,cross_entropy,argmax_accuracy,"
    "sampled_accuracy,"
    "tv_target,kl_target";

const std::vector<part> parts = {
    {"cascades-draft-target", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[0], t); }},
    {"cascades-bard-bible", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[1], t); }},
    {"cascades-bible-bard", false, 200, 8, cascades_header,
     [](lab& l, table& t) { cascades(l, pairs[2], t); }},
    {"acceptance", false, 30, 5,
     "pair,temperature,positions,ratio,ratio_se,match,match_se,coupled,coupled_se,coupled_bound,"
     "quantised,quantised_"
     "bytes,"
     "independent_both,independent_only_l,independent_only_r,shared_both,shared_only_l,shared_only_"
     "r",
     acceptance},
    {"verifiers", false, 100, 4,
     "pair,temperature,gamma,verifier,tokens,rounds,accepted,accepted_se,tokens_per_round,tokens_"
     "per_round_se,"
     "telemetry,"
     "telemetry_se,reached",
     verifiers},
    {"cos-calls", false, 130, 5,
     "models,policy,value,temperature,method,gamma,tokens,a_q,a_p,calls_q,calls_p,calls,predicted_"
     "q,predicted_p,"
     "predicted",
     cos_calls},
    {"draft-length", false, 60, 4,
     "pair,temperature,prices,how,gamma,tokens_per_cost,acceptance,tokens", draft_length},
    {"bild", false, 60, 4,
     "algorithm,longest_run,fallback,rollback,tokens,agreement,agreement_se,target_calls,draft_"
     "calls",
     bilds},
    {"regret", false, 10, 2, "models,loss,alpha,positions,regret,bound,wrong,largest_share",
     regrets},
    {"dssd", false, 1, 1,
     "pair,temperature,vocabulary,mbit_per_s,delay_ms,gamma,protocol,tokens_per_round,up_bytes,"
     "down_"
     "bytes,communication_ms,slm_ms,llm_ms,speedup",
     dssd},
    {"dssd-paired", false, 20, 2,
     "pair,gamma,up_mbit_per_s,down_mbit_per_s,rounds,rejected,dsd_ms,dssd_ms,gain_ms,gain_se,dssd_"
     "slower",
     dssd_paired},
    {"dragon-acceptance", false, 10, 2,
     "eta_l,gamma_l,positions,eq5,acceptance_l,acceptance_r,largest_distance,least_gain,gain",
     dragon_acceptance},
    {"dragon-latency", false, 60, 5,
     "temperature,device_ms,cloud_ms,delay_ms,aggregation,strategy,acceptance_l,acceptance_r,ms_"
     "per_token,ms_se,"
     "over_eq8,over_eq8_se,first_ms,predicted,eq9",
     dragon_latency},
    {"dragon-devices", false, 30, 1, "what,device_ms,delay_ms,side,sequences,mean,se",
     dragon_devices},
    {"times", true, 5, 1, "model,tokens,seconds,quartile_1,quartile_3,v", times},
    {"latency", true, 240, 8,
     "pair,execution,gamma,rule,parameter,policy,seconds_per_token,target_seconds_per_token,"
     "relative_latency,speedup,"
     "predicted,error,predicted_free_scoring,acceptance,target_calls_per_token,speedups",
     latency},
    {"cos-speed", true, 380, 10,
     "models,policy,value,temperature,method,gamma,tokens_per_second,speedup,predicted,error,"
     "predicted_free_scoring,speedups",
     cos_speed},
    {"draft-length-speed", true, 60, 3,
     "pair,temperature,how,gamma,speedup,predicted,error,speedups", draft_length_speed},
};

std::uint64_t hash(std::uint64_t h, const std::string& bytes) {  // FNV-1a
  for (const char c : bytes) h = (h ^ std::uint8_t(c)) * 0x100000001b3;
  return h;
}
std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
// What the numbers depend on: this program, the models, the texts.
std::uint64_t inputs(const std::string& program) {
  std::uint64_t h = hash(0xcbf29ce484222325, content(program));
  for (const char* m : {"draft", "target", "bard", "bible"})
    h = hash(h, content(std::string(SPECAGG_MODELS "/") + m + ".gguf"));
  for (const std::string& t : texts)
    h = hash(h, content(SPECAGG_MODELS "/../text/" + t + "/test.txt"));
  return h;
}

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

void run(const settings& how, const std::string& program, const std::string& only) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t from = inputs(program);
  lab lab(how);
  std::vector<const part*> left;
  const auto path = [&](const part& p) {
    return how.out / (p.timed ? "timed" : "exact") / (std::string(p.name) + ".csv");
  };
  const auto first_line = [&](const part& p) {
    return fmt::format("# {}; {}; seed {}; inputs {:016x}\n", p.name, how.quick ? "quick" : "full",
                       how.seed, from);
  };
  double all = 0;  // expected seconds of the parts left
  const auto takes = [&](const part& p) { return how.quick ? p.quick_seconds : p.seconds; };
  for (const part& p : parts) {
    if (!only.empty() && std::string(p.name).find(only) == std::string::npos) continue;
    if (content(path(p)).starts_with(first_line(p))) {
      fmt::print(stderr, "{:<24} is there\n", p.name);
      continue;
    }
    left.push_back(&p);
    all += takes(p);
  }
  double done = 0, shown = 0;
  for (const part* p : left) {
    const auto say = [&](double share, bool always) {
      const double now = seconds_since(begin);
      const double finished = done + takes(*p) * std::min(share, 1.0),
                   pace = finished > 10 ? now / finished : 1;
      const bool terminal = isatty(2);
      if (!always && now - shown < (terminal ? 0.5 : 15)) return;
      shown = now;
      fmt::print(stderr, "{}{:<24} {:3.0f} %, {:.0f} s, about {:.0f} s left{}",
                 terminal ? "\r\033[K" : "", p->name, 100 * share, now,
                 std::max(0.0, all - finished) * pace, terminal && !always ? "" : "\n");
      std::fflush(stderr);
    };
    lab.progress = [&](double share) { say(share, false); };
    table t(p->header);
    p->run(lab, t);
    std::filesystem::create_directories(path(*p).parent_path());
    auto partial = path(*p);
    partial += ".partial";
    {
      std::ofstream file(partial, std::ios::binary);
      file << first_line(*p) << t.text() << std::flush;
      if (!file) throw error(partial.string(), "", "cannot be written");
    }
    std::filesystem::rename(partial, path(*p));
    done += takes(*p);
    say(1, true);
  }
}

}  // namespace
}  // namespace experiments

int main(int argc, char** argv) {
  CLI::App app("The papers' experiments with the bundled models: a CSV file for each part",
               "specagg-experiments");
  experiments::settings how;
  std::string only;
  app.add_flag("--quick", how.quick, "Few positions and tokens");
  app.add_option("--seed", how.seed, "Of all random numbers")->capture_default_str();
  app.add_option("--threads", how.threads, "Of the exact parts; 0: one for each core")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--out", how.out,
                 "Folder of the CSV files; parts that are there are not run again")
      ->capture_default_str();
  app.add_option("--part", only, "Only the parts with this in their name");
  cli::check_values_of_all(app);
  try {
    app.parse(argc, argv);
    std::error_code none;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
    experiments::run(how, none ? argv[0] : self.string(), only);
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    fmt::print(stderr, "specagg-experiments: {} (--help says more)\n",
               specagg::printable(e.what(), 4000));
  } catch (const std::exception& e) {
    fmt::print(stderr, "specagg-experiments: {}\n", specagg::printable(e.what(), 4000));
  }
  return 2;
}
