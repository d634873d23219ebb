// SPDX-License-Identifier: Apache-2.0
// Text from outside (a file, another site, the command line) as it may be printed: on one line, and
// without characters that a reader does not see or that a terminal obeys.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace specagg {
namespace utf8 {

// A character of a text: its number in Unicode, and how many bytes of the text it takes.
struct code_point {
  std::uint32_t value = 0;
  std::size_t bytes = 1;
  bool valid = false;  // else it is one byte that begins no character of UTF-8
};
// The first character of a text that is not empty. Long forms and surrogates are not valid.
inline code_point first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return {first};
  std::uint32_t value = first & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {first};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < least[size - 2] || value > 0x10ffff || surrogate) return {first};
  return {value, size, true};
}

// Whether a reader sees the character. Invisible are controls, characters without a width except
// combining marks, and characters that change the direction of the text or the line. (Ranges of
// Unicode's categories Cc, Cf, Zl, Zp, the variation selectors, the fillers, private use, and code
// points that are no characters.)
inline bool is_seen(std::uint32_t c) {
  constexpr std::uint32_t unseen[][2] = {
      {0, 0x1f},          {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},
      {0x600, 0x605},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x110bd, 0x110bd},
      {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x61c, 0x61c},     {0x6dd, 0x6dd},
      {0x70f, 0x70f},     {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},
      {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},
      {0xe000, 0xf8ff},   {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
      {0xffa0, 0xffa0},   {0xfff0, 0xfffb},   {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
      {0xe0000, 0x10ffff}};
  if ((c & 0xfffe) == 0xfffe) return false;  // the last two code points of every plane
  return std::none_of(std::begin(unseen), std::end(unseen),
                      [&](auto& r) { return c >= r[0] && c <= r[1]; });
}

}  // namespace utf8

// The text with \n, \t, \x1b, \u{202e} for invisible characters and \xff for bytes that are not
// UTF-8. If that is longer than `most` bytes (at least 3), it is cut before a character and ends in
// "...". Printable text is unchanged, so the function may be applied twice. A backslash stays one:
// the result is for people, and cannot be read back.
inline std::string printable(std::string_view text, std::size_t most = 200) {
  constexpr char digits[] = "0123456789abcdef";
  std::string line;
  std::size_t end = 0;  // of the part that leaves room for the dots
  while (!text.empty()) {
    const utf8::code_point c = utf8::first_code_point(text);
    std::string piece(text.substr(0, c.bytes));
    if (c.valid && c.value == '\n') {
      piece = "\\n";
    } else if (c.valid && c.value == '\t') {
      piece = "\\t";
    } else if (!c.valid || c.value < 0x80) {
      if (!c.valid || !utf8::is_seen(c.value))
        piece = {'\\', 'x', digits[c.value >> 4], digits[c.value & 15]};
    } else if (!utf8::is_seen(c.value)) {
      piece = "}";
      for (std::uint32_t rest = c.value; rest > 0; rest >>= 4)
        piece.insert(piece.begin(), digits[rest & 15]);
      piece.insert(0, "\\u{");
    }
    if (line.size() + piece.size() > most) {
      line.resize(end);
      return line + "...";
    }
    line += piece;
    if (line.size() + 3 <= most) end = line.size();
    text.remove_prefix(c.bytes);
  }
  return line;
}

}  // namespace specagg
