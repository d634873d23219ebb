// SPDX-License-Identifier: Apache-2.0
#include <specagg/error.hpp>

#include "support/catch.hpp"

TEST_CASE("an error is one line: input, place if there is one, reason") {
  CHECK(specagg::error("a.gguf", "tensor x", "is missing").what() == std::string("a.gguf: tensor x: is missing"));
  CHECK(specagg::error("a.gguf", "", "the file is empty").what() == std::string("a.gguf: the file is empty"));
}
