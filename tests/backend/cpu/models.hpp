// SPDX-License-Identifier: Apache-2.0
// Models and their rows, for tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

namespace test {

inline std::shared_ptr<const specagg::cpu::llama_weights> bundled(const std::string& name) {
  const auto path = std::string(SPECAGG_MODELS) + "/" + name + ".gguf";
  return std::make_shared<const specagg::cpu::llama_weights>(specagg::cpu::gguf_file::open(path));
}
// Of a file in memory, which they must not outlive.
inline std::shared_ptr<const specagg::cpu::llama_weights> weights_of(const gguf_bytes& bytes) {
  return std::make_shared<const specagg::cpu::llama_weights>(bytes.open());
}

inline std::vector<specagg::token_id> some_tokens(std::size_t count, std::size_t vocab,
                                                  unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<specagg::token_id> tokens(count);
  for (auto& t : tokens) t = static_cast<specagg::token_id>(random() % vocab);
  return tokens;
}
// All rows, fed at once.
std::vector<float> rows_of(auto& model, std::span<const specagg::token_id> tokens) {
  std::vector<float> logits(tokens.size() * model.vocab_size());
  REQUIRE(model.extend(tokens, logits) == specagg::status::ok);
  return logits;
}
// Minus the log-probability, in nats, of the tokens after the first; the model has seen none of
// them.
double negative_log_likelihood(auto& model, std::span<const specagg::token_id> tokens) {
  const auto logits = rows_of(model, tokens);
  const std::size_t vocab = model.vocab_size();
  double nll = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const auto row = std::span(logits).subspan(i * vocab, vocab);
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x});
    nll += std::log(sum) - double{row[static_cast<std::size_t>(tokens[i + 1])]};
  }
  return nll;
}
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Rolls back to anywhere, over wrong tokens, and checks that the rows of the right ones come again:
// `expected` are the rows of all tokens. Each time at most `most` tokens.
void check_rollbacks(auto& model, std::span<const specagg::token_id> tokens,
                     std::span<const float> expected, unsigned seed, int times, std::size_t most) {
  std::mt19937 random(seed);
  const std::size_t vocab = model.vocab_size();
  for (int step = 0; step < times; ++step) {
    const std::size_t i = random() % model.position(),
                      n = 1 + random() % std::min(tokens.size() - i, most);
    (void)model.rollback(i);
    rows_of(model, some_tokens(1 + random() % 4, vocab, 99));
    (void)model.rollback(i);
    CHECK(same_bits(rows_of(model, tokens.subspan(i, n)), expected.subspan(i * vocab, n * vocab)));
  }
}

}  // namespace test
