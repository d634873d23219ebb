// SPDX-License-Identifier: Apache-2.0
// The tokenizer stored in a GGUF file: SentencePiece ("llama") or byte-level BPE ("gpt2"), as the file says.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <specagg/backend/cpu/byte_level_bpe.hpp>
#include <specagg/backend/cpu/sentencepiece.hpp>
#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

class tokenizer {
 public:
  explicit tokenizer(const gguf_file& file) : model_(of(file)) {}

  std::size_t size() const { return words().size(); }
  token_id bos() const { return words().bos; }  // no_token if the file names none
  token_id eos() const { return words().eos; }
  // A hash of the vocabulary (pieces in order, their types, begin and end tokens). It is the same on every machine.
  std::uint64_t hash() const { return words().hash; }

  // Encodes text. The file says whether a begin token and an end token are added. O(n log n).
  std::vector<token_id> encode(std::string_view text) const {
    return std::visit([&](const auto& m) { return m.encode(text); }, model_);
  }
  // The bytes of one token; empty for control tokens and ids outside the vocabulary. A character may consist of several
  // tokens, so a program that prints a stream must hold an incomplete one back.
  std::string piece(token_id token) const {
    return std::visit([&](const auto& m) { return m.piece(token); }, model_);
  }
  // Decodes a whole text: decode(encode(text)) is the text.
  std::string decode(std::span<const token_id> tokens) const {
    return std::visit([&](const auto& m) { return m.decode(tokens); }, model_);
  }

 private:
  using models = std::variant<sentencepiece, byte_level_bpe>;
  static models of(const gguf_file& file) {
    const auto model = file.string("tokenizer.ggml.model");
    if (model == "llama") return sentencepiece(file);
    if (model == "gpt2") return byte_level_bpe(file);
    file.fail("tokenizer.ggml.model", text("\"", printable(model),
                                           "\" is not supported (\"llama\", SentencePiece BPE, and \"gpt2\", "
                                           "byte-level BPE, are)"));
  }
  const vocabulary& words() const {
    return std::visit([](const auto& m) -> const vocabulary& { return m.words(); }, model_);
  }

  models model_;
};

}  // namespace cpu
SPECAGG_END
