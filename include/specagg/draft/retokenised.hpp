// SPDX-License-Identifier: Apache-2.0
// A model that reads a text of another vocabulary: it gets the text's bytes, in its own tokens.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/draft/vocabulary_map.hpp>
#include <specagg/logit_source.hpp>

SPECAGG_BEGIN

// A text, and the same bytes in the tokens of another vocabulary: the own tokens.
//
// push() encodes the last `lookback` own tokens again, together with the bytes of the new token: an
// encoder may merge across the boundary, and a character may end only now. So the own tokens are
// nearly always those of the whole text encoded at once, at a cost that does not grow with the
// text. They are a function of the text's tokens alone. Special tokens of the text become the own
// special token of their name; without one they are left out. A token whose bytes cannot be written
// in own tokens is left out, too.
//
// encode: called as encode(std::string_view), returns the own tokens (std::vector<token_id>) of
// bytes that stand inside a text: nothing is put before or after them. If it cannot write the
// bytes, it returns other tokens, or none. push() allocates; pop() does not.
template <class Encode>
class retokenised_text {
 public:
  static constexpr std::size_t lookback = 8;
  // theirs: the tokens of the text's vocabulary. own: the tokens of the other vocabulary, which
  // `map` maps to theirs. All three must outlive the object. beginning: own tokens that stand
  // before any text.
  retokenised_text(std::span<const token_text> theirs, std::span<const token_text> own,
                   const vocabulary_map& map, Encode encode,
                   std::span<const token_id> beginning = {})
      : theirs_(theirs),
        own_(own),
        map_(&map),
        encode_(std::move(encode)),
        beginning_(beginning.size()),
        tokens_(beginning.begin(), beginning.end()) {}

  std::size_t size() const { return steps_.size(); }  // tokens of the text
  // valid until the next push() or pop()
  std::span<const token_id> own_tokens() const { return tokens_; }

  // token_out_of_range: t is no token of the text's vocabulary. Then, and if the encoder throws,
  // the text is as it was.
  status push(token_id t) {
    if (t < 0 || std::size_t(t) >= theirs_.size()) return status::token_out_of_range;
    const token_text& next = theirs_[std::size_t(t)];
    if (next.in_text().empty()) {
      const token_id d = map_->from(t);
      const bool is_there = tokens_.size() == beginning_ && beginning_ > 0 && tokens_.back() == d;
      steps_.push_back({tokens_.size(), 0});
      if (d != no_token && is_special(d) && !is_there) tokens_.push_back(d);
      return status::ok;
    }
    std::size_t kept = tokens_.size();
    while (kept > beginning_ && tokens_.size() - kept < lookback && !is_special(tokens_[kept - 1]))
      --kept;
    std::string bytes;
    for (std::size_t i = kept; i < tokens_.size(); ++i) bytes += own_text(tokens_[i]);
    bytes += next.bytes;
    const std::vector<token_id> again = encode_(std::string_view(bytes));
    if (!spells(again, bytes)) {
      steps_.push_back({tokens_.size(), 0});
      return status::ok;
    }
    std::size_t same = 0;
    while (kept < tokens_.size() && same < again.size() && tokens_[kept] == again[same]) {
      ++kept;
      ++same;
    }
    const auto changed = tokens_.begin() + std::ptrdiff_t(kept);
    steps_.push_back({kept, std::size_t(tokens_.end() - changed)});
    removed_.insert(removed_.end(), changed, tokens_.end());
    tokens_.resize(kept);
    tokens_.insert(tokens_.end(), again.begin() + std::ptrdiff_t(same), again.end());
    return status::ok;
  }
  // Undoes the last push(). There must be one.
  void pop() {
    const step last = steps_.back();
    steps_.pop_back();
    const auto removed = removed_.end() - std::ptrdiff_t(last.removed);
    tokens_.resize(last.kept);
    tokens_.insert(tokens_.end(), removed, removed_.end());
    removed_.erase(removed, removed_.end());
  }

 private:
  // The change that a token of the text made: how many own tokens stayed, and how many were
  // removed.
  struct step {
    std::size_t kept, removed;
  };
  bool known(token_id d) const { return d >= 0 && std::size_t(d) < own_.size(); }
  bool is_special(token_id d) const {
    return !known(d) || own_[std::size_t(d)].is == token_text::kind::special;
  }
  std::string_view own_text(token_id d) const { return own_[std::size_t(d)].in_text(); }
  bool spells(std::span<const token_id> tokens, std::string_view bytes) const {
    for (const token_id d : tokens) {
      if (is_special(d) || !bytes.starts_with(own_text(d))) return false;
      bytes.remove_prefix(own_text(d).size());
    }
    return bytes.empty();
  }

  std::span<const token_text> theirs_, own_;
  const vocabulary_map* map_;
  Encode encode_;
  std::size_t beginning_;
  std::vector<token_id> tokens_, removed_;  // removed_: by all steps, the last step's at the end
  std::vector<step> steps_;
};

// A model that reads tokens of the text's vocabulary, and gives rows of its own: extend() takes V
// logits a row where V is the model's vocabulary. position() and rollback() count tokens of the
// text. The model's cache keeps the common beginning of the own tokens before and after a change.
// Each row is one call of the model, because the own tokens may change with every token of the
// text.
//
// A LogitSource. Its capacity is the model's; a text that needs more own tokens than that gets
// context_full. A text without own tokens has no row: no_draft. model must outlive the object.
template <LogitSource M, class Encode>
class retokenising_source {
 public:
  using value_type = typename M::value_type;
  retokenising_source(M& model, retokenised_text<Encode> nothing)
      : model_(&model), text_(std::move(nothing)) {}

  std::size_t vocab_size() const { return model_->vocab_size(); }
  std::size_t capacity() const { return model_->capacity(); }
  std::size_t position() const { return text_.size(); }
  // The text in the model's own tokens, until the text changes.
  std::span<const token_id> own_tokens() const { return text_.own_tokens(); }
  status rollback(std::size_t n) {  // the model goes back when it is called next
    while (text_.size() > n) text_.pop();
    return status::ok;
  }
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    const std::size_t v = vocab_size(), rows = logits.size() / v, before = position();
    if (rows > tokens.size() || logits.size() % v != 0) return status::invalid_parameter;
    // the token that the first row follows is tokens[first]
    const std::size_t first = tokens.size() - rows;
    status s = status::ok;
    for (std::size_t i = 0; i < tokens.size() && s == status::ok; ++i) {
      s = text_.push(tokens[i]);
      if (s == status::ok && i >= first) s = row_after({}, logits.subspan((i - first) * v, v));
    }
    if (s == status::ok && rows == 0) s = row_after({}, {});
    if (s != status::ok) (void)rollback(before);
    return s;
  }
  // The text, and the own tokens that the model has read: for another source, whose model is a copy
  // of this one's with its state.
  struct state {
    retokenised_text<Encode> text;
    std::vector<token_id> held;
  };
  // The state that resume() of such a source takes.
  state save() const { return {text_, held_}; }
  void resume(state s) {
    text_ = std::move(s.text);
    held_ = std::move(s.held);
  }
  // Reads tokens of the text without a call of the model.
  status read(std::span<const token_id> tokens) {
    const std::size_t before = position();
    for (const token_id t : tokens)
      if (const status s = text_.push(t); s != status::ok) {
        (void)rollback(before);
        return s;
      }
    return status::ok;
  }
  // The logits that follow the text and `more` own tokens after it; V numbers, or none (then the
  // model only reads).
  status row_after(std::span<const token_id> more, std::span<value_type> logits) {
    wanted_.assign(text_.own_tokens().begin(), text_.own_tokens().end());
    wanted_.insert(wanted_.end(), more.begin(), more.end());
    if (wanted_.empty()) return logits.empty() ? status::ok : status::no_draft;
    if (wanted_.size() > std::size_t(model_->capacity())) return status::context_full;
    // The model keeps what it has read of them, and reads the rest; for a row at least one token.
    held_.resize(std::min<std::size_t>(held_.size(), model_->position()));
    std::size_t same = std::size_t(
        std::mismatch(held_.begin(), held_.end(), wanted_.begin(), wanted_.end()).first -
        held_.begin());
    if (!logits.empty()) same = std::min(same, wanted_.size() - 1);
    if (model_->position() > same && model_->rollback(same) != status::ok) {
      if (const status refused = model_->rollback(0); refused != status::ok) return refused;
      same = 0;
    }
    held_.resize(same);
    if (same == wanted_.size()) return status::ok;
    const status s = model_->extend(std::span(wanted_).subspan(same), logits);
    if (s == status::ok) held_ = wanted_;
    return s;
  }

 private:
  M* model_;
  retokenised_text<Encode> text_;
  std::vector<token_id> held_, wanted_;  // what the model has read, and should have
};

SPECAGG_END
