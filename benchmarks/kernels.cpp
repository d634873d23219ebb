// SPDX-License-Identifier: Apache-2.0
// The kernels beside what bounds them: log-sum-exp beside a read of the same logits (512 KiB: in cache; 64 MiB: from
// memory), filtered rows beside sorting the row, residual and total variation beside the passes they are made of.
#include <benchmark/benchmark.h>
#include <specagg/specagg.hpp>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace {

using namespace specagg;

std::vector<float> logits(std::size_t size, std::uint32_t seed = 1) {
  const random_streams random(seed);
  std::vector<float> l(size);
  for (std::size_t v = 0; v < size; ++v)
    l[v] = v < 262144 ? float(8 * random.uniform({stream::side, std::uint32_t(v), 0})) : l[v - 262144];
  return l;
}

void read(benchmark::State& state) {
  const auto l = logits(std::size_t(state.range(0)));
  using V = vec<float, 16>;
  for (auto _ : state) {
    V a(0), b(0), c(0), d(0);
    for (std::size_t v = 0; v < l.size(); v += 64) {
      a = a + V::load(&l[v]), b = b + V::load(&l[v + 16]);
      c = c + V::load(&l[v + 32]), d = d + V::load(&l[v + 48]);
    }
    benchmark::DoNotOptimize(reduce_add((a + b) + (c + d)));
  }
}

void log_sum_exp_of(benchmark::State& state) {
  const auto l = logits(std::size_t(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(log_sum_exp(l.data(), l.size()));
}

constexpr std::size_t vocabulary = 151936;

void sorting(benchmark::State& state) {
  const auto l = logits(vocabulary);
  std::vector<std::pair<float, token_id>> row(vocabulary);
  for (auto _ : state) {
    for (std::size_t v = 0; v < vocabulary; ++v) row[v] = {-l[v], token_id(v)};
    std::ranges::sort(row);
    benchmark::DoNotOptimize(row.data());
  }
}

void filtered(benchmark::State& state, sampling how) {
  const auto l = logits(vocabulary);
  for (auto _ : state) {
    processed_row<float> row(l, how);
    if (row.normalise() != status::ok) std::abort();
    benchmark::DoNotOptimize(row);
  }
}

// One token from norm((p - q)+), the rows normalised before.
void residual(benchmark::State& state) {
  const auto l = logits(vocabulary), m = logits(vocabulary, 2);
  softmax_row<float> q(l), p(m);
  if (q.normalise() != status::ok || p.normalise() != status::ok) std::abort();
  const row_pair<false, softmax_row<float>, softmax_row<float>> rows(q, p);
  std::vector<double> scratch(block_count(vocabulary));
  const random_streams chooser(3);
  for (std::uint32_t step = 0; auto _ : state) {
    const auto w = weigh(
        rows, [](auto at) { return positive(at.p - at.q); }, scratch);
    benchmark::DoNotOptimize(chooser.draw({stream::residual, step++, 0}, w));
  }
}

void race_of(benchmark::State& state) {
  const auto l = logits(vocabulary);
  softmax_row<float> row(l);
  if (row.normalise() != status::ok) std::abort();
  for (std::uint32_t step = 0; auto _ : state) benchmark::DoNotOptimize(race(row, shared_noise(3), step++));
}

}  // namespace

BENCHMARK(read)->Arg(131072)->Arg(16 << 20)->Unit(benchmark::kMicrosecond);
BENCHMARK(log_sum_exp_of)->Arg(131072)->Arg(16 << 20)->Unit(benchmark::kMicrosecond);
BENCHMARK(sorting)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(filtered, greedy, sampling{.temperature = 0})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(filtered, top_k_40, sampling{.top_k = 40})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(filtered, top_p_0_9, sampling{.top_p = 0.9})->Unit(benchmark::kMicrosecond);
BENCHMARK(residual)->Unit(benchmark::kMicrosecond);
BENCHMARK(race_of)->Unit(benchmark::kMicrosecond);
BENCHMARK_MAIN();
