// SPDX-License-Identifier: Apache-2.0
// Conversations, for model files whose template is ChatML. A turn is
//   <|im_start|>ROLE\nTEXT<|im_end|>\n
// with the role system, user or assistant. The two markers are tokens of their own. The text of a
// turn never becomes one of them, in any spelling.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/backend/cpu/vocabulary.hpp>
#include <specagg/token.hpp>

#include "backends.hpp"

namespace cli {

// The token of this spelling, if it is a control token or a user-defined one; else no_token.
inline specagg::token_id marker(const specagg::cpu::vocabulary& words, std::string_view spelling) {
  using kind = specagg::cpu::vocabulary::kind;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words.pieces[i] == spelling &&
        (words.kinds[i] == kind::control || words.kinds[i] == kind::user))
      return specagg::token_id(i);
  return specagg::no_token;
}

// The tokens that end a text: those that the file names, and those that are known by their
// spelling.
inline std::vector<specagg::token_id> end_tokens_of(const specagg::cpu::gguf_file& file) {
  const specagg::cpu::vocabulary words(file, false);
  std::vector<specagg::token_id> ends{words.eos, marker(words, "<|im_end|>"),
                                      marker(words, "<|endoftext|>")};
  if (file.find("tokenizer.ggml.eot_token_id")) {
    const auto turn = file.integer("tokenizer.ggml.eot_token_id");
    if (turn >= words.size())
      file.fail("tokenizer.ggml.eot_token_id",
                specagg::cpu::joined(turn, " is not a token (there are ", words.size(), ")"));
    ends.push_back(specagg::token_id(turn));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::erase(ends, specagg::no_token);
  return ends;
}

class chat_ml {
 public:
  // Throws specagg::error if the file has another template than ChatML, or none.
  explicit chat_ml(const specagg::cpu::gguf_file& file)
      : words_(file, file.string("tokenizer.ggml.model") == "llama"), tokens_(file) {
    const std::string_view key = "tokenizer.chat_template";
    if (!file.find(key)) file.fail(key, "is missing: this model has no chat template");
    const std::string_view form = file.string(key);
    const auto has = [&](std::string_view part) {
      return form.find(part) != std::string_view::npos;
    };
    if (!has(begin_mark) || !has(end_mark) || has("<|im_sep|>"))
      file.fail(key, "is not ChatML, the one kind of template that --chat knows");
    begin_ = marker(words_, begin_mark);
    end_ = marker(words_, end_mark);
    if (begin_ == specagg::no_token || end_ == specagg::no_token)
      file.fail("tokenizer.ggml.tokens",
                "has no special tokens <|im_start|> and <|im_end|>, which the template needs");
    default_system_ = system_text(form);
  }

  // The beginning of a conversation: the system's turn, if there is one. system: none means the
  // template's own text.
  std::vector<specagg::token_id> beginning(const std::optional<std::string>& system) const {
    std::vector<specagg::token_id> tokens;
    if (words_.add_bos) tokens.push_back(words_.bos);
    if (const auto& text = system ? system : default_system_) append(tokens, "system", *text);
    return tokens;
  }
  // Appends the user's turn, and the beginning of the answer's.
  void ask(std::vector<specagg::token_id>& tokens, std::string_view text) const {
    append(tokens, "user", text);
    tokens.push_back(begin_);
    append(tokens, "assistant\n");
  }
  // Appends what ends the answer's turn.
  void end_answer(std::vector<specagg::token_id>& tokens) const {
    tokens.push_back(end_);
    append(tokens, "\n");
  }

 private:
  static constexpr std::string_view begin_mark = "<|im_start|>", end_mark = "<|im_end|>";

  void append(std::vector<specagg::token_id>& tokens, std::string role,
              std::string_view text) const {
    tokens.push_back(begin_);
    append(tokens, role.append("\n").append(text));
    end_answer(tokens);
  }
  // Text alone. encode() parses user-defined pieces: a marker that is one is cut after its first
  // character.
  void append(std::vector<specagg::token_id>& tokens, std::string_view text) const {
    std::size_t from = 0;
    for (std::size_t i = 0; i < text.size(); ++i)
      for (const auto token : {begin_, end_})
        if (words_.kind_of(token) == specagg::cpu::vocabulary::kind::user &&
            text.substr(i).starts_with(words_.piece(token))) {
          append_part(tokens, text.substr(from, i + 1 - from));
          from = i + 1;
        }
    append_part(tokens, text.substr(from));
  }
  void append_part(std::vector<specagg::token_id>& tokens, std::string_view text) const {
    const auto part = tokens_.encode(text);  // with the file's begin and end tokens
    tokens.insert(tokens.end(), part.begin() + words_.add_bos, part.end() - words_.add_eos);
  }
  // The template's text for conversations without a system turn:
  // "<|im_start|>system\nTEXT<|im_end|>" in a literal.
  static std::optional<std::string> system_text(std::string_view form) {
    const std::string_view before = "<|im_start|>system";
    for (std::size_t at = 0; (at = form.find(before, at)) != std::string_view::npos;
         at += before.size()) {
      std::string_view text = form.substr(at + before.size());
      text = text.substr(0, text.find(end_mark));
      if (text.starts_with("\\n")) text.remove_prefix(2);
      else if (text.starts_with("\n")) text.remove_prefix(1);
      else continue;
      if (text.find_first_of("'\"{}\\") == std::string_view::npos) return std::string(text);
    }
    return std::nullopt;
  }

  specagg::cpu::vocabulary words_;
  specagg::cpu::tokenizer tokens_;
  specagg::token_id begin_ = specagg::no_token, end_ = specagg::no_token;
  std::optional<std::string> default_system_;
};

// The tokenizer of a file for cpu::llama, and its conversations.
struct cpu_tokenizer final : tokenizer_of<specagg::cpu::tokenizer> {
  struct turns final : cli::chat {
    chat_ml form;
    explicit turns(const specagg::cpu::gguf_file& of) : form(of) {}
    std::vector<specagg::token_id> first(const std::optional<std::string>& system,
                                         const std::string& text) const override {
      auto tokens = form.beginning(system);
      form.ask(tokens, text);
      return tokens;
    }
    void next(std::vector<specagg::token_id>& tokens, const std::string& text) const override {
      form.end_answer(tokens);
      form.ask(tokens, text);
    }
  };
  specagg::cpu::gguf_file file;
  explicit cpu_tokenizer(const specagg::cpu::gguf_file& from)
      : tokenizer_of<specagg::cpu::tokenizer>(from), file(from) {}
  std::vector<specagg::token_id> end_tokens() const override { return end_tokens_of(file); }
  std::unique_ptr<const cli::chat> chat() const override { return std::make_unique<turns>(file); }
};

}  // namespace cli
