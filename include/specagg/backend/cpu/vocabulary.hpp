// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a tokenizer of a GGUF file: pieces, their types, and the tokens that begin and
// end a text.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/error.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// Checked: every piece has a known type, and the special tokens exist. Throws specagg::error.
struct vocabulary {
  // the file's numbers
  enum class kind : std::uint8_t { normal = 1, unknown, control, user, unused, byte };
  static constexpr std::size_t max_size = std::size_t{1} << 24, max_text = std::size_t{1} << 28;

  gguf_file file;  // keeps the pieces' text alive
  std::vector<std::string_view> pieces;
  std::vector<kind> kinds;
  token_id bos = no_token, eos = no_token;  // no_token if the file names none
  bool add_bos = false, add_eos = false;    // whether encode() adds them
  // equal for equal pieces in order, types, begin and end tokens, on every machine
  std::uint64_t hash = 0;

  // add_bos_by_default: what holds where the file does not say.
  vocabulary(const gguf_file& from, bool add_bos_by_default) : file(from) {
    pieces = file.strings("tokenizer.ggml.tokens");
    const auto types = file.numbers<std::int32_t>("tokenizer.ggml.token_type");
    const auto count = pieces.size();
    if (count == 0 || count > max_size)
      file.fail("tokenizer.ggml.tokens",
                joined("holds ", count, " pieces (1 to 2^24 are possible)"));
    if (types.size() != count)
      file.fail("tokenizer.ggml.token_type", joined(types.size(), " types for ", count, " pieces"));
    for (std::size_t i = 0; i < count; ++i) {
      if (types[i] < 1 || types[i] > 6)
        bad_piece(i, joined("has the unknown type ", types[i], " (1 to 6 are known)"));
      kinds.push_back(static_cast<kind>(types[i]));
    }
    const auto special = [&](std::string_view key) {
      if (!file.find(key)) return no_token;
      const auto id = file.integer(key);
      if (id >= count) file.fail(key, joined(id, " is not a token (there are ", count, ")"));
      return token_id(id);
    };
    bos = special("tokenizer.ggml.bos_token_id");
    eos = special("tokenizer.ggml.eos_token_id");
    add_bos = file.flag("tokenizer.ggml.add_bos_token", add_bos_by_default) && bos != no_token;
    add_eos = file.flag("tokenizer.ggml.add_eos_token", false) && eos != no_token;
    hash = fnv_1a();
  }

  std::size_t size() const { return pieces.size(); }
  // Whether it is a token; piece() and kind_of() take tokens alone.
  bool contains(token_id token) const { return token >= 0 && std::size_t(token) < size(); }
  std::string_view piece(token_id token) const { return pieces[std::size_t(token)]; }
  // Its type in the file.
  kind kind_of(token_id token) const { return kinds[std::size_t(token)]; }

  // Throw specagg::error: piece i is wrong; a text is longer than max_text.
  [[noreturn]] void bad_piece(std::size_t i, const std::string& reason) const {
    file.fail("tokenizer.ggml.tokens", joined("piece ", i, " ", reason));
  }
  void check_length(std::string_view encoded) const {
    if (encoded.size() > max_text)
      throw error(file.name(), "tokenizer", "the text is longer than 2^28 bytes");
  }

 private:
  std::uint64_t fnv_1a() const {  // 64 bits
    std::uint64_t h = 14695981039346656037u;
    const auto add = [&](std::uint64_t byte) { h = (h ^ byte) * 1099511628211u; };
    const auto add_number = [&](std::uint64_t n) {
      for (int i = 0; i < 8; ++i) add(n >> (8 * i) & 255);
    };
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      add_number(pieces[i].size());
      add(std::uint64_t(kinds[i]));
      for (char c : pieces[i]) add(static_cast<unsigned char>(c));
    }
    add_number(std::uint64_t(bos));
    add_number(std::uint64_t(eos));
    return h;
  }
};

// Finds the longest of some pieces that a text begins with. A thousand pieces cost little more than
// one: they are sorted, and each byte of the text narrows the range of those that still fit.
class piece_finder {
 public:
  piece_finder() = default;
  piece_finder(const vocabulary& words, std::span<const token_id> tokens) {
    for (const token_id t : tokens)
      if (!words.piece(t).empty()) sorted_.emplace_back(words.piece(t), t);
    std::sort(sorted_.begin(), sorted_.end());
    const auto twin = [](const auto& a, const auto& b) { return a.first == b.first; };
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end(), twin), sorted_.end());
    for (std::size_t byte = 0; byte <= 256; ++byte)
      from_[byte] = end_of(0, sorted_.size(), 0, byte);
  }
  bool empty() const { return sorted_.empty(); }

  // The piece's token, of equal pieces the lowest; no_token if there is none.
  [[nodiscard]] token_id longest_at(std::string_view text) const {
    token_id longest = no_token;
    if (empty() || text.empty()) return longest;
    const auto first = static_cast<unsigned char>(text[0]);
    std::size_t begin = from_[first], end = from_[first + 1];
    // [begin, end) begin with the first `size` bytes of the text
    for (std::size_t size = 1; begin < end; ++size) {
      if (sorted_[begin].first.size() == size) longest = sorted_[begin++].second;
      if (size == text.size()) break;
      const auto next = static_cast<unsigned char>(text[size]);
      begin = end_of(begin, end, size, next);
      end = end_of(begin, end, size, next + 1u);
    }
    return longest;
  }

 private:
  // The end of the pieces of [begin, end) whose byte i is less than `byte`. All pieces of [begin,
  // end) are longer than i, and agree before byte i.
  std::size_t end_of(std::size_t begin, std::size_t end, std::size_t i, std::size_t byte) const {
    const auto at = sorted_.begin();
    return std::size_t(std::partition_point(at + std::ptrdiff_t(begin), at + std::ptrdiff_t(end),
                                            [&](const auto& p) {
                                              return static_cast<unsigned char>(p.first[i]) < byte;
                                            }) -
                       at);
  }

  std::vector<std::pair<std::string_view, token_id>> sorted_;  // no two with the same text
  // where those begin that have this first byte
  std::array<std::size_t, 257> from_{};
};

}  // namespace cpu
SPECAGG_END
