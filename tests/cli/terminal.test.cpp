// SPDX-License-Identifier: Apache-2.0
#include "../tools/cli/terminal.hpp"

#include <string>

#include "support/catch.hpp"

TEST_CASE("the bytes of a character whose rest is still to come are counted, and no others") {
  for (const std::string character : {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"})
    for (const std::string before : {"", "a", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
      CHECK(cli::unfinished(before + character) == 0);
      for (std::size_t n = 1; n < character.size(); ++n)
        CHECK(cli::unfinished(before + character.substr(0, n)) == n);
    }
  CHECK(cli::unfinished("") == 0);
  CHECK(cli::unfinished("\x80\x80\x80\x80") == 0);  // no character begins here
}
