// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model that libllama has loaded, and its conversations.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <specagg/backend/llama_cpp/chat_template.hpp>
#include <specagg/backend/llama_cpp/tokenizer.hpp>

#include "backends.hpp"

namespace cli {

struct llama_cpp_tokenizer final : tokenizer_of<specagg::llama_cpp::tokenizer> {
  struct turns final : cli::chat {
    specagg::llama_cpp::tokenizer tokens;
    specagg::llama_cpp::chat_template form;
    turns(const specagg::llama_cpp::tokenizer& of, const std::string& file)
        : tokens(of), form(tokens, file) {}
    std::vector<specagg::token_id> first(const std::optional<std::string>& system,
                                         const std::string& text) const override {
      return form.first(system, text);
    }
    void next(std::vector<specagg::token_id>& all, const std::string& text) const override {
      form.next(all, text);
    }
  };
  std::string file;
  llama_cpp_tokenizer(const std::shared_ptr<const llama_model>& model, const std::string& from)
      : tokenizer_of<specagg::llama_cpp::tokenizer>(model), file(from) {}
  std::vector<specagg::token_id> end_tokens() const override { return of.end_of_generation(); }
  std::unique_ptr<const cli::chat> chat() const override {
    return std::make_unique<turns>(of, file);
  }
};

}  // namespace cli
