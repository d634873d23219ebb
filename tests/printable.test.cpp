// SPDX-License-Identifier: Apache-2.0
#include <specagg/printable.hpp>

#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::printable;

TEST_CASE("text that a reader sees stays as it is, in every script") {
  for (const std::string text : {"", "draft.gguf: 3 of 4", "C:\\models", "naïve Ångström 10 µs",
                                 "日本語 한국어 עברית العربية", "\xf0\x9f\x98\x80"})
    CHECK(printable(text) == text);
}
TEST_CASE("what is not seen, or what a terminal obeys, is spelled out") {
  using namespace std::string_literals;
  CHECK(printable("a\nb\tc\rd") == "a\\nb\\tc\\x0dd");
  CHECK(printable("\x1b[31m\0\x7f"s) == "\\x1b[31m\\x00\\x7f");
  // a control of Latin-1: terminals obey it, too
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\u{9b}2J");
  CHECK(printable("\xe2\x80\xae") == "\\u{202e}");  // what follows runs from right to left
  CHECK(printable("\xe2\x81\xa6\xe2\x81\xa9") == "\\u{2066}\\u{2069}");
  CHECK(printable("a\xe2\x80\x8b\xef\xbb\xbf") == "a\\u{200b}\\u{feff}");  // of no width
  CHECK(printable("\xe2\x80\xa8") == "\\u{2028}");                         // another line
  CHECK(printable("\xf3\xa0\x81\x81") == "\\u{e0041}");                    // a tag
}
TEST_CASE("bytes that are no UTF-8 are spelled one by one") {
  CHECK(printable("\xff\xfe") == "\\xff\\xfe");
  CHECK(printable("a\x80z") == "a\\x80z");
  CHECK(printable("\xc0\x8a") == "\\xc0\\x8a");           // a long form of the end of a line
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half a surrogate pair
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond Unicode
  CHECK(printable("\xe2\x80") == "\\xe2\\x80");                    // the rest is missing
}
TEST_CASE("the length is bounded, and nothing is cut in two") {
  CHECK(printable(std::string(200, 'a')) == std::string(200, 'a'));
  CHECK(printable(std::string(201, 'a')) == std::string(197, 'a') + "...");
  CHECK(printable("abcd\n", 5) == "ab...");
  CHECK(printable("\n\n\n", 5) == "\\n...");
  CHECK(printable("éééé", 6) == "é...");
}
TEST_CASE("of any bytes: printable, at most as long as is said, and unchanged by a second time") {
  numbers n(1);
  std::set<std::size_t> lengths;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    const bool likely_utf8 = n.below(2) == 0;
    for (std::size_t size = n.below(60); text.size() < size;) {
      if (!likely_utf8) {
        text += char(n.below(256));
        continue;
      }
      const char leads[] = {'\xc2', '\xe2', '\xef', '\xf0', '\xf3', 'a'};
      text += leads[n.below(6)];
      for (std::size_t more = n.below(4); more > 0; --more) text += char(0x80 + n.below(64));
    }
    const std::size_t most = 3 + n.below(80);
    const std::string line = printable(text, most);
    bool seen = true;
    for (std::string_view rest = line; !rest.empty();) {
      const auto c = specagg::utf8::first_code_point(rest);
      seen &= c.valid && specagg::utf8::is_seen(c.value);
      rest.remove_prefix(c.bytes);
    }
    REQUIRE((seen && line.size() <= most && printable(line, most) == line));
    lengths.insert(line.size());
  }
  CHECK(lengths.size() > 50);
}
