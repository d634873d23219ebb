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

// A bundled model with another spelling, of the same size, of the pieces " lord" and " the".
struct renamed {
  std::string path;
  explicit renamed(const std::string& model = "draft", const std::string& lord = "\xe2\x96\x81lorx",
                   const std::string& the = "\xe2\x96\x81thx")
      : path("/tmp/specagg-" + std::to_string(getpid()) + "-renamed-" + model + ".gguf") {
    std::ifstream in(SPECAGG_MODELS "/" + model + ".gguf", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    // with its length before it
    const auto spell = [&](const std::string& piece, const std::string& other) {
      std::string stored(8, '\0');
      stored[0] = char(piece.size());
      const auto at = bytes.find(stored + piece);
      REQUIRE(at != std::string::npos);
      bytes.replace(at + 8, piece.size(), other);
    };
    spell("\xe2\x96\x81lord", lord);
    spell("\xe2\x96\x81the", the);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  renamed(const renamed&) = delete;
  ~renamed() { std::remove(path.c_str()); }
};

}  // namespace test
