// SPDX-License-Identifier: Apache-2.0
// A folder of text, cut into passages and searched by BM25 (Robertson et al. 1994).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/token.hpp>

namespace cli {

// Every *.txt and *.md below the folder, in order of their paths, passages in order of the text;
// ids count from 1. What is found is a function of the files and the query. Any thread may call;
// calls take turns.
class passages {
 public:
  static constexpr std::size_t length = 64;  // tokens of a passage; the last of a file has the rest

  // Throws specagg::error naming the folder or file: none such, no text in it, unreadable, not
  // UTF-8; or the build has no Xapian.
  template <class Tokenizer>
  passages(const std::string& folder, const Tokenizer& tokens)
      : passages(
            folder, [&](std::string_view text) { return tokens.encode(text); },
            [&](specagg::token_id token) { return tokens.piece(token); }) {}
  ~passages();

  std::size_t size() const;
  // The pieces of one passage; their text is the passage's (a file's first, and one every MiB, has
  // a space before it).
  std::vector<specagg::token_id> tokens(std::uint32_t id) const;
  // The ids of up to n passages that share a word with the query, best first, of equal ones the
  // lower id.
  std::vector<std::uint32_t> find(const std::string& query, std::size_t n) const;
  // The scores of these passages for a query, 0 or more: 0 where they share no word. n log n in all
  // passages' words.
  std::vector<double> scores(const std::string& query, std::span<const std::uint32_t> ids) const;

 private:
  using encoder = std::function<std::vector<specagg::token_id>(std::string_view)>;
  using speller = std::function<std::string(specagg::token_id)>;
  passages(const std::string& folder, const encoder& encode, const speller& piece);
  struct index;
  std::unique_ptr<index> index_;
};

}  // namespace cli
