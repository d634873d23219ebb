// SPDX-License-Identifier: Apache-2.0
// Kernels against the floor and against the usual way, each rival checked for the same answer
// first. One thread.
//   floor    reading the same memory with nothing but additions; or one exponential for every
//            element
//   memory   what no cache holds (caches.hpp); otherwise the data fits the second-level cache
#include "rivals.hpp"

#include <benchmark/benchmark.h>

#include "caches.hpp"

#include <cstdio>
#include <map>

namespace {

using namespace bench;

constexpr std::size_t in_cache = 131072, vocabulary = 151936;

// Otherwise this benchmark is not timed, and the others go on.
void same(benchmark::State& state, double a, double b, double tolerance) {
  if (!(std::fabs(a - b) <= tolerance)) state.SkipWithError("rival and library differ: not timed");
}

const std::vector<float>& logits(std::size_t size, int which = 0) {
  static std::map<std::pair<std::size_t, int>, std::vector<float>> all;
  std::vector<float>& x = all[{size, which}];
  if (x.empty()) {
    numbers next(std::uint64_t(5 + which));
    x.resize(size);
    for (float& l : x)
      l = float(2.5 * std::sqrt(2.) * (next() + next() + next() + next() + next() + next() - 3));
  }
  return x;
}
const std::vector<float>& probabilities(std::size_t size, int which = 0) {
  static std::map<std::pair<std::size_t, int>, std::vector<float>> all;
  std::vector<float>& x = all[{size, which}];
  if (x.empty()) {
    const std::vector<float>& l = logits(size, which);
    const double total = log_sum_exp(l);
    for (const float one : l) x.push_back(float(std::exp(double(one) - total)));
  }
  return x;
}
normal_form<softmax_row<float>> row_of(const std::vector<float>& l) {
  const auto row = normalise(softmax_row<float>(l));
  if (row.why() != status::ok) std::abort();
  return row;
}

template <class F>
void time(benchmark::State& state, std::size_t bytes, F&& f) {
  for (auto _ : state) {
    auto x = f();
    benchmark::DoNotOptimize(x);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(std::int64_t(bytes * state.iterations()));
}

// ---- the floor ----------------------------------------------------------------------------------

// Eight sums of 16 lanes: nothing but loads and additions.
float read(std::span<const float> x) {
  using V = vec<float, 16>;
  V a[8] = {V(0), V(0), V(0), V(0), V(0), V(0), V(0), V(0)};
  std::size_t i = 0;
  for (; i + 128 <= x.size(); i += 128) {
    a[0] = a[0] + V::load(&x[i]);
    a[1] = a[1] + V::load(&x[i + 16]);
    a[2] = a[2] + V::load(&x[i + 32]);
    a[3] = a[3] + V::load(&x[i + 48]);
    a[4] = a[4] + V::load(&x[i + 64]);
    a[5] = a[5] + V::load(&x[i + 80]);
    a[6] = a[6] + V::load(&x[i + 96]);
    a[7] = a[7] + V::load(&x[i + 112]);
  }
  return reduce_add(((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])));
}
void floor_read(benchmark::State& state) {
  const auto& x = logits(std::size_t(state.range(0)));
  time(state, 4 * x.size(), [&] { return read(x); });
}
void floor_read_both(benchmark::State& state) {
  const auto &q = probabilities(std::size_t(state.range(0)), 1),
             &p = probabilities(std::size_t(state.range(0)));
  time(state, 8 * p.size(), [&] { return read(q) + read(p); });
}
// One exponential per element of both rows, summed: what any step from logits to probabilities has
// to pay.
void floor_exponentials_both(benchmark::State& state) {
  const auto q = row_of(logits(vocabulary, 1)), p = row_of(logits(vocabulary));
  const auto one = [](const auto& row) {
    return one_thread::reduce<detail::add>(row, [](auto x) { return x; });
  };
  time(state, 8 * vocabulary, [&] { return one(q) + one(p); });
}

// ---- log-sum-exp --------------------------------------------------------------------------------

void lse(benchmark::State& state) {
  const auto& x = logits(std::size_t(state.range(0)));
  time(state, 4 * x.size(), [&] { return log_sum_exp(x); });
}
double scalar_lse(std::span<const float> x) {
  float top = x[0];
  double sum = 0;
  for (const float l : x) top = std::max(top, l);
  for (const float l : x) sum += std::exp(l - top);
  return top + std::log(sum);
}
void scalar_expf_lse(benchmark::State& state) {
  const auto& x = logits(std::size_t(state.range(0)));
  same(state, scalar_lse(x), log_sum_exp(x), 1e-6);
  time(state, 4 * x.size(), [&] { return scalar_lse(x); });
}
double eigen_lse(std::span<const float> x) {
  const Eigen::Map<const Eigen::ArrayXf> a(x.data(), Eigen::Index(x.size()));
  const float top = a.maxCoeff();
  return double(top) + std::log(double((a - top).exp().sum()));
}
void time_eigen_lse(benchmark::State& state) {
  const auto &x = logits(std::size_t(state.range(0))), &few = logits(in_cache);
  // It sums floats, so it is further off with more of them.
  same(state, eigen_lse(few), log_sum_exp(few), 1e-3);
  time(state, 4 * x.size(), [&] { return eigen_lse(x); });
}

// ---- two rows -----------------------------------------------------------------------------------

void tv_of_probabilities(benchmark::State& state) {
  const auto n = std::size_t(state.range(0));
  const auto q = normalise(dense_row<float>(probabilities(n, 1))),
             p = normalise(dense_row<float>(probabilities(n)));
  if (q.why() != status::ok || p.why() != status::ok) std::abort();
  time(state, 8 * n, [&] { return total_variation(row_pair(q, p)); });
}
void tv_of_logits(benchmark::State& state) {
  const auto q = row_of(logits(vocabulary, 1)), p = row_of(logits(vocabulary));
  const auto dq = normalise(dense_row<float>(probabilities(vocabulary, 1))),
             dp = normalise(dense_row<float>(probabilities(vocabulary)));
  if (dq.why() != status::ok || dp.why() != status::ok) std::abort();
  same(state, total_variation(q, p), total_variation(dq, dp), 1e-6);
  time(state, 8 * vocabulary, [&] { return total_variation(row_pair(q, p)); });
}
void residual_draw(benchmark::State& state) {
  const auto q = row_of(logits(vocabulary, 1)), p = row_of(logits(vocabulary));
  const row_pair rows(q, p);
  std::vector<double> sums(block_count(vocabulary));
  std::uint64_t i = 0;
  time(state, 8 * vocabulary, [&] {
    const auto w = weigh(rows, [](auto at) { return positive(at.p - at.q); }, sums);
    return inverse_transform(w, double(++i % 1024) / 1024);
  });
}
void scalar_residual_draw(benchmark::State& state) {
  const auto &q = logits(vocabulary, 1), &p = logits(vocabulary);
  const double lq = log_sum_exp(q), lp = log_sum_exp(p);
  std::vector<float> w(vocabulary);
  std::uint64_t i = 0;
  time(state, 8 * vocabulary, [&] {
    for (std::size_t v = 0; v < vocabulary; ++v)
      w[v] = std::max(0.f, std::exp(p[v] - float(lp)) - std::exp(q[v] - float(lq)));
    return multinomial(w, double(++i % 1024) / 1024);
  });
}
void race_of_row(benchmark::State& state) {
  const auto p = row_of(logits(vocabulary));
  const coupled_noise noise(3);
  std::uint32_t i = 0;
  time(state, 4 * vocabulary, [&] { return race(p, noise, ++i); });
}

// ---- rows as engines sample from them -----------------------------------------------------------

// How many tokens a row keeps.
std::size_t kept(const normal_form<processed_row<float>>& row) {
  std::size_t n = 0;
  for (std::size_t v = 0; v < row.size(); ++v) n += row.restriction.keeps(row.logits()[v], v);
  return n;
}
void filtered(benchmark::State& state, const sampling& how) {
  const auto& l = logits(vocabulary);
  time(state, 4 * vocabulary, [&] {
    const auto row = normalise(processed_row<float>(l, how));
    if (row.why() != status::ok) std::abort();
    return row;
  });
}
// The usual way: sort (logit, id) of the whole row, softmax, cut.
std::size_t sorted_row(const std::vector<float>& l, const sampling& how,
                       std::vector<std::pair<float, token_id>>& row) {
  row.resize(l.size());
  for (std::size_t v = 0; v < l.size(); ++v) row[v] = {l[v], token_id(v)};
  std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  std::size_t n = how.temperature == 0 ? 1
                  : how.top_k > 0      ? std::min<std::size_t>(how.top_k, l.size())
                                       : l.size();
  const float top = row[0].first;
  double total = 0, reached = 0;
  for (std::size_t i = 0; i < n; ++i) {
    row[i].first = std::exp(row[i].first - top);
    total += row[i].first;
  }
  if (how.top_p < 1) {
    std::size_t i = 0;
    while (i < n && reached < how.top_p * total) reached += row[i++].first;
    n = i;
  }
  for (std::size_t i = 0; i < n; ++i) row[i].first = float(row[i].first / total);
  return n;
}
void sorted(benchmark::State& state, const sampling& how) {
  const auto& l = logits(vocabulary);
  std::vector<std::pair<float, token_id>> row;
  const auto ours = normalise(processed_row<float>(l, how));
  if (ours.why() != status::ok) std::abort();
  const double a = double(sorted_row(l, how, row)), b = double(kept(ours));
  // a sum in another order may move the cut of top-p by a token
  same(state, a, b, 1e-4 * b);
  time(state, 4 * vocabulary, [&] { return sorted_row(l, how, row); });
}

void plain_argmax(benchmark::State& state) {
  const auto& l = logits(vocabulary);
  const auto at = [&] { return std::max_element(l.begin(), l.end()) - l.begin(); };
  const auto ours = normalise(processed_row<float>(l, {.temperature = 0}));
  if (ours.why() != status::ok || !ours.restriction.keeps(l[std::size_t(at())], std::size_t(at())))
    std::abort();
  time(state, 4 * vocabulary, at);
}

constexpr sampling greedy{.temperature = 0}, top_k{.top_k = 40}, top_p{.top_p = 0.9};

}  // namespace

BENCHMARK(floor_read)->Name("floor: read/cache")->Arg(in_cache);
BENCHMARK(lse)->Name("log-sum-exp: specagg/cache")->Arg(in_cache);
BENCHMARK(time_eigen_lse)->Name("log-sum-exp: Eigen/cache")->Arg(in_cache);
BENCHMARK(scalar_expf_lse)->Name("log-sum-exp: scalar expf/cache")->Arg(in_cache);
BENCHMARK(floor_read_both)->Name("floor: read both/cache")->Arg(in_cache / 2);
BENCHMARK(tv_of_probabilities)->Name("TV of probabilities: specagg/cache")->Arg(in_cache / 2);
BENCHMARK(floor_exponentials_both)->Name("floor: exponentials of both rows");
BENCHMARK(tv_of_logits)->Name("TV of logits: specagg");
BENCHMARK(residual_draw)->Name("residual mass and draw: specagg");
BENCHMARK(scalar_residual_draw)->Name("residual mass and draw: scalar expf");
BENCHMARK(race_of_row)->Name("exponential race: specagg");
BENCHMARK_CAPTURE(filtered, greedy, greedy)->Name("greedy row: specagg");
BENCHMARK_CAPTURE(sorted, greedy, greedy)->Name("greedy row: sorted");
BENCHMARK(plain_argmax)->Name("greedy row: plain argmax");
BENCHMARK_CAPTURE(filtered, top_k, top_k)->Name("top-k 40 row: specagg");
BENCHMARK_CAPTURE(sorted, top_k, top_k)->Name("top-k 40 row: sorted");
BENCHMARK_CAPTURE(filtered, top_p, top_p)->Name("top-p 0.9 row: specagg");
BENCHMARK_CAPTURE(sorted, top_p, top_p)->Name("top-p 0.9 row: sorted");

int main(int count, char** arguments) {
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  if (const auto floats = std::int64_t(beyond_caches() / sizeof(float)); floats > 0) {
    benchmark::RegisterBenchmark("floor: read/memory", floor_read)->Arg(floats);
    benchmark::RegisterBenchmark("log-sum-exp: specagg/memory", lse)->Arg(floats);
    benchmark::RegisterBenchmark("log-sum-exp: Eigen/memory", time_eigen_lse)->Arg(floats);
    benchmark::RegisterBenchmark("floor: read both/memory", floor_read_both)->Arg(floats / 2);
    benchmark::RegisterBenchmark("TV of probabilities: specagg/memory", tv_of_probabilities)
        ->Arg(floats / 2);
  } else {
    std::fprintf(
        stderr,
        "bench-kernels: the caches are not known, or too large: nothing is timed from memory\n");
  }
  benchmark::RunSpecifiedBenchmarks();
}
