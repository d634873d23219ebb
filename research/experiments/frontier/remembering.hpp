// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reading.hpp"

#include <map>

namespace experiments::frontier {

// A model whose rows are kept by the text before them, for texts that begin alike.
class remembering {
 public:
  using value_type = float;
  using text = std::vector<token_id>;
  explicit remembering(cpu::llama& of) : model_(&of) {}
  std::size_t vocab_size() const { return model_->vocab_size(); }
  std::size_t capacity() const { return model_->capacity(); }
  std::size_t position() const { return text_.size(); }
  std::span<const token_id> tokens() const { return text_; }
  status rollback(std::size_t n) {
    text_.resize(n);
    return status::ok;
  }
  status extend(std::span<const token_id> tokens, std::span<float> rows) {
    const std::size_t V = vocab_size(), n = rows.size() / V;
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    read(text_, n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto& row = rows_[first_of(text_, n - 1 - i)];
      std::copy(row.begin(), row.end(), rows.begin() + std::ptrdiff_t(i * V));
    }
    return status::ok;
  }
  const std::vector<float>& row_after(const text& t) {
    read(t, 1);
    return rows_[t];
  }
  // Reads the rows after the last n beginnings of a text, in one call from the first that lacks on.
  void read(const text& t, std::size_t n) {
    while (n > 0 && !rows_[first_of(t, n - 1)].empty()) --n;
    if (n == 0) return;
    const auto there = model_->tokens();
    std::size_t common = 0;
    while (common < there.size() && common + n < t.size() && there[common] == t[common]) ++common;
    std::vector<float> rows(n * vocab_size());
    must(model_->rollback(common), "model");
    must(model_->extend(std::span(t).subspan(common), rows), "model");
    for (std::size_t i = 0; i < n; ++i) {
      const auto row = std::span(rows).subspan(i * vocab_size(), vocab_size());
      rows_[first_of(t, n - 1 - i)].assign(row.begin(), row.end());
    }
  }
  void forget() { rows_.clear(); }

 private:
  static text first_of(const text& t, std::size_t less) {
    return text(t.begin(), t.end() - std::ptrdiff_t(less));
  }
  cpu::llama* model_;
  text text_;
  std::map<text, std::vector<float>> rows_;
};

}  // namespace experiments::frontier
