// SPDX-License-Identifier: Apache-2.0
// Drawing one token from a row of logits with temperature, top-k and top-p: libllama's sampler
// chain beside ours, on the same rows. The floor: the largest logit of the row. Each of ours
// follows a draw of libllama's, which leaves less of the row in the caches.
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <set>
#include <vector>

#include <specagg/decoders.hpp>

namespace {

using namespace specagg;

constexpr float temperature = 0.8f, top_p = 0.95f;
constexpr int rows = 50, rounds = 5;

// Logits as a language model gives them: a normal distribution, and a few tokens far above it.
std::vector<float> row_of(std::size_t vocabulary, std::mt19937& random) {
  std::normal_distribution<float> low(0, 2), high(12, 3);
  std::vector<float> row(vocabulary);
  for (float& x : row) x = low(random);
  for (int i = 0; i < 30; ++i) row[random() % vocabulary] = high(random);
  return row;
}
template <class F>
double milliseconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

void print_line(std::size_t vocabulary, int top_k) {
  std::mt19937 random(1);
  llama_sampler* const chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(chain, llama_sampler_init_temp(temperature));
  if (top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(top_k));
  llama_sampler_chain_add(chain, llama_sampler_init_top_p(top_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
  const sampling how{.temperature = temperature, .top_k = std::uint32_t(top_k), .top_p = top_p};
  std::vector<llama_token_data> data(vocabulary);
  std::vector<double> scratch(verify_scratch(vocabulary));
  random_streams streams(1);
  std::vector<double> theirs, ours, floor;
  std::size_t equal = 0;
  for (int i = 0; i < rows; ++i) {
    const auto logits = row_of(vocabulary, random);
    llama_token_data_array all{};
    const auto their_draw = [&] {  // as llama_sampler_sample does it
      for (std::size_t v = 0; v < vocabulary; ++v) data[v] = {llama_token(v), logits[v], 0};
      all = {data.data(), vocabulary, -1, false};
      llama_sampler_apply(chain, &all);
    };
    token_id drawn = no_token;
    const auto our_draw = [&] {
      drawn = draw_draft(processed_row<float>(logits, how), std::uint32_t(i), 0, streams, scratch);
    };
    const auto read = [&] {
      if (!find_largest(logits.data(), vocabulary).valid) {
        std::fprintf(stderr, "sampler: no row\n");
        std::exit(1);
      }
    };
    for (int k = 0; k < rounds; ++k) {
      theirs.push_back(milliseconds(their_draw));
      ours.push_back(milliseconds(our_draw));
      theirs.push_back(milliseconds(their_draw));
      floor.push_back(milliseconds(read));
    }
    std::set<token_id> kept_there, kept_here;
    for (std::size_t k = 0; k < all.size; ++k) kept_there.insert(all.data[k].id);
    const auto row = normalise(processed_row<float>(logits, how));
    if (row.why() != status::ok || drawn == no_token) {
      std::fprintf(stderr, "sampler: no row\n");
      std::exit(1);
    }
    for (std::size_t v = 0; v < vocabulary; ++v)
      if (row[v] > 0) kept_here.insert(token_id(v));
    equal += kept_there == kept_here;
  }
  llama_sampler_free(chain);
  const auto median = [](std::vector<double>& x) {
    std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
    return x[x.size() / 2];
  };
  const double their = median(theirs), our = median(ours);
  std::printf("| %zu | %s | %.3f | %.3f | %.3f | %.1f | %zu of %d |\n", vocabulary,
              top_k > 0 ? std::to_string(top_k).c_str() : "off", their, our, median(floor),
              their / our, equal, rows);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::printf(
      "| V | top-k | libllama, ms | specagg, ms | reading the row, ms | times as fast | rows with "
      "the same tokens kept "
      "|\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const std::size_t vocabulary : {49152u, 262144u})
    for (const int top_k : {40, 0}) print_line(vocabulary, top_k);
}
