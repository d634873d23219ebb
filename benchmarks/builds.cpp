// SPDX-License-Identifier: Apache-2.0
// One lossless step (V = 128,256, 4 drafted tokens, nothing known of the rows) as this file is
// compiled, and beside it a plain loop: the maximum of each of the nine rows, and the sum of expf
// over it. scripts/bench compiles it six times. Prints: instruction set, milliseconds of the step,
// milliseconds of the loop (medians of 31, by turns).
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include <specagg/decoders.hpp>

int main() {
  constexpr std::size_t V = 128256, gamma = 4;
  const specagg::random_streams numbers(1);
  std::array<std::vector<float>, gamma> q;
  std::array<std::vector<float>, gamma + 1> p;
  for (std::uint32_t j = 0; j <= gamma; ++j) {
    for (std::uint32_t v = 0; v < V; ++v) {
      const auto u = [&](std::uint32_t k) {
        return float(numbers.uniform({specagg::stream::draft, v, 3 * j + k}));
      };
      p[j].push_back(4 * (u(0) + u(1) - 1));
      if (j < gamma) q[j].push_back(p[j].back() + u(2) / 4);
    }
  }
  std::array<specagg::token_id, gamma> drafted;  // likely ones, so that most are kept
  for (std::size_t j = 0; j < gamma; ++j)
    drafted[j] = specagg::token_id(std::max_element(p[j].begin(), p[j].end()) - p[j].begin());
  std::vector<double> scratch(specagg::verify_scratch(V));
  std::array<specagg::emission, gamma + 1> out;

  std::vector<double> steps, loops;
  volatile double kept = 0;
  const auto timed = [](std::vector<double>& times, const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  };
  for (std::uint32_t turn = 0; turn < 31; ++turn) {
    timed(steps, [&] {
      specagg::random_streams chooser(2, turn);
      const auto verdict = specagg::verify_token(
          {.tokens = drafted, .start = 0},
          specagg::rows_of(drafted.size(),
                           [&](std::size_t j) { return specagg::softmax_row<float>(q[j]); }),
          specagg::rows_of(drafted.size() + 1,
                           [&](std::size_t j) { return specagg::softmax_row<float>(p[j]); }),
          specagg::lossless{}, chooser, out, scratch);
      kept = kept + double(verdict.accepted);
    });
    timed(loops, [&] {
      const auto add = [&](const std::vector<float>& row) {
        const float top = *std::max_element(row.begin(), row.end());
        double sum = 0;
        for (const float x : row) sum += std::exp(x - top);
        kept = kept + sum;
      };
      for (const auto& row : q) add(row);
      for (const auto& row : p) add(row);
    });
  }
  const auto median = [](std::vector<double>& x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  };
  std::printf("%s %.3f %.3f\n", specagg::instruction_set, median(steps), median(loops));
}
