// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model that libllama has loaded: of any kind that it knows.
#pragma once
#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/draft/vocabulary_map.hpp>
#include <specagg/error.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace llama_cpp {

// The members that cpu::tokenizer has, too, mean the same. It keeps the model alive. All members
// are thread-safe.
class tokenizer {
 public:
  explicit tokenizer(std::shared_ptr<const llama_model> model)
      : model_(std::move(model)), vocab_(llama_model_get_vocab(model_.get())) {
    const std::vector<token_id> tokens = run("a", false, false);
    adds_space_ = !tokens.empty() && piece(tokens[0]).starts_with(' ');
  }

  std::size_t size() const { return std::size_t(llama_vocab_n_tokens(vocab_)); }
  token_id bos() const { return llama_vocab_bos(vocab_); }  // no_token if the model has none
  token_id eos() const { return llama_vocab_eos(vocab_); }
  // The tokens that end a text: end of text, end of turn, and anything else that libllama knows to
  // end a generation.
  [[nodiscard]] std::vector<token_id> end_of_generation() const {
    std::vector<token_id> ends;
    for (token_id t = 0; t < llama_vocab_n_tokens(vocab_); ++t)
      if (llama_vocab_is_eog(vocab_, t)) ends.push_back(t);
    return ends;
  }
  // A hash of the vocabulary: its tokens in order, what they are, begin and end tokens.
  std::uint64_t hash() const {
    std::uint64_t h = 14695981039346656037u;  // FNV-1a
    const auto add = [&](std::uint64_t byte) { h = (h ^ byte) * 1099511628211u; };
    for (token_id t = 0; t < llama_vocab_n_tokens(vocab_); ++t) {
      for (const char* c = llama_vocab_get_text(vocab_, t); *c; ++c)
        add(static_cast<unsigned char>(*c));
      add(std::uint64_t(llama_vocab_get_attr(vocab_, t)) << 8);
    }
    add(std::uint64_t(bos()));
    add(std::uint64_t(eos()));
    return h;
  }

  // Encodes text: with the begin and end tokens that the model wants. The name of a control token
  // in the text never becomes this token. Throws specagg::error for more than 2^28 bytes.
  [[nodiscard]] std::vector<token_id> encode(std::string_view text) const {
    return run(text, true, false);
  }
  // Encodes bytes that stand inside a text: nothing is put before or after them. Throws
  // specagg::error if the tokenizer loses bytes (for byte-level BPE, bytes that are not UTF-8).
  [[nodiscard]] std::vector<token_id> encode_inside(std::string_view text) const {
    std::vector<token_id> tokens;
    // at the beginning of a text: there stands a character that does not merge with this one
    if (adds_space_) {
      for (const std::string before : {"\n", "\x01"}) {
        tokens = run(before + std::string(text), false, false);
        const std::size_t count = ends_after(tokens, before);
        tokens.erase(tokens.begin(), tokens.begin() + std::ptrdiff_t(count));
        if (count > 0) break;
      }
    } else {
      tokens = run(text, false, false);
    }
    std::string all;
    for (const token_id t : tokens) all += piece(t);
    if (all != text) throw error("text", "", "libllama's tokenizer loses bytes of it");
    return tokens;
  }
  // Encodes text in which the names of control tokens are these tokens. Nothing is put before or
  // after.
  [[nodiscard]] std::vector<token_id> encode_with_control(std::string_view text) const {
    return run(text, false, true);
  }
  [[nodiscard]] std::vector<token_id> beginning() const {
    if (!llama_vocab_get_add_bos(vocab_) || bos() == no_token) return {};
    return {bos()};
  }
  // The bytes of one token; empty for control tokens and ids outside the vocabulary.
  [[nodiscard]] std::string piece(token_id token) const {
    if (token < 0 || std::size_t(token) >= size()) return {};
    std::string bytes(64, '\0');
    for (;;) {
      const auto n =
          llama_token_to_piece(vocab_, token, bytes.data(), std::int32_t(bytes.size()), 0, false);
      bytes.resize(std::size_t(n < 0 ? -n : n));
      if (n >= 0) return bytes;
    }
  }
  // Decodes a whole text: decode(encode(text)) is the text, where the tokenizer loses none of it.
  [[nodiscard]] std::string decode(std::span<const token_id> tokens) const {
    std::string text;
    for (const token_id t : tokens) text += piece(t);
    if (adds_space_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }
  // All tokens with their bytes, for vocabulary maps (draft/vocabulary_map.hpp).
  [[nodiscard]] std::vector<token_text> texts() const {
    using kind = token_text::kind;
    std::vector<token_text> all(size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto id = token_id(i);
      if (is_control(id)) all[i] = {name(id), kind::special};
      else all[i] = {piece(id), is_unused(id) ? kind::spare : kind::text};
    }
    mark_spare_tokens(all, [&](std::string_view bytes) {
      try {
        return encode_inside(bytes);
      } catch (const error&) {
        return std::vector<token_id>();
      }
    });
    return all;
  }

  // libllama's properties of a token; its name as the file spells it; the model, which this object
  // keeps.
  bool is_control(token_id token) const { return llama_vocab_is_control(vocab_, token); }
  bool is_user_defined(token_id token) const {
    return llama_vocab_get_attr(vocab_, token) & LLAMA_TOKEN_ATTR_USER_DEFINED;
  }
  bool is_unused(token_id token) const {
    return llama_vocab_get_attr(vocab_, token) & LLAMA_TOKEN_ATTR_UNUSED;
  }
  std::string name(token_id token) const { return llama_vocab_get_text(vocab_, token); }
  const llama_model* model() const { return model_.get(); }

 private:
  std::vector<token_id> run(std::string_view text, bool add_special, bool parse_special) const {
    if (text.size() > std::size_t{1} << 28) throw error("text", "", "is longer than 2^28 bytes");
    std::vector<token_id> tokens(text.size() + 8);
    for (;;) {
      const auto n = llama_tokenize(vocab_, text.data(), std::int32_t(text.size()), tokens.data(),
                                    std::int32_t(tokens.size()), add_special, parse_special);
      tokens.resize(std::size_t(n < 0 ? -n : n));
      if (n >= 0) return tokens;
    }
  }
  // How many tokens make up `bytes`, or a space and `bytes`; 0: a token reaches beyond.
  std::size_t ends_after(const std::vector<token_id>& tokens, std::string_view bytes) const {
    std::string so_far;
    for (std::size_t i = 0; i < tokens.size() && so_far.size() <= bytes.size(); ++i) {
      so_far += piece(tokens[i]);
      if (so_far == bytes || (so_far.starts_with(' ') && so_far.substr(1) == bytes)) return i + 1;
    }
    return 0;
  }

  std::shared_ptr<const llama_model> model_;
  const llama_vocab* vocab_;
  bool adds_space_;  // before a text
};

}  // namespace llama_cpp
SPECAGG_END
