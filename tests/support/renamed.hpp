// SPDX-License-Identifier: Apache-2.0
// A model of another vocabulary than the bundled ones.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "support/catch.hpp"

namespace test {

// The bundled draft model with another spelling of the pieces " lord" and " the".
struct renamed {
  std::string path = "/tmp/specagg-" + std::to_string(getpid()) + "-renamed.gguf";
  renamed() {
    std::ifstream in(SPECAGG_MODELS "/draft.gguf", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    // with its length before it
    const auto spell = [&](const std::string& piece, const std::string& other) {
      std::string stored(8, '\0');
      stored[0] = char(piece.size());
      const auto at = bytes.find(stored + piece);
      REQUIRE(at != std::string::npos);
      bytes.replace(at + 8, piece.size(), other);
    };
    spell("\xe2\x96\x81lord", "\xe2\x96\x81lorx");
    spell("\xe2\x96\x81the", "\xe2\x96\x81thx");
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~renamed() { std::remove(path.c_str()); }
};

}  // namespace test
