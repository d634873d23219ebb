// SPDX-License-Identifier: Apache-2.0
// The byte-level BPE tokenizer stored in a GGUF file (tokenizer.ggml.model = "gpt2"), with the
// file's own pieces and merges. A regular expression cuts the text into words. Inside a word
// neighbouring tokens are merged, the merge of the lowest rank first.
//
// The pieces are spelled in an alphabet of 256 characters, one for each byte (Radford et al. 2019,
// GPT-2). Every byte string whose bytes all have a piece is preserved: decode(encode(s)) == s,
// whether s is UTF-8 or not. PCRE2 knows the classes of Unicode; without it (SPECAGG_PCRE2 is not
// defined) such a file is refused. These classes are of PCRE2's own version of Unicode (PCRE2
// 10.42: 14.0). A newer character is no letter and no digit to it, so a text with a newer character
// may become other tokens than with another PCRE2, or in Hugging Face's tokenizers. Nothing is
// normalised, as in libllama: Hugging Face's tokenizers of Qwen bring a text to NFC first, so a
// text that is not in NFC ("e" and U+0301) becomes other tokens there.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(SPECAGG_PCRE2)
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>
#endif

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/vocabulary.hpp>
#include <specagg/error.hpp>
#include <specagg/printable.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {
namespace detail {

// How the models of one family cut a text into words. The patterns are applied one after the other:
// each match is a word, and so is the text between two matches. whole_words: a word that is a piece
// is that token, with any merges.
struct word_patterns {
  std::string_view name;  // tokenizer.ggml.pre
  std::array<const char*, 2> patterns;
  bool whole_words;
};
inline constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr word_patterns known_words[] = {
    {"gpt-2", {gpt2_words, nullptr}, false},
    {"smollm", {R"(\p{N})", gpt2_words}, false},
    {"llama-bpe",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
      R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
      R"(|\s+(?!\S)|\s+)",
      nullptr},
     true},
    {"qwen2",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
      R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
      R"(|\s+(?!\S)|\s+)",
      nullptr},
     false}};

#if defined(SPECAGG_PCRE2)
// A compiled pattern. Bytes that are not UTF-8 match nothing.
class pattern {
 public:
  explicit pattern(const char* text) {
    int why = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text), PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &why, &at, nullptr));
    if (!code_)
      throw error("tokenizer", "", "PCRE2 cannot compile a pattern (it was built without Unicode)");
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // if it fails, matching is slower
  }
  // Appends the words of `part` to `words`: matches, and the text between them.
  void cut(std::string_view part, std::vector<std::string_view>& words) const {
    const std::unique_ptr<pcre2_match_data, release> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (!match) throw std::bad_alloc();
    std::size_t done = 0;
    for (std::size_t from = 0; from < part.size();) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(part.data()),
                                    part.size(), from, 0, match.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        throw error("tokenizer", "", joined("PCRE2 gives up on the text (its error ", found, ")"));
      const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match.get()), begin = place[0],
                       end = place[1];
      if (end == begin) break;  // no pattern matches nothing
      if (begin > done) words.push_back(part.substr(done, begin - done));
      words.push_back(part.substr(begin, end - begin));
      done = from = end;
    }
    if (done < part.size()) words.push_back(part.substr(done));
  }

 private:
  struct release {
    void operator()(pcre2_code* c) const { pcre2_code_free(c); }
    void operator()(pcre2_match_data* m) const { pcre2_match_data_free(m); }
  };
  std::unique_ptr<pcre2_code, release> code_;
};
#endif

}  // namespace detail

// A tokenizer of this kind. Its members mean what those of `tokenizer` (tokenizer.hpp) do. The
// constructor throws specagg::error if the file is wrong, or PCRE2 is missing.
class byte_level_bpe {
 public:
  explicit byte_level_bpe(const gguf_file& file) : words_(file, false) {
    const auto name = file.string("tokenizer.ggml.pre");
    for (const auto& known : detail::known_words)
      if (known.name == name) patterns_ = &known;
    if (!patterns_)
      file.fail("tokenizer.ggml.pre",
                joined("\"", printable(name), "\" is not supported (", known_names(), " are)"));
#if defined(SPECAGG_PCRE2)
    patterns compiled;
    for (const char* p : patterns_->patterns)
      if (p) compiled.emplace_back(p);
    compiled_ = std::make_shared<const patterns>(std::move(compiled));
#else
    file.fail("tokenizer.ggml.model",
              "\"gpt2\" needs PCRE2, and this program was built without it");
#endif
    read_pieces();
    read_merges();
  }

  // Its vocabulary, which the object keeps.
  const vocabulary& words() const { return words_; }

  // Control tokens that the text spells out ("<|im_end|>") are text, unless `special`: then they
  // are these tokens. Throws specagg::error if the text has a byte for which the vocabulary has no
  // piece.
  [[nodiscard]] std::vector<token_id> encode(std::string_view all, bool special = false) const {
    std::vector<token_id> tokens;
    if (words_.add_bos) tokens.push_back(words_.bos);
    append(all, special, tokens);
    if (words_.add_eos) tokens.push_back(words_.eos);
    return tokens;
  }
  // Encodes bytes that stand inside a text: nothing is put before or after them.
  [[nodiscard]] std::vector<token_id> encode_inside(std::string_view text) const {
    std::vector<token_id> tokens;
    append(text, false, tokens);
    return tokens;
  }

  // The bytes of one token; empty for control tokens and ids outside the vocabulary.
  [[nodiscard]] std::string piece(token_id token) const {
    using kind = vocabulary::kind;
    if (!words_.contains(token)) return {};
    if (words_.kind_of(token) == kind::user) return std::string(words_.piece(token));
    return words_.kind_of(token) == kind::normal ? bytes_of(words_.piece(token)) : std::string();
  }

  // The bytes of all of them.
  [[nodiscard]] std::string decode(std::span<const token_id> tokens) const {
    std::string text;
    for (const token_id t : tokens) text += piece(t);
    return text;
  }

 private:
  struct merge {
    std::uint32_t rank;
    token_id token;  // what the two become
  };
  struct symbol {
    token_id token;
    std::size_t prev, next;
  };
  struct candidate {
    std::uint32_t rank;
    std::size_t left;
    std::uint64_t pair;  // the tokens at that time
    // The heap's top: lowest rank, then leftmost.
    bool operator<(const candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  static constexpr std::size_t none = ~std::size_t{0};

  static std::string known_names() {
    std::string names;
    for (const auto& known : detail::known_words)
      names += joined(names.empty() ? "\"" : ", \"", known.name, "\"");
    return names;
  }
  static std::uint64_t pair_of(token_id a, token_id b) {
    return std::uint64_t{std::uint32_t(a)} << 32 | std::uint32_t(b);
  }

  // The character that stands for a byte: itself where it is printable in Latin-1, else one from
  // U+0100 on.
  static constexpr std::array<char16_t, 256> byte_alphabet() {
    std::array<char16_t, 256> alphabet{};
    char16_t next = 256;
    for (std::size_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      alphabet[b] = printable ? static_cast<char16_t>(b) : next++;
    }
    return alphabet;
  }
  // The byte that the character at the front of a piece stands for; -1 for none.
  static int byte_at(std::string_view piece, std::size_t& size) {
    static const std::array<std::int16_t, 512> bytes = [] {
      std::array<std::int16_t, 512> table;
      table.fill(-1);
      const auto alphabet = byte_alphabet();
      for (std::size_t b = 0; b < 256; ++b) table[alphabet[b]] = std::int16_t(b);
      return table;
    }();
    const utf8::code_point c = utf8::first_code_point(piece);
    size = c.bytes;
    return c.valid && c.value < bytes.size() ? bytes[c.value] : -1;
  }
  // empty if the piece is not of the alphabet
  static std::string bytes_of(std::string_view piece) {
    std::string bytes;
    for (std::size_t i = 0, size = 0; i < piece.size(); i += size) {
      const int byte = byte_at(piece.substr(i), size);
      if (byte < 0) return {};
      bytes += char(byte);
    }
    return bytes;
  }

  void read_pieces() {
    using kind = vocabulary::kind;
    bytes_.fill(no_token);
    ids_.reserve(words_.size());
    std::vector<token_id> users, marks;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const auto id = token_id(i);
      const auto piece = words_.pieces[i];
      if (words_.kinds[i] == kind::user || words_.kinds[i] == kind::control) {
        if (piece.empty()) words_.bad_piece(i, "is empty");
        marks.push_back(id);
        if (words_.kinds[i] == kind::user) users.push_back(id);
      } else if (words_.kinds[i] == kind::normal) {
        const std::string bytes = bytes_of(piece);
        if (bytes.empty())
          words_.bad_piece(i, joined("is \"", printable(piece),
                                     "\", which is not spelled in characters of bytes"));
        const auto [first, is_new] = ids_.emplace(piece, id);
        if (!is_new)
          words_.bad_piece(
              i, joined("is \"", printable(piece), "\", as piece ", first->second, " is"));
        if (bytes.size() == 1) bytes_[static_cast<unsigned char>(bytes[0])] = id;
      }
    }
    users_ = piece_finder(words_, users);
    marks_ = piece_finder(words_, marks);
  }

  void read_merges() {
    const auto merges = words_.file.strings("tokenizer.ggml.merges");
    if (merges.size() > vocabulary::max_size)
      words_.file.fail("tokenizer.ggml.merges",
                       joined("holds ", merges.size(), " merges (up to 2^24 are possible)"));
    merges_.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto bad = [&](const char* reason) {
        words_.file.fail("tokenizer.ggml.merges",
                         joined("merge ", i, ", \"", printable(merges[i]), "\", ", reason));
      };
      const auto space = merges[i].find(' ');
      if (space == 0 || space == std::string_view::npos ||
          merges[i].find(' ', space + 1) != std::string_view::npos || space + 1 == merges[i].size())
        bad("is not two pieces with a space between");
      const auto left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
      const auto a = ids_.find(left), b = ids_.find(right);
      if (a == ids_.end() || b == ids_.end()) bad("merges what is no piece");
      const auto both = ids_.find(std::string(left) + std::string(right));
      if (both == ids_.end()) bad("gives what is no piece");
      merges_.emplace(pair_of(a->second, b->second), merge{std::uint32_t(i), both->second});
    }
  }

  void append(std::string_view all, bool special, std::vector<token_id>& tokens) const {
    words_.check_length(all);
    const auto& marks = special ? marks_ : users_;
    std::size_t done = 0;
    for (std::size_t i = 0; i < all.size();) {
      const token_id mark = marks.longest_at(all.substr(i));
      if (mark == no_token) {
        ++i;
        continue;
      }
      encode_words(all.substr(done, i - done), tokens);
      tokens.push_back(mark);
      done = i += words_.piece(mark).size();
    }
    encode_words(all.substr(done), tokens);
  }
  void encode_words([[maybe_unused]] std::string_view part,
                    [[maybe_unused]] std::vector<token_id>& tokens) const {
#if defined(SPECAGG_PCRE2)
    std::vector<std::string_view> parts{part}, cut;
    for (const auto& p : *compiled_) {
      cut.clear();
      for (const std::string_view s : parts) p.cut(s, cut);
      parts.swap(cut);
    }
    for (const std::string_view word : parts) encode_word(word, tokens);
#endif
  }

  void encode_word(std::string_view word, std::vector<token_id>& tokens) const {
    std::vector<symbol> symbols;
    symbols.reserve(word.size());
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (bytes_[byte] == no_token)
        throw error(words_.file.name(), "tokenizer",
                    joined("the text has the byte ", byte, ", which no piece stands for"));
      symbols.push_back(
          {bytes_[byte], symbols.empty() ? none : symbols.size() - 1, symbols.size() + 1});
    }
    if (symbols.empty()) return;
    symbols.back().next = none;
    if (patterns_->whole_words)
      if (const auto whole = ids_.find(spelled(word)); whole != ids_.end())
        return tokens.push_back(whole->second);

    std::priority_queue<candidate> heap;
    const auto propose = [&](std::size_t left) {
      if (left == none || symbols[left].next == none) return;
      const std::uint64_t pair = pair_of(symbols[left].token, symbols[symbols[left].next].token);
      if (const auto m = merges_.find(pair); m != merges_.end())
        heap.push({m->second.rank, left, pair});
    };
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) propose(i);
    while (!heap.empty()) {
      const candidate best = heap.top();
      heap.pop();
      symbol& left = symbols[best.left];
      if (left.token == no_token || left.next == none ||
          pair_of(left.token, symbols[left.next].token) != best.pair)
        continue;  // changed since
      symbol& right = symbols[left.next];
      left.token = merges_.find(best.pair)->second.token;
      right.token = no_token;  // merged into its left neighbour
      left.next = right.next;
      if (left.next != none) symbols[left.next].prev = best.left;
      propose(left.prev);
      propose(best.left);
    }
    for (std::size_t i = 0; i != none; i = symbols[i].next) tokens.push_back(symbols[i].token);
  }

  static std::string spelled(std::string_view bytes) {
    static constexpr auto alphabet = byte_alphabet();
    std::string piece;
    for (const char b : bytes) {
      const char16_t c = alphabet[static_cast<unsigned char>(b)];
      if (c < 128) piece += char(c);
      else {
        piece += char(0xC0 | c >> 6);
        piece += char(0x80 | (c & 63));
      }
    }
    return piece;
  }

  vocabulary words_;
  const detail::word_patterns* patterns_ = nullptr;
#if defined(SPECAGG_PCRE2)
  using patterns = std::vector<detail::pattern>;
  std::shared_ptr<const patterns> compiled_;
#endif
  std::unordered_map<std::string_view, token_id> ids_;  // pieces that text can become
  std::unordered_map<std::uint64_t, merge> merges_;     // of a pair of tokens
  std::array<token_id, 256> bytes_{};                   // the token of one byte
  // user-defined pieces; these and control tokens
  piece_finder users_, marks_;
};

}  // namespace cpu
SPECAGG_END
