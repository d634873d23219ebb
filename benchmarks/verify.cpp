// SPDX-License-Identifier: Apache-2.0
// One lossless verification step from f32 logits, gamma 4, against the same step with every softmax written out in
// scalar code (what most engines' CPU paths do; our own statement of it). Both see the same rows and drafts; acceptance
// about .8.
#include <benchmark/benchmark.h>
#include <specagg/specagg.hpp>

#include <cmath>
#include <cstdlib>
#include <vector>

namespace {

using namespace specagg;
constexpr std::size_t gamma = 4;

struct rows {
  std::size_t vocabulary;
  std::vector<float> q, p;
  std::vector<token_id> y;
  std::vector<double> scratch;
  explicit rows(std::size_t v) : vocabulary(v), q(gamma * v), p((gamma + 1) * v), scratch(verify_scratch(v)) {
    random_streams noise(1), chooser(2);
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] = float(8 * noise.uniform({stream::side, std::uint32_t(i), 0}));
      if (i < q.size()) q[i] = p[i] + float(0.9 * noise.uniform({stream::side, std::uint32_t(i), 1}));
    }
    for (std::uint32_t j = 0; j < gamma; ++j) {
      softmax_row<float> row(draft_logits(j));
      if (row.normalise() != status::ok) std::abort();
      y.push_back(draw(row, {stream::draft, j, 0}, chooser, scratch));
    }
  }
  std::span<const float> draft_logits(std::size_t j) const { return std::span(q).subspan(j * vocabulary, vocabulary); }
  std::span<const float> target_logits(std::size_t j) const { return std::span(p).subspan(j * vocabulary, vocabulary); }
};

void ours(benchmark::State& state) {
  rows r{std::size_t(state.range(0))};
  emission out[gamma + 1];
  std::uint64_t step = 0;
  double accepted = 0;
  for (auto _ : state) {
    random_streams chooser(3, ++step);
    const auto v = verify_token(
        {.tokens = r.y}, [&](std::size_t j) { return softmax_row<float>(r.draft_logits(j)); },
        [&](std::size_t j) { return softmax_row<float>(r.target_logits(j)); }, lossless{}, chooser, out, r.scratch);
    accepted += double(v.accepted);
    benchmark::DoNotOptimize(out);
  }
  state.counters["accepted"] = accepted / double(step);
}

std::vector<float> softmax(std::span<const float> logits) {
  float top = logits[0], sum = 0;
  for (const float l : logits) top = std::max(top, l);
  std::vector<float> x(logits.size());
  for (std::size_t v = 0; v < x.size(); ++v) sum += x[v] = std::exp(logits[v] - top);
  for (float& value : x) value /= sum;
  return x;
}
std::size_t multinomial(const std::vector<float>& w, double u) {
  double total = 0;
  for (const float x : w) total += x;
  u *= total;
  for (std::size_t v = 0; v < w.size(); ++v)
    if ((u -= w[v]) < 0) return v;
  return w.size() - 1;
}

void written_out(benchmark::State& state) {
  rows r{std::size_t(state.range(0))};
  std::uint64_t step = 0;
  double accepted = 0;
  for (auto _ : state) {
    random_streams chooser(3, ++step);
    std::vector<std::vector<float>> q, p;
    for (std::size_t j = 0; j < gamma; ++j) q.push_back(softmax(r.draft_logits(j)));
    for (std::size_t j = 0; j <= gamma; ++j) p.push_back(softmax(r.target_logits(j)));
    std::size_t j = 0, token = 0;
    for (; j < gamma; ++j) {
      const auto y = std::size_t(r.y[j]);
      if (chooser.coin({stream::coin, std::uint32_t(j), 0}, p[j][y], q[j][y])) continue;
      for (std::size_t v = 0; v < p[j].size(); ++v) p[j][v] = std::max(0.f, p[j][v] - q[j][v]);
      break;
    }
    token = multinomial(p[j], chooser.uniform({j < gamma ? stream::residual : stream::bonus, std::uint32_t(j), 0}));
    accepted += double(j);
    benchmark::DoNotOptimize(token);
  }
  state.counters["accepted"] = accepted / double(step);
}

}  // namespace

BENCHMARK(ours)->Arg(32000)->Arg(128256)->Unit(benchmark::kMicrosecond);
BENCHMARK(written_out)->Arg(32000)->Arg(128256)->Unit(benchmark::kMicrosecond);
BENCHMARK_MAIN();
