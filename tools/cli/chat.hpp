// SPDX-License-Identifier: Apache-2.0
// Conversations, for model files whose chat template is known exactly (chat_templates.hpp). The
// text of a turn never becomes a marker, in any spelling.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/backend/cpu/vocabulary.hpp>
#include <specagg/error.hpp>
#include <specagg/token.hpp>

#include "backends.hpp"
#include "chat_templates.hpp"

namespace cli {

// What a conversation needs of a model file, beside its tokenizer.
struct chat_file {
  // A control token or a user-defined one. user: any text that has its name becomes it.
  struct special {
    std::string name;
    specagg::token_id token;
    bool user;
  };
  std::string path;
  std::string form;  // the template's text
  std::vector<special> specials;
  specagg::token_id bos, eos;  // no_token: there is none
  bool space_first;            // the tokenizer puts a space before a text (SentencePiece)

  [[noreturn]] void fail(const std::string& why) const {
    throw specagg::error(path, "metadata tokenizer.chat_template", why);
  }
  static inline const std::string none = "is missing: this model has no chat template";
};

namespace detail {

// Python's strip() drops these.
inline constexpr std::string_view white_space[] = {
    " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",
    "\x1e",   "\x1f",   "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
    "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
    "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
inline std::string_view trimmed(std::string_view text) {
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : white_space) {
      while (text.starts_with(space)) text.remove_prefix(space.size()), more = true;
      while (text.ends_with(space)) text.remove_suffix(space.size()), more = true;
    }
  }
  return text;
}
// A text after the filters of a place: "|trim|..."
inline std::string_view filtered(std::string_view text, std::string_view filters) {
  const std::string_view thought = "</think>";
  while (!filters.empty()) {
    const std::string_view name = filters.substr(1, filters.find('|', 1) - 1);
    filters.remove_prefix(1 + name.size());
    const std::size_t at = text.rfind(thought);
    if (name == "trim") text = trimmed(text);
    else if (name != "some" && at != text.npos) {
      text.remove_prefix(at + thought.size());
      if (name == "without_thought")
        text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    }
  }
  return text;
}

}  // namespace detail

// The tokenizer must outlive it.
class known_chat final : public chat {
 public:
  using ids = std::vector<specagg::token_id>;
  // system: the text that stands in the template. Throws specagg::error if the file lacks a token
  // that the form writes.
  known_chat(const tokenizer& tokens, const chat_file& file, const chat_form& form,
             const std::optional<std::string>& system)
      : tokens_(&tokens), file_(file), form_(&form), default_(system.value_or("")) {
    const std::string parts =
        fmt::format("{}\n{}\n{}\n{}", form_->start, form_->next, form_->system, form_->end);
    const auto ends = tokens.end_tokens();
    for (const auto& s : file.specials) {
      if (s.name.empty()) continue;
      if (parts.find(s.name) != parts.npos) markers_.push_back(s);
      if (s.user && (file_.form.find(s.name) != file_.form.npos ||
                     std::find(ends.begin(), ends.end(), s.token) != ends.end()))
        never_of_texts_.push_back(s.name);
    }
    file_.specials.clear();
    std::stable_sort(markers_.begin(), markers_.end(),
                     [](const auto& a, const auto& b) { return a.name.size() > b.name.size(); });
    for (const std::string_view name : always_tokens)
      if (parts.find(name) != parts.npos && !marker_at(name))
        throw specagg::error(
            file_.path, "metadata tokenizer.ggml.tokens",
            fmt::format("has no special token {}, which the template needs", name));
    for (const auto& [place, token] : {std::pair{"{bos}", file_.bos}, {"{eos}", file_.eos}})
      if (parts.find(place) != parts.npos && token == specagg::no_token)
        file_.fail(fmt::format("writes {}, and the file names no such token", place));
    without_ = tokens.beginning().size();
    if (file_.space_first) with_end_ = tokens.encode("").size() > without_;
  }

  ids tokens(const std::optional<std::string>& system,
             std::span<const std::string> texts) const override {
    check(system, texts);
    writer to{*this};
    if (system && !(system->empty() && form_->system.find("|some}") != std::string_view::npos)) {
      if (form_->system.empty())
        file_.fail("has no system turn of its own: no system text is taken");
      to.write(form_->system, {.s = *system, .u = texts[0]});
    } else {
      to.write(form_->start, {.u = texts[0]});
    }
    for (std::size_t i = 1; i + 1 < texts.size(); i += 2)
      to.write(form_->next, {.u = texts[i + 1], .a = texts[i]});
    return to.ended(form_->end);
  }
  ids next(ids known, const std::optional<std::string>& system,
           std::span<const std::string> texts) const override {
    const std::string_view turn = form_->next, answer = texts[texts.size() - 2];
    const std::size_t at = turn.find("{a"), after = turn.find('}', at);
    const bool stays = turn.substr(0, at) == form_->end &&
                       detail::filtered(answer, turn.substr(at + 2, after - at - 2)) == answer;
    if (!stays) return tokens(system, texts);
    check(system, texts);
    writer to{*this, std::move(known), true};
    to.write(turn.substr(after + 1), {.u = texts.back()});
    return to.ended(form_->end);
  }

 private:
  struct texts_of_turn {
    std::string_view s = {}, u = {}, a = {};
  };
  // Special tokens in every vocabulary that was made for their templates. As ordinary text they
  // would also be what a user can write.
  static constexpr std::string_view always_tokens[] = {
      "<|im_start|>", "<|im_end|>",      "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>",   "<start_of_turn>", "<end_of_turn>"};

  const chat_file::special* marker_at(std::string_view text) const {
    const auto m = std::find_if(markers_.begin(), markers_.end(),
                                [&](const auto& one) { return text.starts_with(one.name); });
    return m == markers_.end() ? nullptr : &*m;
  }
  void check(const std::optional<std::string>& system, std::span<const std::string> texts) const {
    for (std::string_view rest = form_->reads; !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
      const auto has = [&](const std::string& text) { return text.find(word) != text.npos; };
      if ((system && has(*system)) || std::any_of(texts.begin(), texts.end(), has))
        file_.fail(fmt::format("gives the text \"{}\" a meaning, and a turn has it", word));
    }
  }

  // Tokens, and after them text that is not encoded yet: all between two markers is encoded at
  // once, whoever wrote it.
  struct writer {
    const known_chat& by;
    ids all = {};
    bool inside = false;  // the text stands behind other text
    std::string plain = {};

    void write(std::string_view part, const texts_of_turn& texts) {
      while (!part.empty()) part.remove_prefix(write_first(part, texts));
    }
    ids ended(std::string_view end) {
      write(end, {});
      flush();
      return std::move(all);
    }

   private:
    // Bytes of the part that were written.
    std::size_t write_first(std::string_view part, const texts_of_turn& texts) {
      const std::size_t close = part.find('}');
      if (part[0] == '{' && close != part.npos) {
        const std::string_view place = part.substr(1, close - 1),
                               name = place.substr(0, place.find('|')),
                               filters = place.substr(name.size());
        const auto text = name == "s"   ? &texts.s
                          : name == "u" ? &texts.u
                          : name == "a" ? &texts.a
                                        : nullptr;
        if (text) plain += detail::filtered(*text, filters);
        else if (name == "default") plain += by.default_;
        else if (name == "bos" || name == "eos") add(name == "bos" ? by.file_.bos : by.file_.eos);
        else return plain += '{', 1;
        return close + 1;
      }
      if (const auto* m = by.marker_at(part)) return add(m->token), m->name.size();
      return plain += part[0], 1;
    }
    void add(specagg::token_id token) {
      flush();
      all.push_back(token);
      inside = false;
    }
    // A user-defined piece is parsed in any text: where it is a marker, its first character is
    // encoded alone.
    void flush() {
      std::size_t from = 0;
      const auto encode_until = [&](std::size_t end) {
        const ids part = by.encoded(std::string_view(plain).substr(from, end - from), inside);
        all.insert(all.end(), part.begin(), part.end());
        from = end;
        inside = true;
      };
      for (std::size_t i = 0; i < plain.size(); ++i)
        if (std::any_of(by.never_of_texts_.begin(), by.never_of_texts_.end(),
                        [&](const auto& name) {
                          return std::string_view(plain).substr(i).starts_with(name);
                        }))
          encode_until(i + 1);
      if (from < plain.size()) encode_until(plain.size());
      plain.clear();
    }
  };
  friend struct writer;
  // SentencePiece puts a space before a text also behind a marker, as libllama and transformers do.
  ids encoded(std::string_view text, bool inside) const {
    if (inside || !file_.space_first) return tokens_->encode_inside(text);
    ids all = tokens_->encode(text);  // with the file's begin and end tokens
    if (with_end_) all.pop_back();
    all.erase(all.begin(), all.begin() + std::ptrdiff_t(without_));
    return all;
  }

  const tokenizer* tokens_;
  chat_file file_;
  const chat_form* form_;
  std::string default_;
  std::vector<chat_file::special> markers_;  // that the form writes, the longest first
  std::vector<std::string> never_of_texts_;
  std::size_t without_ = 0;
  bool with_end_ = false;
};

// The conversations of a file's template. Throws specagg::error if it is not known.
inline std::unique_ptr<const chat> open_chat(const tokenizer& tokens, const chat_file& file) {
  const general_template general(file.form);
  if (const chat_form* const form = form_of(general))
    return std::make_unique<known_chat>(tokens, file, *form, general.system);
  std::vector<std::string_view> names;
  for (const chat_form& f : chat_forms)
    for (std::string_view rest = f.names; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find(", "));
      rest.remove_prefix(std::min(rest.size(), name.size() + 2));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  file.fail(
      fmt::format("is none that is known exactly (its hash is 0x{:016x}; known are those of {}); "
                  "prompts without a template remain possible",
                  general.hash(), fmt::join(names, ", ")));
}

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

// The tokenizer of a file for cpu::llama, and its conversations.
struct cpu_tokenizer final : tokenizer_of<specagg::cpu::tokenizer> {
  specagg::cpu::gguf_file file;
  explicit cpu_tokenizer(const specagg::cpu::gguf_file& from)
      : tokenizer_of<specagg::cpu::tokenizer>(from), file(from) {}
  std::vector<specagg::token_id> end_tokens() const override { return end_tokens_of(file); }
  std::unique_ptr<const cli::chat> chat() const override {
    const std::string_view key = "tokenizer.chat_template";
    if (!file.find(key)) file.fail(key, chat_file::none);
    return open_chat(*this, chat_facts());
  }
  // What its conversations need of the file.
  chat_file chat_facts() const {
    using kind = specagg::cpu::vocabulary::kind;
    const bool sentencepiece = file.string("tokenizer.ggml.model") == "llama";
    const specagg::cpu::vocabulary words(file, sentencepiece);
    chat_file from{
        .path = file.name(),
        .form = std::string(file.string("tokenizer.chat_template")),
        .specials = {},
        .bos = words.bos,
        .eos = words.eos,
        .space_first = sentencepiece && file.flag("tokenizer.ggml.add_space_prefix", true)};
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words.kinds[i] == kind::control || words.kinds[i] == kind::user)
        from.specials.push_back(
            {std::string(words.pieces[i]), specagg::token_id(i), words.kinds[i] == kind::user});
    return from;
  }
};

}  // namespace cli
