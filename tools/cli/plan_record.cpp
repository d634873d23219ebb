// SPDX-License-Identifier: Apache-2.0
// specagg plan record: which gamma, and which drafter or policy, from what was accepted and from
// what steps cost.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <specagg/decoders.hpp>

#include "acceptance_records.hpp"
#include "files.hpp"
#include "lines.hpp"
#include "plan_options.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::ordered_json;

struct record_options {
  std::vector<std::string> files;
  std::string times;
  std::size_t most = 8;
  double c = 0.1, v = 1, d = 0;
  bool as_json = false;
};
struct named_record {
  std::string name;
  acceptance_file of;
  std::vector<double> acceptances;
};
// Milliseconds of a step with gamma drafted tokens, as a row count of gamma + 1, and the largest
// gamma measured; of one record, or of all ("").
using step_times = std::map<std::string, plan::call_times>;
using loads = std::map<std::size_t, step_times>;  // by requests at once

named_record read_record(const std::string& given, std::size_t most) {
  const auto equals = given.find('=');
  const std::string path = equals == given.npos ? given : given.substr(equals + 1);
  const auto slash = path.rfind('/'), from = slash == path.npos ? 0 : slash + 1;
  named_record r{
      equals == given.npos ? path.substr(from, path.rfind('.') - from) : given.substr(0, equals),
      {},
      {}};
  r.of = acceptance_reader(path, most).read(read_text(path));
  r.acceptances = r.of.all.acceptances();
  return r;
}

// Lines {"requests": B, "gamma": G, "ms": X}, with "record": NAME for one record alone.
loads read_times(const std::string& path, const std::vector<named_record>& records) {
  std::map<std::size_t, std::map<std::string, std::map<std::size_t, double>>> all;
  for_each_json_line(read_text(path), [&](const nlohmann::json& x, std::size_t line) {
    const auto fail = [&](const std::string& why) {
      throw error(path, fmt::format("line {}", line), why);
    };
    if (!x.is_object()) fail("is no JSON object");
    const auto number = [&](const char* name, double least, double most) {
      const double n = x.contains(name) && x[name].is_number() ? x[name].get<double>() : -1;
      if (!(n >= least && n <= most))
        fail(fmt::format("\"{}\" is not in [{:g}, {:g}]", name, least, most));
      return n;
    };
    const std::string name = x.contains("record") && x["record"].is_string()
                                 ? x["record"].get<std::string>()
                                 : std::string();
    if (!name.empty() && std::none_of(records.begin(), records.end(),
                                      [&](const named_record& r) { return r.name == name; }))
      fail("no record is called " + name);
    all[std::size_t(number("requests", 1, 1e6))][name]
       [std::size_t(number("gamma", 0, most_gamma))] = number("ms", tiny, huge);
  });
  loads read;
  for (const auto& [requests, by_name] : all)
    for (const auto& [name, points] : by_name) {
      double least = 0;  // a longer step is taken to be no faster
      for (const auto& [gamma, ms] : points)
        read[requests][name].points.push_back({gamma + 1, least = std::max(least, ms)});
    }
  if (read.empty()) throw error(path, "", "has no times");
  return read;
}

// The times of this record: its own points, and for gamma that it has not those of all.
const plan::call_times* times_of(const step_times& all, const std::string& name) {
  auto own = all.find(name);
  if (own == all.end()) own = all.find("");
  return own == all.end() ? nullptr : &own->second;
}

struct choice {
  std::string record;
  std::size_t gamma = 0;
  double tokens = 1, cost = 1, rate = 0;
};
// All gammas of a record at a load. times: null: costs in steps of the target.
std::vector<choice> choices(const named_record& r, const record_options& o, std::size_t requests,
                            const plan::call_times* times) {
  std::vector<choice> all;
  const std::size_t first = times ? times->points.front().rows - 1 : 0;
  for (std::size_t g = first; g <= std::min(r.acceptances.size(), o.most); ++g) {
    const double cost = times    ? (*times)(g + 1)
                        : g == 0 ? 1
                                 : o.c * double(g) + o.v + o.d * double(g),
                 tokens = plan::expected_tokens(std::span(r.acceptances).first(g));
    all.push_back(
        {r.name, g, tokens, cost, times ? 1000 * double(requests) * tokens / cost : tokens / cost});
  }
  return all;
}

json described(const named_record& r) {
  const auto or_null = [](const std::optional<double>& x) { return x ? json(*x) : json(); };
  return {{"record", r.name},
          {"requests", r.of.requests.size()},
          {"steps", r.of.all.steps()},
          {"acceptance_length", r.of.all.length()},
          {"standard_error", or_null(r.of.error())},
          {"mean_of_requests", or_null(r.of.mean_of_means())},
          {"acceptance_rate", r.of.all.rate()},
          {"acceptances", r.acceptances},
          {"missing_draft_tokens", r.of.missing}};
}
void print_record(const named_record& r) {
  const auto error = r.of.error();
  fmt::print("{}: acceptance length {:.3f}{} in {:.0f} steps\n", r.name, r.of.all.length(),
             error ? fmt::format(" ± {:.3f}", *error) : "", r.of.all.steps());
  if (const auto mean = r.of.mean_of_means(); mean && r.of.requests.size() > 1)
    fmt::print("  pooled, each step once; the mean of {} requests' own lengths is {:.3f}\n",
               r.of.requests.size(), *mean);
  fmt::print("  accepted by position: {:.3f}\n", fmt::join(r.acceptances, ", "));
  if (r.of.missing > 0)
    fmt::print(
        "  steps drafted {:.0f} tokens fewer than they might, unknown which: later positions "
        "look worse than they are\n  (a record with per_step_drafted knows)\n",
        r.of.missing);
}
void print_choices(const std::vector<choice>& all, const choice& best, bool timed) {
  fmt::print("{:<12} {:>5} {:>7} {:>9} {:>9}\n", "record", "gamma", "tokens", timed ? "ms" : "cost",
             timed ? "tokens/s" : "speed-up");
  for (const choice& x : all)
    fmt::print("{:<12} {:>5} {:>7.3f} {:>9.3f} {:>9.{}f}{}\n", x.record, x.gamma, x.tokens, x.cost,
               x.rate, timed ? 1 : 3,
               x.record == best.record && x.gamma == best.gamma ? "  best" : "");
}

// The choices at one load. requests: 0: no times are known.
struct planned {
  std::size_t requests;
  std::vector<choice> all;
  choice best;
};
planned plan_load(const std::vector<named_record>& records, const record_options& o,
                  std::size_t requests, const step_times& times) {
  planned load{requests, {}, {}};
  for (const named_record& r : records) {
    const plan::call_times* const of = requests ? times_of(times, r.name) : nullptr;
    if (requests && !of)
      throw error(o.times, "", fmt::format("has no time of {} with {} requests", r.name, requests));
    const auto some = choices(r, o, requests, of);
    load.all.insert(load.all.end(), some.begin(), some.end());
  }
  if (load.all.empty()) throw error(o.times, "", "has no time of a gamma that was recorded");
  load.best = *std::max_element(load.all.begin(), load.all.end(),
                                [](const choice& x, const choice& y) { return x.rate < y.rate; });
  return load;
}
json described(const planned& load) {
  const bool timed = load.requests > 0;
  const auto row = [&](const choice& x) {
    return json{{"record", x.record},
                {"gamma", x.gamma},
                {"expected_tokens_per_step", x.tokens},
                {timed ? "ms" : "cost", x.cost},
                {timed ? "tokens_per_second" : "speedup", x.rate}};
  };
  json rows = json::array();
  for (const choice& x : load.all) rows.push_back(row(x));
  return {
      {"requests", timed ? json(load.requests) : json()}, {"rows", rows}, {"best", row(load.best)}};
}

void run_record(const record_options& o) {
  require("record", "--c", o.c, 0, huge);
  require("record", "--v", o.v, tiny, huge);
  require("record", "--d", o.d, 0, huge);
  require("record", "--most", double(o.most), 1, most_gamma);
  std::vector<named_record> records;
  for (const std::string& given : o.files) records.push_back(read_record(given, o.most));
  std::vector<planned> all;
  if (o.times.empty()) all.push_back(plan_load(records, o, 0, {}));
  else
    for (const auto& [requests, times] : read_times(o.times, records))
      all.push_back(plan_load(records, o, requests, times));
  if (o.as_json) {
    json of_records = json::array(), of_loads = json::array();
    for (const named_record& r : records) of_records.push_back(described(r));
    for (const planned& load : all) of_loads.push_back(described(load));
    fmt::print("{}\n", json{{"records", of_records}, {"loads", of_loads}}.dump(2));
    return;
  }
  for (const named_record& r : records) print_record(r);
  for (const planned& load : all) {
    fmt::print("\n");
    if (load.requests > 0)
      fmt::print("{} request{} at once\n", load.requests, load.requests == 1 ? "" : "s");
    print_choices(load.all, load.best, load.requests > 0);
  }
}
std::vector<no_effect> without_effect(const record_options& o) {
  return {{!o.times.empty(), "with --times", {"--c", "--v", "--d"}}};
}

}  // namespace

void add_record(CLI::App& plan) {
  auto o = std::make_shared<record_options>();
  CLI::App* sub =
      add(plan, "record", "Which gamma, drafter or policy is fastest, from what was accepted", o,
          run_record, &without_effect);
  sub->add_option("files", o->files,
                  "A record of each drafter or policy: FILE, or NAME=FILE (see below)")
      ->required()
      ->type_name("FILE");
  file(sub, "--times", o->times, "Times of steps, a line each (see below)");
  sub->add_option("--c", o->c, "Without --times: cost of a draft step over a target step")
      ->capture_default_str();
  sub->add_option("--v", o->v, "Cost of a scoring over a target step")->capture_default_str();
  sub->add_option("--d", o->d, "And of each drafted token in it")->capture_default_str();
  sub->add_option("--most", o->most, "The largest gamma shown")->capture_default_str();
  sub->footer(
      "A record is any file with one of\n"
      "  answers of vLLM or specagg-server with metrics.speculative_decoding, one JSON a line, or "
      "AIPerf's records\n"
      "  the text of /metrics with the counters vllm:spec_decode_num_..._total\n"
      "  rows: what `specagg score --draft FILE --json` prints, or lines {\"acceptances\": [0.9, "
      "0.7]}, one for each draft\n"
      "It says what drafts up to its own gamma would give. A step's time: {\"requests\": 8, "
      "\"gamma\": 4, \"ms\": 21.5},\nof one record alone with \"record\": NAME; between gammas it "
      "is interpolated.");
}

}  // namespace cli
