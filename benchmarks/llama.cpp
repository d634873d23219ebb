// SPDX-License-Identifier: Apache-2.0
// What n tokens of a model cost in one call, t(n), against reading its weights once.
//   bench-llama [model.gguf] [--against llama.cpp's times]
// The second file is what benchmarks/llama_cpp/times.cpp prints for the same model; scripts/bench
// runs both. Every row of logits is checked before it is timed: one token at a time and all at once
// must give the same bits. Medians; warm; 100 tokens of context.
#include <specagg/backend/cpu/llama.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace specagg;
using namespace specagg::cpu;

constexpr std::size_t context = 100, prompt = 256;
constexpr std::size_t counts[] = {1, 2, 3, 5, 9, 17};

template <class Body>
double median_milliseconds(int repetitions, Body&& body) {
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[std::size_t(repetitions) / 2];
}

// The memory of every matrix that a token is multiplied with.
std::vector<std::span<const std::byte>> memory_of(const llama_weights& w) {
  std::vector<std::span<const std::byte>> all;
  const auto add = [&](const matrix& m) {
    if (m.strips) all.emplace_back(m.strips.get(), packed_bytes(m));
    else all.emplace_back(m.data, m.rows * row_bytes(m.type, m.cols));
  };
  for (const auto& l : w.layers)
    for (const auto* m : {&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down}) add(*m);
  add(w.output);
  return all;
}

// Adds up the bits of all weights: nothing but loads.
void read_all(const std::vector<std::span<const std::byte>>& all, thread_pool& pool) {
  static std::atomic<float> sink;  // or the compiler would leave the loads out
  for (const auto& bytes : all) {
    const auto* from = reinterpret_cast<const float*>(bytes.data());
    const auto floats = bytes.size() / sizeof(float);
    pool.for_ranges(floats, 4096, [&](std::size_t begin, std::size_t end) {
      lanes a = 0, b = 0, c = 0, d = 0;
      for (auto i = begin; i + 64 <= end; i += 64) {
        a = max(lanes::load(from + i), a);
        b = max(lanes::load(from + i + 16), b);
        c = max(lanes::load(from + i + 32), c);
        d = max(lanes::load(from + i + 48), d);
      }
      sink.store(reduce_add(max(max(a, b), max(c, d))), std::memory_order_relaxed);
    });
  }
}

using rival_times = std::map<std::pair<unsigned, std::size_t>, double>;  // of (threads, n), ms

// Reads the context and what is next. Ends the program unless tokens at once and one by one give
// the same rows, which are then in `logits`.
void check_rows(llama& model, std::span<const token_id> at, std::span<const token_id> next,
                std::span<float> logits) {
  const std::size_t vocab = model.vocab_size();
  std::vector<float> single(vocab);
  if (model.extend(at, {}) != status::ok || model.extend(next, logits) != status::ok) {
    std::fputs("the model failed\n", stderr);
    std::exit(1);
  }
  (void)model.rollback(context);
  for (std::size_t i = 0; i < next.size(); ++i)
    if (model.extend(next.subspan(i, 1), single) != status::ok ||
        std::memcmp(single.data(), logits.data() + i * vocab, vocab * sizeof(float)) != 0) {
      std::fputs("tokens at once and one by one differ\n", stderr);
      std::exit(1);
    }
}

// The lines of so many threads.
void print_lines(const std::shared_ptr<const llama_weights>& weights,
                 std::span<const token_id> tokens, unsigned threads, rival_times& theirs) {
  const auto vocab = weights->vocab;
  const auto memory = memory_of(*weights);
  const auto pool = std::make_shared<thread_pool>(threads);
  llama model(weights, pool);
  if (model.capacity() < context + std::ranges::max(counts))
    throw std::runtime_error("the model's context is short");
  std::vector<float> logits(std::ranges::max(counts) * vocab);
  const auto at = tokens.first(context);
  const auto next = tokens.first(std::ranges::max(counts));
  check_rows(model, at, next, logits);
  // In turn, so that a slow minute of the machine meets all of them.
  std::map<std::size_t, std::vector<double>> times;
  std::vector<double> reading;
  for (int round = 0; round < 7; ++round) {
    reading.push_back(median_milliseconds(5, [&] { read_all(memory, *pool); }));
    for (const std::size_t n : counts)
      times[n].push_back(median_milliseconds(5, [&] {
        (void)model.rollback(context);
        (void)model.extend(next.first(n), std::span(logits).first(n * vocab));
      }));
  }
  const auto median = [](std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + 3, x.end());
    return x[3];
  };
  const auto floor = median(reading), one = median(times[1]);
  std::printf("| %u | reading | %.2f | 1.00 | |%s\n", threads, floor,
              theirs.empty() ? "" : " | | |");
  const auto compared = [&](std::size_t n, double ms) {
    const auto their = theirs.find({threads, n});
    if (their != theirs.end())
      std::printf(" %.2f | %.2f | %.2f |", their->second, their->second / theirs[{threads, 1}],
                  their->second / ms);
    std::printf("\n");
  };
  for (const std::size_t n : counts) {
    const auto ms = median(times[n]);
    std::printf("| %u | %zu | %.2f | %.2f | %.2f |", threads, n, ms, ms / floor, ms / one);
    compared(n, ms);
  }
  if (tokens.size() < prompt || model.capacity() < prompt) return;
  const auto prefill = median_milliseconds(5, [&] {
    (void)model.rollback(0);
    (void)model.extend(tokens, {});
  });
  std::printf("| %u | prefill of %zu | %.0f | %.1f | %.1f |", threads, prompt, prefill,
              prefill / floor, prefill / one);
  compared(prompt, prefill);
}

void print_head(const std::string& path, const llama_weights& weights, double loading,
                bool compared) {
  const auto memory = memory_of(weights);
  std::size_t bytes = 0;
  for (const auto& m : memory) bytes += m.size();
  std::printf("%s: %.1f MB of weights, loaded in %.0f ms; %s; %zu tokens of context; medians\n\n",
              path.substr(path.rfind('/') + 1).c_str(), double(bytes) / 1e6, loading,
              instruction_set, context);
  std::printf(
      "| threads | n | t(n), ms | / reading the weights | v = t(n) / t(1) |%s\n| ---: | ---: | "
      "---: | ---: | ---: "
      "|%s\n",
      compared ? " llama.cpp, ms | its v | llama.cpp / ours |" : "",
      compared ? " ---: | ---: | ---: |" : "");
}

}  // namespace

int main(int count, char** arguments) try {
  std::string path = SPECAGG_MODELS "/target.gguf";
  rival_times theirs;
  for (int i = 1; i < count; ++i) {
    if (std::string(arguments[i]) != "--against") {
      path = arguments[i];
      continue;
    }
    std::ifstream file(i + 1 < count ? arguments[++i] : "");
    if (!file) {
      std::fprintf(stderr, "bench-llama: --against: cannot read the file\n");
      return 2;
    }
    std::pair<unsigned, std::size_t> key;
    for (double ms; file >> key.first >> key.second >> ms;) theirs[key] = ms;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto weights = std::make_shared<const llama_weights>(gguf_file::open(path));
  const std::chrono::duration<double, std::milli> loading =
      std::chrono::steady_clock::now() - start;
  std::vector<token_id> tokens(std::min(weights->context, prompt));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<token_id>(i * 7919 % weights->vocab);
  print_head(path, *weights, loading.count(), !theirs.empty());
  for (const unsigned threads : {1u, 2u}) print_lines(weights, tokens, threads, theirs);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
