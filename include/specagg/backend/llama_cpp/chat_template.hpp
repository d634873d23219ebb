// SPDX-License-Identifier: Apache-2.0
// Conversations in the form that libllama makes of a model's chat template. libllama runs no
// template: it recognises a kind by parts of the text, and writes that kind. A template that begins
// the answer (<think>), has a system text of its own, trims texts or renames roles may ask for
// another prompt, which nothing here notices. The command line and the server do not use it: they
// know templates by their whole text (docs/command-line.md).
#pragma once
#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/backend/llama_cpp/tokenizer.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace llama_cpp {

// The template is applied to turns whose texts are placeholders. The text between the placeholders
// is the template's own. Names of control tokens become these tokens only there, so a user's text
// never becomes a control token.
class chat_template {
 public:
  // file: for the message. Throws specagg::error if the model has no template, or a template that
  // libllama does not know.
  chat_template(const tokenizer& tokens, const std::string& file) : tokens_(&tokens) {
    const char* const form = llama_model_chat_template(tokens.model(), nullptr);
    if (!form)
      throw error(file, "tokenizer.chat_template", "is missing: this model has no chat template");
    form_ = form;
    const auto parts = parts_of({{"user", mark}, {"assistant", mark}, {"user", mark}});
    if (parts.size() != 4)
      throw error(file, "tokenizer.chat_template",
                  "is none that libllama knows, or does not write each turn once");
    for (token_id t = 0; std::size_t(t) < tokens.size(); ++t)
      if (tokens.is_control(t) || tokens.is_user_defined(t))
        if (const auto name = tokens.name(t); has(parts, name))
          markers_.push_back({name, tokens.is_user_defined(t)});
    begin_ = parts[0];
    before_answer_ = parts[3];
    between_ = parts[2];
  }

  // The beginning of a conversation, until its first answer. system: no text means no system turn.
  [[nodiscard]] std::vector<token_id> first(const std::optional<std::string>& system,
                                            const std::string& text) const {
    std::vector<token_id> all = tokens_->beginning();
    if (system) {
      const auto parts = parts_of({{"system", mark}, {"user", mark}});
      if (parts.size() != 3) throw error("--system", "", "the model's template has no system turn");
      append(all, {parts[0], parts[1], parts[2]}, {*system, text});
    } else {
      append(all, {begin_, before_answer_}, {text});
    }
    return all;
  }
  // Appends what ends an answer, the user's next turn, and the beginning of the next answer.
  void next(std::vector<token_id>& all, const std::string& text) const {
    append(all, {between_, before_answer_}, {text});
  }

 private:
  using turn = std::pair<std::string, std::string>;  // role, text
  struct marker {
    std::string name;
    bool user_defined;
  };
  static constexpr const char* mark = "\x01\x02";  // stands for a turn's text

  static bool has(const std::vector<std::string>& parts, const std::string& name) {
    return !name.empty() && std::any_of(parts.begin(), parts.end(),
                                        [&](const auto& p) { return p.find(name) != p.npos; });
  }
  // The texts that the template writes before, between and after the placeholders; empty if it
  // refuses the turns.
  std::vector<std::string> parts_of(const std::vector<turn>& turns) const {
    std::vector<llama_chat_message> messages;
    for (const turn& t : turns) messages.push_back({t.first.c_str(), t.second.c_str()});
    std::string all(4096, '\0');
    for (;;) {
      const auto n = llama_chat_apply_template(form_.c_str(), messages.data(), messages.size(),
                                               true, all.data(), std::int32_t(all.size()));
      if (n < 0) return {};
      const bool fits = std::size_t(n) <= all.size();
      all.resize(std::size_t(n));
      if (fits) break;
    }
    std::vector<std::string> parts;
    std::size_t from = 0;
    for (std::size_t at; (at = all.find(mark, from)) != std::string::npos; from = at + 2)
      parts.push_back(all.substr(from, at - from));
    parts.push_back(all.substr(from));
    return parts;
  }
  // parts[0] texts[0] parts[1] ... Between two control tokens all text is encoded at once, whoever
  // wrote it.
  void append(std::vector<token_id>& all, const std::vector<std::string>& parts,
              const std::vector<std::string>& texts) const {
    std::string plain;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::size_t first = std::string::npos, last = 0;  // the control tokens of this part
      for (const marker& m : markers_) {
        const std::size_t at = parts[i].find(m.name);
        if (at == std::string::npos) continue;
        first = std::min(first, at);
        last = std::max(last, parts[i].rfind(m.name) + m.name.size());
      }
      if (first == std::string::npos) {
        plain += parts[i];
      } else {
        append_plain(all, plain + parts[i].substr(0, first));
        for (const token_id t : tokens_->encode_with_control(parts[i].substr(first, last - first)))
          all.push_back(t);
        plain = parts[i].substr(last);
      }
      if (i < texts.size()) plain += texts[i];
    }
    append_plain(all, plain);
  }
  // libllama reads user-defined tokens in any text. A marker that is one is cut after its first
  // character.
  void append_plain(std::vector<token_id>& all, std::string_view text) const {
    std::size_t from = 0;
    const auto add = [&](std::size_t end) {
      for (const token_id t : tokens_->encode_inside(text.substr(from, end - from)))
        all.push_back(t);
      from = end;
    };
    for (std::size_t i = 0; i < text.size(); ++i)
      if (std::any_of(markers_.begin(), markers_.end(), [&](const marker& m) {
            return m.user_defined && text.substr(i).starts_with(m.name);
          }))
        add(i + 1);
    add(text.size());
  }

  const tokenizer* tokens_;
  std::string form_;
  std::vector<marker> markers_;
  std::string begin_, between_, before_answer_;
};

}  // namespace llama_cpp
SPECAGG_END
