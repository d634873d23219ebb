// SPDX-License-Identifier: Apache-2.0
// What filters cost: a lossless step of token verification (4 drafted tokens, V = 128,256, one
// thread) with each filter, on rows of several kinds, beside the step without a filter; and the
// same nine rows filtered in the usual way, by sorting. `--export FOLDER` writes the rows and the
// filters for the rivals: torch_filters.py and llama_cpp/filters.cpp.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <specagg/specagg.hpp>

using namespace specagg;

namespace {

constexpr std::size_t V = 128256, gamma_ = 4, drafts = 16;

struct filter {
  const char* name;
  sampling how;
};
const filter filters[] = {{"none", {}},
                          {"top-p 0.9", {.top_p = 0.9}},
                          {"top-p 0.95", {.top_p = 0.95}},
                          {"top-p 0.95, T 0.6", {.temperature = 0.6, .top_p = 0.95}},
                          {"min-p 0.05", {.min_p = 0.05}},
                          {"top-k 50", {.top_k = 50}},
                          {"top-k 1000", {.top_k = 1000}},
                          {"top-k 2000", {.top_k = 2000}},
                          {"top-k 20000", {.top_k = 20000}},
                          {"top-k 50, top-p 0.95", {.top_k = 50, .top_p = 0.95}},
                          {"temperature 0", {.temperature = 0}}};
// The first four are rows of models, from flat to peaked, and with ties. The others are hard.
const char* const kinds[] = {"normal", "rank^-1.3", "rank^-2.2", "whole numbers",
                             "equal",  "two",       "2^17 ties", "one far above"};

// The rows of a step: gamma rows of the draft, gamma + 1 of the target.
template <class S>
struct rows_of_step {
  std::vector<S> q, p;
};
template <class S>
const rows_of_step<S>& rows(const std::string& kind) {
  static std::map<std::string, rows_of_step<S>> made;
  rows_of_step<S>& step = made[kind];
  if (!step.p.empty()) return step;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::size_t> rank(V);
  for (std::size_t v = 0; v < V; ++v) rank[v] = v + 1;
  for (std::size_t j = 0; j <= gamma_; ++j) {
    std::shuffle(rank.begin(), rank.end(), random);
    for (std::size_t v = 0; v < V; ++v) {
      const float r = std::log(float(rank[v]));
      const float target = kind == "rank^-1.3"       ? -1.3f * r + 0.3f * normal(random)
                           : kind == "rank^-2.2"     ? -2.2f * r + 0.3f * normal(random)
                           : kind == "equal"         ? 1
                           : kind == "two"           ? float(rank[v] % 2)
                           : kind == "2^17 ties"     ? (rank[v] > 1000 ? -1 : normal(random))
                           : kind == "one far above" ? (rank[v] == 1 ? 50 : normal(random))
                                                     : 2.5f * normal(random);
      const bool model = kind == "normal" || kind == "whole numbers" || kind[0] == 'r';
      const float draft = target + (model ? 0.5f * normal(random) : 0);
      const bool whole = kind == "whole numbers";
      step.p.push_back(specagg::detail::stored<S>(whole ? std::round(target) : target));
      if (j < gamma_)
        step.q.push_back(specagg::detail::stored<S>(whole ? std::round(draft) : draft));
    }
  }
  return step;
}

template <class S>
void verify_step(benchmark::State& state, const std::string& kind, const sampling& how) {
  const rows_of_step<S>& of = rows<S>(kind);
  std::vector<double> scratch(verify_scratch(V, gamma_));
  std::vector<emission> out(gamma_ + 1);
  std::vector<token_id> tokens;
  for (std::uint64_t d = 0; d < drafts; ++d) {
    random_streams chooser(d, 0);
    for (std::size_t j = 0; j < gamma_; ++j)
      tokens.push_back(
          draw_draft(normalise(processed_row<S>(std::span(of.q).subspan(j * V, V), how)), 0, j,
                     chooser, scratch));
  }
  std::uint64_t d = 0;
  std::size_t accepted = 0, steps = 0;
  for (auto _ : state) {
    random_streams chooser(d, 0);
    const draft drafted{.tokens = std::span(tokens).subspan(d * gamma_, gamma_)};
    const auto v =
        verify_token(drafted, rows_of_logits(std::span(of.q), V, how),
                     rows_of_logits(std::span(of.p), V, how), lossless{}, chooser, out, scratch);
    if (v.why != status::ok) std::abort();
    accepted += v.accepted;
    d = (d + 1) % drafts;
    ++steps;
  }
  state.counters["accepted"] = double(accepted) / double(steps);
}

// The floor: the target's five rows, read once.
template <class S>
void read_target(benchmark::State& state, const std::string& kind) {
  using lanes = vec<float, 16>;
  const std::vector<S>& p = rows<S>(kind).p;
  for (auto _ : state) {
    lanes most[8];
    for (lanes& m : most) m = lanes(0);
    for (std::size_t i = 0; i + 128 <= p.size(); i += 128)
      for (std::size_t k = 0; k < 8; ++k) most[k] = max(most[k], lanes::load(&p[i + 16 * k]));
    for (lanes& m : most) benchmark::DoNotOptimize(m);
  }
}

// The nine rows of a step: softmax, sort, cut. Temperature, top-k, top-p, min-p, as in the library.
void sort_rows(benchmark::State& state, const std::string& kind, const sampling& how) {
  const rows_of_step<float>& of = rows<float>(kind);
  std::vector<std::pair<float, token_id>> row(V);
  for (auto _ : state)
    for (std::size_t j = 0; j < 2 * gamma_ + 1; ++j) {
      const float* l = j < gamma_ ? &of.q[j * V] : &of.p[(j - gamma_) * V];
      for (std::size_t v = 0; v < V; ++v) row[v] = {-l[v], token_id(v)};
      std::sort(row.begin(), row.end());
      const std::size_t k = how.top_k > 0 ? how.top_k : V;
      double total = 0, reached = 0;
      for (std::size_t i = 0; i < k; ++i) {
        const float top = row[0].first;
        total += std::exp((i == 0 ? 0 : top - row[i].first) / float(how.temperature));
      }
      std::size_t n = 0;
      for (; n < k && reached < how.top_p * total; ++n)
        reached += std::exp((row[0].first - row[n].first) / float(how.temperature));
      benchmark::DoNotOptimize(n);
    }
}

// filters.tsv: name, temperature, top-k, top-p, min-p. <kind>.f32: the nine rows of a step.
void export_rows(const std::string& folder) {
  std::ofstream list(folder + "/filters.tsv");
  for (const filter& f : filters)
    if (f.how.filters(V))
      list << f.name << '\t' << f.how.temperature << '\t' << f.how.top_k << '\t' << f.how.top_p
           << '\t' << f.how.min_p << '\n';
  for (const std::string kind : kinds) {
    std::ofstream file(folder + "/" + kind + ".f32", std::ios::binary);
    for (const auto* some : {&rows<float>(kind).q, &rows<float>(kind).p})
      file.write(reinterpret_cast<const char*>(some->data()),
                 std::streamsize(some->size() * sizeof(float)));
    if (!file) std::abort();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--export") {
    export_rows(arguments[2]);
    return 0;
  }
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  for (const std::string kind : kinds) {
    for (const filter& f : filters) {
      const std::string name = std::string(f.name) + "/" + kind;
      benchmark::RegisterBenchmark(("f32/" + name).c_str(), verify_step<float>, kind, f.how)
          ->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark(("bf16/" + name).c_str(), verify_step<bf16>, kind, f.how)
          ->Unit(benchmark::kMicrosecond);
      if (f.how.filters(V))
        benchmark::RegisterBenchmark(("sorted/" + name).c_str(), sort_rows, kind, f.how)
            ->Unit(benchmark::kMicrosecond);
    }
    const std::string floor = "/floor: p's rows read once/" + kind;
    benchmark::RegisterBenchmark(("f32" + floor).c_str(), read_target<float>, kind)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("bf16" + floor).c_str(), read_target<bf16>, kind)
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
