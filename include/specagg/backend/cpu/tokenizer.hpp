// SPDX-License-Identifier: Apache-2.0
// The SentencePiece BPE tokenizer stored in a GGUF file (tokenizer.ggml.model = "llama"), with the file's own pieces
// and scores. Spaces become U+2581. Neighbouring symbols are merged, best score first. Text without a piece is encoded
// as byte tokens.
//
// Every byte string is preserved: decode(encode(s)) == s, whether s is UTF-8 or not. (SentencePiece would decode a
// U+2581 of the text as a space; here such a character is encoded as byte tokens. All other text has the same
// encoding.)
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/config.hpp>
#include <specagg/error.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

class tokenizer {
 public:
  explicit tokenizer(const gguf_file& file) : file_(file) {
    const auto model = file.string("tokenizer.ggml.model");
    if (model != "llama")
      file.fail("tokenizer.ggml.model",
                text("\"", printable(model), "\" is not supported (\"llama\", SentencePiece BPE, is)"));
    pieces_ = file.strings("tokenizer.ggml.tokens");
    scores_ = file.numbers<float>("tokenizer.ggml.scores");
    const auto types = file.numbers<std::int32_t>("tokenizer.ggml.token_type");
    const auto count = pieces_.size();
    if (count == 0 || count > max_size)
      file.fail("tokenizer.ggml.tokens", text("holds ", count, " pieces (1 to 2^24 are possible)"));
    if (scores_.size() != count)
      file.fail("tokenizer.ggml.scores", text(scores_.size(), " scores for ", count, " pieces"));
    if (types.size() != count)
      file.fail("tokenizer.ggml.token_type", text(types.size(), " types for ", count, " pieces"));

    bytes_.fill(no_token);
    ids_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = static_cast<token_id>(i);
      const auto bad = [&](const std::string& reason) {
        file.fail("tokenizer.ggml.tokens", text("piece ", i, " ", reason));
      };
      if (!std::isfinite(scores_[i])) bad("has a score that is not finite");
      if (types[i] < 1 || types[i] > 6) bad(text("has the unknown type ", types[i], " (1 to 6 are known)"));
      kinds_.push_back(static_cast<kind>(types[i]));
      if (kinds_[i] == kind::byte) {
        const int value = byte_value(pieces_[i]);
        if (value < 0)
          bad(text("is of type byte but spelled \"", printable(pieces_[i]),
                   "\" (\"<0x00>\" to \"<0xFF>\" are possible)"));
        if (bytes_[static_cast<std::size_t>(value)] == no_token) bytes_[static_cast<std::size_t>(value)] = id;
      } else if (kinds_[i] == kind::normal || kinds_[i] == kind::user) {
        if (pieces_[i].empty()) continue;  // no text is encoded as it
        ids_.emplace(pieces_[i], id);      // of equal pieces the lowest id is used
        longest_ = std::max(longest_, pieces_[i].size());
        if (kinds_[i] == kind::user) users_.push_back(id);
      }
    }
    if (std::find(bytes_.begin(), bytes_.end(), no_token) != bytes_.end())
      file.fail("tokenizer.ggml.tokens",
                "not all 256 byte pieces \"<0x00>\" to \"<0xFF>\" are there (byte fallback needs them)");
    std::stable_sort(users_.begin(), users_.end(), [&](token_id a, token_id b) { return at(a).size() > at(b).size(); });

    const auto special = [&](std::string_view key, token_id otherwise) {
      if (!file.find(key)) return otherwise;
      const auto id = file.integer(key);
      if (id >= count) file.fail(key, text(id, " is not a token (there are ", count, ")"));
      return static_cast<token_id>(id);
    };
    bos_ = special("tokenizer.ggml.bos_token_id", no_token);
    eos_ = special("tokenizer.ggml.eos_token_id", no_token);
    add_bos_ = file.flag("tokenizer.ggml.add_bos_token", true) && bos_ != no_token;
    add_eos_ = file.flag("tokenizer.ggml.add_eos_token", false) && eos_ != no_token;
    space_prefix_ = file.flag("tokenizer.ggml.add_space_prefix", true);
    hash_ = vocabulary_hash();
  }

  std::size_t size() const { return pieces_.size(); }
  token_id bos() const { return bos_; }  // no_token if the file names none
  token_id eos() const { return eos_; }
  // A hash of the vocabulary (pieces in order, their types, begin and end tokens). It is the same on every machine.
  std::uint64_t hash() const { return hash_; }

  // Encodes text. The file says whether a begin token and an end token are added. O(n log n).
  std::vector<token_id> encode(std::string_view text) const {
    if (text.size() > max_text) throw error(file_.name(), "tokenizer", "the text is longer than 2^28 bytes");
    std::vector<token_id> tokens;
    if (add_bos_) tokens.push_back(bos_);
    if (!text.empty()) {
      std::string spaced;
      std::vector<symbol> symbols;
      if (space_prefix_) append_space(spaced, symbols);
      for (std::size_t i = 0; i < text.size();) {
        if (text[i] == ' ') {
          append_space(spaced, symbols), ++i;
          continue;
        }
        const auto size = character_size(text.substr(i));
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
    if (add_eos_) tokens.push_back(eos_);
    return tokens;
  }

  // The bytes of one token; empty for control tokens and ids outside the vocabulary. A character may consist of several
  // byte tokens, so a program that prints a stream must hold an incomplete one back. The first token of a text starts
  // with the space that encode() added.
  std::string piece(token_id token) const {
    if (token < 0 || static_cast<std::size_t>(token) >= size()) return {};
    switch (kinds_[static_cast<std::size_t>(token)]) {
      case kind::byte: return std::string(1, static_cast<char>(byte_value(at(token))));
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
  std::string decode(std::span<const token_id> tokens) const {
    std::string text;
    for (token_id token : tokens) text += piece(token);
    if (space_prefix_ && !text.empty() && text.front() == ' ') text.erase(0, 1);
    return text;
  }

 private:
  enum class kind : std::uint8_t { normal = 1, unknown, control, user, unused, byte };  // the file's numbers

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
  static constexpr std::size_t max_text = std::size_t{1} << 28, max_size = std::size_t{1} << 24;
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  std::string_view at(token_id token) const { return pieces_[static_cast<std::size_t>(token)]; }

  static int byte_value(std::string_view text) {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    const int high = digit(text[3]), low = digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  // The number of bytes of the UTF-8 character at the front; 1 if there is none. (Overlong forms are accepted: they
  // have no piece.)
  static std::size_t character_size(std::string_view text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t size = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    if (text.size() < size) return 1;
    for (std::size_t i = 1; i < size; ++i)
      if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 1;
    return size;
  }

  static void append_space(std::string& spaced, std::vector<symbol>& symbols) {
    symbols.push_back({spaced.size(), space.size(), 0, 0, false, no_token});
    spaced += space;
  }

  // User-defined pieces are found first, the longest at each place. They are never merged or split.
  void fix_user_pieces(const std::string& spaced, std::vector<symbol>& symbols) const {
    if (users_.empty()) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++kept) {
      auto s = symbols[i++];
      const auto rest = std::string_view(spaced).substr(s.begin);
      const auto user =
          std::find_if(users_.begin(), users_.end(), [&](token_id id) { return rest.starts_with(at(id)); });
      if (user != users_.end() && !s.fixed) {
        auto end = i;  // the piece must end at the end of a character, and must not contain a U+2581 of the text
        bool whole = true;
        while (end < symbols.size() && symbols[end].begin < s.begin + at(*user).size()) whole &= !symbols[end++].fixed;
        const auto stop = end < symbols.size() ? symbols[end].begin : spaced.size();
        if (whole && stop == s.begin + at(*user).size()) {
          s.size = at(*user).size();
          s.fixed = true;
          s.token = *user;
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
      if (it != ids_.end()) heap.push({scores_[static_cast<std::size_t>(it->second)], left, right, size});
    };
    for (std::size_t i = 1; i < symbols.size(); ++i) propose(i - 1, i);
    while (!heap.empty()) {
      const auto best = heap.top();
      heap.pop();
      auto& left = symbols[best.left];
      auto& right = symbols[best.right];
      if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) continue;  // merged since
      left.size = best.size;
      right.size = 0;
      left.next = right.next;
      if (left.next != none) symbols[left.next].prev = best.left;
      propose(left.prev, best.left);
      propose(best.left, left.next);
    }
  }

  void append_symbol(const std::string& spaced, const symbol& s, std::vector<token_id>& tokens) const {
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

  // FNV-1a, 64 bits.
  std::uint64_t vocabulary_hash() const {
    std::uint64_t h = 14695981039346656037u;
    const auto add = [&](std::uint64_t byte) { h = (h ^ byte) * 1099511628211u; };
    const auto add_number = [&](std::uint64_t n) {
      for (int i = 0; i < 8; ++i) add(n >> (8 * i) & 255);
    };
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      add_number(pieces_[i].size());
      add(static_cast<std::uint64_t>(kinds_[i]));
      for (char c : pieces_[i]) add(static_cast<unsigned char>(c));
    }
    add_number(static_cast<std::uint64_t>(bos_));
    add_number(static_cast<std::uint64_t>(eos_));
    return h;
  }

  gguf_file file_;  // owns the pieces' text
  std::vector<std::string_view> pieces_;
  std::vector<float> scores_;
  std::vector<kind> kinds_;
  std::unordered_map<std::string_view, token_id> ids_;  // pieces that text can be encoded as
  std::vector<token_id> users_;                         // user-defined pieces, longest first
  std::array<token_id, 256> bytes_{};
  std::size_t longest_ = 0;
  token_id bos_ = no_token, eos_ = no_token;
  bool add_bos_ = false, add_eos_ = false, space_prefix_ = false;
  std::uint64_t hash_ = 0;
};

}  // namespace cpu
SPECAGG_END
