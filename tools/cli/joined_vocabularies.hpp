// SPDX-License-Identifier: Apache-2.0
// The vocabularies of a model and of a text that has other tokens (docs/vocabularies.md).
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/draft/retokenised.hpp>
#include <specagg/draft/vocabulary_map.hpp>

namespace cli {

// The tokens of a model and of the text, and which of them are equal.
struct joined_vocabularies {
  std::vector<specagg::token_text> own, text;
  specagg::vocabulary_map map;
  std::vector<specagg::token_id> beginning;  // own tokens before any text
  template <class Tokenizer>
  joined_vocabularies(const Tokenizer& of_model, const Tokenizer& of_text)
      : own(of_model.texts()),
        text(of_text.texts()),
        map(specagg::map_of_equal_tokens(own, text)),
        beginning(of_model.beginning()) {
    // A model that begins without a token of its own has no row before the first token of a text.
    if (beginning.empty() && of_model.bos() != specagg::no_token)
      beginning.push_back(of_model.bos());
  }
  joined_vocabularies(const joined_vocabularies&) = delete;
  template <class Tokenizer>
  specagg::retokenised_text<specagg::cpu::inside_encoder<Tokenizer>> no_text(
      const Tokenizer& of_model) const {
    return {text, own, map, {&of_model}, beginning};
  }
};
// Says on standard error how much is mapped. path: of the model.
inline void say_mapped(const std::string& path, const specagg::vocabulary_map& map) {
  fmt::print(stderr, "specagg: {}: {} of {} tokens are mapped to the text's {}\n",
             specagg::printable(path, 1000), map.size(), map.draft_size(), map.target_size());
}

}  // namespace cli
