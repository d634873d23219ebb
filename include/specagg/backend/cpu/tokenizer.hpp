// SPDX-License-Identifier: Apache-2.0
// The tokenizer stored in a GGUF file: SentencePiece ("llama") or byte-level BPE ("gpt2"), as the
// file says.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <specagg/backend/cpu/byte_level_bpe.hpp>
#include <specagg/backend/cpu/sentencepiece.hpp>
#include <specagg/draft/vocabulary_map.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace cpu {

// Immutable, so threads may share it; copies share the file. The constructor throws specagg::error
// if the file has no tokenizer of these kinds, or a wrong one.
class tokenizer {
 public:
  explicit tokenizer(const gguf_file& file) : model_(of(file)) {}

  std::size_t size() const { return words().size(); }
  token_id bos() const { return words().bos; }  // no_token if the file names none
  token_id eos() const { return words().eos; }
  // A hash of the vocabulary (pieces in order, their types, begin and end tokens). It is the same
  // on every machine.
  std::uint64_t hash() const { return words().hash; }

  // Whether the file calls this token of the vocabulary unused: it fills up the vocabulary.
  bool is_unused(token_id token) const {
    return words().kind_of(token) == vocabulary::kind::unused;
  }

  // Encodes text. The file says whether a begin token and an end token are added. O(n log n).
  [[nodiscard]] std::vector<token_id> encode(std::string_view text) const {
    return std::visit([&](const auto& m) { return m.encode(text); }, model_);
  }
  // Encodes bytes that stand inside a text: nothing is put before or after them.
  [[nodiscard]] std::vector<token_id> encode_inside(std::string_view text) const {
    return std::visit([&](const auto& m) { return m.encode_inside(text); }, model_);
  }
  // The tokens that encode() puts before a text: the begin token, if the file says so.
  [[nodiscard]] std::vector<token_id> beginning() const {
    if (!words().add_bos) return {};
    return {words().bos};
  }
  // The bytes of one token; empty for control tokens and ids outside the vocabulary. A character
  // may consist of several tokens, so a program that prints a stream must hold an incomplete one
  // back.
  [[nodiscard]] std::string piece(token_id token) const {
    return std::visit([&](const auto& m) { return m.piece(token); }, model_);
  }
  // Decodes a whole text: decode(encode(text)) is the text.
  [[nodiscard]] std::string decode(std::span<const token_id> tokens) const {
    return std::visit([&](const auto& m) { return m.decode(tokens); }, model_);
  }
  // All tokens with their bytes; special ones with their names. If several tokens have the same
  // bytes, all of them but the token that encode_inside() gives are spare. For vocabulary maps
  // (draft/vocabulary_map.hpp).
  [[nodiscard]] std::vector<token_text> texts() const {
    using kind = vocabulary::kind;
    const vocabulary& w = words();
    std::vector<token_text> all(w.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto id = token_id(i);
      if (w.kinds[i] == kind::control)
        all[i] = {std::string(w.pieces[i]), token_text::kind::special};
      else
        all[i] = {piece(id),
                  w.kinds[i] == kind::unused ? token_text::kind::spare : token_text::kind::text};
    }
    mark_spare_tokens(all, [&](std::string_view bytes) { return encode_inside(bytes); });
    return all;
  }

 private:
  using models = std::variant<sentencepiece, byte_level_bpe>;
  static models of(const gguf_file& file) {
    const auto model = file.string("tokenizer.ggml.model");
    if (model == "llama") return sentencepiece(file);
    if (model == "gpt2") return byte_level_bpe(file);
    file.fail("tokenizer.ggml.model",
              joined("\"", printable(model),
                     "\" is not supported (\"llama\", SentencePiece BPE, and \"gpt2\", "
                     "byte-level BPE, are)"));
  }
  const vocabulary& words() const {
    return std::visit([](const auto& m) -> const vocabulary& { return m.words(); }, model_);
  }

  models model_;
};

// encode_inside() for a retokenised_text, of this or another tokenizer: no tokens where a byte has
// no piece. The tokenizer must outlive it.
template <class Tokenizer = tokenizer>
struct inside_encoder {
  const Tokenizer* own;
  std::vector<token_id> operator()(std::string_view text) const {
    try {
      return own->encode_inside(text);
    } catch (const error&) {
      return {};
    }
  }
};
template <class Tokenizer>
inside_encoder(const Tokenizer*) -> inside_encoder<Tokenizer>;

}  // namespace cpu
SPECAGG_END
