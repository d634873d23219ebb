// SPDX-License-Identifier: Apache-2.0
// The SentencePiece BPE tokenizer stored in a GGUF file (tokenizer.ggml.model = "llama"), with the
// file's own pieces and scores. Spaces become U+2581. Neighbouring symbols are merged, best score
// first. Text without a piece is encoded as byte tokens.
//
// Every byte string is preserved: decode(encode(s)) == s, whether s is UTF-8 or not. (SentencePiece
// would decode a U+2581 of the text as a space; here such a character is encoded as byte tokens.
// All other text has the same encoding.)
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/vocabulary.hpp>
#include <specagg/error.hpp>
#include <specagg/printable.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// A tokenizer of this kind. Its members mean what those of `tokenizer` (tokenizer.hpp) do. The
// constructor throws specagg::error if the file is wrong.
class sentencepiece {
 public:
  explicit sentencepiece(const gguf_file& file) : words_(file, true) {
    scores_ = file.numbers<float>("tokenizer.ggml.scores");
    if (scores_.size() != words_.size())
      file.fail("tokenizer.ggml.scores",
                joined(scores_.size(), " scores for ", words_.size(), " pieces"));
    bytes_.fill(no_token);
    ids_.reserve(words_.size());
    std::vector<token_id> users;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto id = token_id(i);
      const auto piece = words_.pieces[i];
      if (!std::isfinite(scores_[i])) words_.bad_piece(i, "has a score that is not finite");
      if (words_.kinds[i] == kind::byte) {
        const int value = byte_value(piece);
        if (value < 0)
          words_.bad_piece(i, joined("is of type byte but spelled \"", printable(piece),
                                     "\" (\"<0x00>\" to \"<0xFF>\" are possible)"));
        if (bytes_[std::size_t(value)] == no_token) bytes_[std::size_t(value)] = id;
      } else if (words_.kinds[i] == kind::normal || words_.kinds[i] == kind::user) {
        if (piece.empty()) continue;  // no text becomes it
        ids_.emplace(piece, id);      // of equal pieces the lowest id stands
        longest_ = std::max(longest_, piece.size());
        if (words_.kinds[i] == kind::user) users.push_back(id);
      }
    }
    if (std::find(bytes_.begin(), bytes_.end(), no_token) != bytes_.end())
      file.fail(
          "tokenizer.ggml.tokens",
          "not all 256 byte pieces \"<0x00>\" to \"<0xFF>\" are there (byte fallback needs them)");
    users_ = piece_finder(words_, users);
    space_prefix_ = file.flag("tokenizer.ggml.add_space_prefix", true);
  }

  // Its vocabulary, which the object keeps.
  const vocabulary& words() const { return words_; }

  // Encodes text. The file says whether a begin token and an end token are added. O(n log n).
  [[nodiscard]] std::vector<token_id> encode(std::string_view text) const {
    words_.check_length(text);
    std::vector<token_id> tokens;
    if (words_.add_bos) tokens.push_back(words_.bos);
    if (!text.empty()) append(text, space_prefix_, tokens);
    if (words_.add_eos) tokens.push_back(words_.eos);
    return tokens;
  }
  // Encodes bytes that stand inside a text: nothing is put before or after them.
  [[nodiscard]] std::vector<token_id> encode_inside(std::string_view text) const {
    words_.check_length(text);
    std::vector<token_id> tokens;
    append(text, false, tokens);
    return tokens;
  }

  // The bytes of one token; empty for control tokens and ids outside the vocabulary. A character
  // may consist of several byte tokens, so a program that prints a stream must hold an incomplete
  // character back. The first token of a text starts with the space that encode() added.
  [[nodiscard]] std::string piece(token_id token) const {
    if (!words_.contains(token)) return {};
    switch (words_.kind_of(token)) {
      case kind::byte: return std::string(1, char(byte_value(at(token))));
      case kind::normal:
      case kind::user:
      case kind::unused: break;
      default: return {};
    }
    std::string out;
    for (auto rest = at(token); !rest.empty();) {
      const bool is_space = rest.starts_with(space);
      out += is_space ? ' ' : rest.front();
      rest.remove_prefix(is_space ? space.size() : 1);
    }
    return out;
  }

  // Decodes a whole text: all pieces, without the space that encode() added at the front.
  [[nodiscard]] std::string decode(std::span<const token_id> tokens) const {
    std::string text;
    for (token_id token : tokens) text += piece(token);
    if (space_prefix_ && !text.empty() && text.front() == ' ') text.erase(0, 1);
    return text;
  }

 private:
  using kind = vocabulary::kind;

  // A part of the text that is, or may become, one token. prev and next make it a linked list.
  struct symbol {
    std::size_t begin, size;  // size 0: merged into its left neighbour
    std::size_t prev, next;
    bool fixed;      // is never merged
    token_id token;  // for a user-defined piece, else no_token
  };
  struct candidate {
    float score;
    std::size_t left, right, size;
    // The top of the heap has the best score; of equals it is the leftmost.
    bool operator<(const candidate& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };

  static constexpr std::string_view space = "\xe2\x96\x81";  // U+2581
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  std::string_view at(token_id token) const { return words_.piece(token); }

  static int byte_value(std::string_view text) {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    const int high = digit(text[3]), low = digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  static void append_space(std::string& spaced, std::vector<symbol>& symbols) {
    symbols.push_back({spaced.size(), space.size(), 0, 0, false, no_token});
    spaced += space;
  }

  void append(std::string_view text, bool space_first, std::vector<token_id>& tokens) const {
    std::string spaced;
    std::vector<symbol> symbols;
    if (space_first) append_space(spaced, symbols);
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] == ' ') {
        append_space(spaced, symbols);
        ++i;
        continue;
      }
      const auto size = utf8::first_code_point(text.substr(i)).bytes;
      const bool literal = text.substr(i, size) == space;
      symbols.push_back({spaced.size(), size, 0, 0, literal, no_token});
      spaced += text.substr(i, size);
      i += size;
    }
    fix_user_pieces(spaced, symbols);
    merge(spaced, symbols);
    for (std::size_t i = 0; i < symbols.size(); ++i)
      if (symbols[i].size != 0) append_symbol(spaced, symbols[i], tokens);
  }

  // User-defined pieces are found first, the longest at each place. They are never merged or split.
  void fix_user_pieces(const std::string& spaced, std::vector<symbol>& symbols) const {
    if (users_.empty()) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++kept) {
      auto s = symbols[i++];
      const token_id user =
          s.fixed ? no_token : users_.longest_at(std::string_view(spaced).substr(s.begin));
      if (user != no_token) {
        // the piece must end at the end of a character, and must not contain a U+2581 of the text
        auto end = i;
        bool whole = true;
        while (end < symbols.size() && symbols[end].begin < s.begin + at(user).size())
          whole &= !symbols[end++].fixed;
        const auto stop = end < symbols.size() ? symbols[end].begin : spaced.size();
        if (whole && stop == s.begin + at(user).size()) {
          s.size = at(user).size();
          s.fixed = true;
          s.token = user;
          i = end;
        }
      }
      symbols[kept] = s;
    }
    symbols.resize(kept);
  }

  void merge(const std::string& spaced, std::vector<symbol>& symbols) const {
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      symbols[i].prev = i == 0 ? none : i - 1;
      symbols[i].next = i + 1 == symbols.size() ? none : i + 1;
    }
    std::priority_queue<candidate> heap;
    const auto propose = [&](std::size_t left, std::size_t right) {
      if (left == none || right == none || symbols[left].fixed || symbols[right].fixed) return;
      const auto size = symbols[left].size + symbols[right].size;
      if (size > longest_) return;
      const auto it = ids_.find(std::string_view(spaced).substr(symbols[left].begin, size));
      if (it != ids_.end()) heap.push({scores_[std::size_t(it->second)], left, right, size});
    };
    for (std::size_t i = 1; i < symbols.size(); ++i) propose(i - 1, i);
    while (!heap.empty()) {
      const auto best = heap.top();
      heap.pop();
      auto& left = symbols[best.left];
      auto& right = symbols[best.right];
      // merged since
      if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) continue;
      left.size = best.size;
      right.size = 0;
      left.next = right.next;
      if (left.next != none) symbols[left.next].prev = best.left;
      propose(left.prev, best.left);
      propose(best.left, left.next);
    }
  }

  void append_symbol(const std::string& spaced, const symbol& s,
                     std::vector<token_id>& tokens) const {
    const auto text = std::string_view(spaced).substr(s.begin, s.size);
    if (s.token != no_token) {
      tokens.push_back(s.token);
    } else if (const auto it = s.fixed ? ids_.end() : ids_.find(text); it != ids_.end()) {
      tokens.push_back(it->second);
    } else {
      // A space without a piece is encoded as the byte of a space.
      for (char c : text == space && !s.fixed ? std::string_view(" ") : text)
        tokens.push_back(bytes_[static_cast<unsigned char>(c)]);
    }
  }

  vocabulary words_;
  std::vector<float> scores_;
  std::unordered_map<std::string_view, token_id> ids_;  // pieces that text can be encoded as
  piece_finder users_;                                  // user-defined pieces
  std::array<token_id, 256> bytes_{};
  std::size_t longest_ = 0;
  bool space_prefix_ = false;
};

}  // namespace cpu
SPECAGG_END
