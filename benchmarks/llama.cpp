// SPDX-License-Identifier: Apache-2.0
// A single-token step of a model against reading its weights once, and 5 tokens against 1, on 1 and 2 threads.
//   bench-llama [model.gguf]
// Every row is checked before it is timed: one token at a time and all at once must give the same bits. Medians; warm.
#include <specagg/backend/cpu/llama.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace specagg;
using namespace specagg::cpu;

template <class Body>
double median_microseconds(Body&& body) {
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + 150, times.end());
  return times[150];
}

// Adds up the bits of all weights: nothing but loads.
double time_reading(const gguf_file& file, thread_pool& pool) {
  const std::byte* first = file.tensors().front().data;
  const std::byte* last = first;
  for (const auto& t : file.tensors()) {
    first = std::min(first, t.data);
    last = std::max(last, t.data + t.rows * row_bytes(t.type, t.cols));
  }
  const auto* from = reinterpret_cast<const float*>(first);
  const auto floats = static_cast<std::size_t>(last - first) / 4;
  std::vector<float> sums(floats / 4096 + 1);
  return median_microseconds([&] {
    pool.for_ranges(floats, 4096, [&](std::size_t begin, std::size_t end) {
      lanes a = 0, b = 0, c = 0, d = 0;
      for (auto i = begin; i + 64 <= end; i += 64) {
        a = max(lanes::load(from + i), a), b = max(lanes::load(from + i + 16), b);
        c = max(lanes::load(from + i + 32), c), d = max(lanes::load(from + i + 48), d);
      }
      sums[begin / 4096] = reduce_add(max(max(a, b), max(c, d)));
    });
  });
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string path = count > 1 ? arguments[1] : SPECAGG_MODELS "/target.gguf";
  const auto weights = std::make_shared<const llama_weights>(gguf_file::open(path));
  const auto vocab = weights->vocab;
  std::vector<token_id> tokens(std::min<std::size_t>(weights->context, 512));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<token_id>(i * 7919 % vocab);
  std::printf("%s, %.1f MB, %s; microseconds, medians of 300\n", path.c_str(),
              static_cast<double>(weights->file.size()) / 1e6, instruction_set);
  std::printf("threads  position  reading  1 token  / reading  5 tokens  / 1 token (v)\n");
  for (unsigned threads : {1u, 2u}) {
    const auto pool = std::make_shared<thread_pool>(threads);
    const auto reading = time_reading(weights->file, *pool);
    llama model(weights, pool);
    std::vector<float> logits(5 * vocab), single(vocab);
    for (std::size_t position : {16u, 128u, 500u}) {
      if (position + 5 > model.capacity() || position + 5 > tokens.size()) break;
      const auto five = std::span(tokens).subspan(position, 5);
      model.rollback(0);
      if (model.extend(std::span(tokens).first(position), {}) != status::ok || model.extend(five, logits) != status::ok)
        return std::fputs("the model failed\n", stderr), 1;
      model.rollback(position);
      for (std::size_t i = 0; i < 5; ++i)
        if (model.extend(five.subspan(i, 1), single) != status::ok ||
            std::memcmp(single.data(), logits.data() + i * vocab, vocab * sizeof(float)) != 0)
          return std::fputs("5 tokens at once and one by one differ\n", stderr), 1;
      const auto time = [&](std::size_t n) {
        return median_microseconds([&] {
          model.rollback(position);
          (void)model.extend(five.first(n), std::span(logits).first(n * vocab));
        });
      };
      const auto one = time(1), all = time(5);
      std::printf("%7u  %8zu  %7.0f  %7.0f  %9.2f  %8.0f  %13.2f\n", threads, position, reading, one, one / reading,
                  all, all / one);
    }
  }
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 2;
}
