// SPDX-License-Identifier: Apache-2.0
#include <specagg/error.hpp>

#include "support/catch.hpp"

TEST_CASE("an error is one line: input, place if there is one, reason") {
  CHECK(specagg::error("a.gguf", "tensor x", "is missing").what() ==
        std::string("a.gguf: tensor x: is missing"));
  CHECK(specagg::error("a.gguf", "", "the file is empty").what() ==
        std::string("a.gguf: the file is empty"));
}
TEST_CASE(
    "an error stays one printable line with anything that a file, a peer or a path has put into "
    "it") {
  const std::string hostile = "a\nspecagg: all is well\x1b[2J\xe2\x80\xae";
  CHECK(specagg::error(hostile, hostile, hostile).what() ==
        std::string(
            "a\\nspecagg: all is well\\x1b[2J\\u{202e}: a\\nspecagg: all is well\\x1b[2J\\u{202e}: "
            "a\\nspecagg: all is well\\x1b[2J\\u{202e}"));
  CHECK(std::string(specagg::error("x", "", std::string(100000, 'a')).what()).size() == 1003);
}
