// SPDX-License-Identifier: Apache-2.0
// Tokens that fill up a vocabulary.
#pragma once
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <specagg/token.hpp>

namespace cli {

// The tokens that the file of a tokenizer calls unused. They fill up the vocabulary, and are never
// drawn: mask() takes them out of a row of logits.
template <class Tokenizer>
std::vector<specagg::token_id> unused_tokens(const Tokenizer& of) {
  std::vector<specagg::token_id> all;
  for (specagg::token_id t = 0; std::size_t(t) < of.size(); ++t)
    if (of.is_unused(t)) all.push_back(t);
  return all;
}
inline void mask(std::span<float> logits, std::span<const specagg::token_id> tokens) {
  for (const specagg::token_id t : tokens)
    if (std::size_t(t) < logits.size())
      logits[std::size_t(t)] = -std::numeric_limits<float>::infinity();
}

}  // namespace cli
