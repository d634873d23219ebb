// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model that libllama has loaded, and its conversations.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <specagg/backend/llama_cpp/tokenizer.hpp>

#include "backends.hpp"
#include "chat.hpp"

namespace cli {

struct llama_cpp_tokenizer final : tokenizer_of<specagg::llama_cpp::tokenizer> {
  std::string file;
  llama_cpp_tokenizer(const std::shared_ptr<const llama_model>& model, const std::string& from)
      : tokenizer_of<specagg::llama_cpp::tokenizer>(model), file(from) {}
  std::vector<specagg::token_id> end_tokens() const override { return of.end_of_generation(); }
  // libllama recognises templates by parts of their texts, so its own renderer is not used.
  std::unique_ptr<const cli::chat> chat() const override {
    chat_file from{.path = file,
                   .form = {},
                   .specials = {},
                   .bos = of.bos(),
                   .eos = of.eos(),
                   .space_first = of.encode("a") != with_ends(of.encode_inside("a"))};
    const char* const form = llama_model_chat_template(of.model(), nullptr);
    if (!form) from.fail(chat_file::none);
    from.form = form;
    for (specagg::token_id t = 0; std::size_t(t) < of.size(); ++t)
      if (of.is_control(t) || of.is_user_defined(t))
        from.specials.push_back({of.name(t), t, of.is_user_defined(t)});
    return open_chat(*this, from);
  }

 private:
  // Between what encode() puts before and after a text.
  std::vector<specagg::token_id> with_ends(const std::vector<specagg::token_id>& text) const {
    auto all = of.encode("");
    all.insert(all.begin() + std::ptrdiff_t(of.beginning().size()), text.begin(), text.end());
    return all;
  }
};

}  // namespace cli
