// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/stop.hpp>

#include <array>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::find_stop;
using specagg::held_back;
using strings = std::vector<std::string>;

namespace {

constexpr std::size_t none = std::string_view::npos;

// Both again, by looking at every place.
std::size_t slow_find(const std::string& text, std::size_t from, const strings& stops) {
  for (std::size_t begin = 0; begin < text.size(); ++begin)
    for (const std::string& stop : stops)
      if (!stop.empty() && text.compare(begin, stop.size(), stop) == 0 &&
          begin + stop.size() > from)
        return begin;
  return none;
}
std::size_t slow_held(const std::string& text, const strings& stops) {
  for (std::size_t n = text.size(); n > 0; --n)
    for (const std::string& stop : stops)
      if (n < stop.size() && text.substr(text.size() - n) == stop.substr(0, n)) return n;
  return 0;
}

// two of them: everything nearly matches everything
std::string letters(numbers& random, std::size_t longest) {
  std::string s(random.below(longest + 1), ' ');
  for (char& c : s) c = "ab"[random.below(2)];
  return s;
}

}  // namespace

TEST_CASE(
    "find_stop is the earliest beginning of a stop that ends after `from`, as looking everywhere "
    "finds it") {
  numbers random(1);
  int found = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = letters(random, 12);
    strings stops(random.below(4));
    for (std::string& stop : stops) stop = letters(random, 5);
    const std::size_t from = random.below(text.size() + 3), got = find_stop(text, from, stops);
    found += got != none;
    if (got == slow_find(text, from, stops)) continue;
    CAPTURE(text, stops, from, got);
    FAIL("another place");
  }
  CHECK(found > 4000);
}

TEST_CASE(
    "held_back is the longest end of the text that begins a stop but is not one, as looking "
    "everywhere finds") {
  numbers random(2);
  int held = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = letters(random, 8);
    strings stops(random.below(4));
    for (std::string& stop : stops) stop = letters(random, 6);
    const std::size_t got = held_back(text, stops);
    held += got > 0;
    if (got == slow_held(text, stops)) continue;
    CAPTURE(text, stops, got);
    FAIL("another number of bytes");
  }
  CHECK(held > 5000);
}

TEST_CASE(
    "text given out piece by piece with the bytes held back is the text before the first stop") {
  numbers random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    strings stops(1 + random.below(3));
    for (std::string& stop : stops) stop = letters(random, 5);
    std::size_t given = 0, stop = none;
    bool early = false;
    while (stop == none && text.size() < 40) {
      const std::size_t before = text.size();
      text += letters(random, 4);
      stop = find_stop(text, before, stops);
      early = early || given > std::min(stop, text.size());
      if (stop == none) given = text.size() - held_back(text, stops);
    }
    if (!early && stop == slow_find(text, 0, stops)) continue;
    CAPTURE(text, stops, given, stop);
    FAIL("a byte of a stop was given out, or a stop was missed");
  }
  SUCCEED();
}

TEST_CASE("no stops, empty stops and empty text stop nothing and hold nothing back") {
  CHECK(find_stop("abc", 0, strings{}) == none);
  CHECK(find_stop("abc", 0, strings{""}) == none);
  CHECK(find_stop("", 0, strings{"a"}) == none);
  CHECK(find_stop("abc", 9, strings{"c"}) == none);
  CHECK(find_stop("abc", 2, std::array<std::string_view, 2>{"c", "bc"}) == 1);
  CHECK(find_stop(std::string_view("a\0b", 3), 0, strings{std::string("\0", 1)}) == 1);
  CHECK(held_back("abc", strings{}) == 0);
  CHECK(held_back("abc", strings{""}) == 0);
  CHECK(held_back("", strings{"a"}) == 0);
  CHECK(held_back("abc", strings{"abc"}) == 0);  // a whole stop is found, not held back
  CHECK(held_back("xab", strings{"abc", "b?"}) == 2);
}
