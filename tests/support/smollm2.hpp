// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M-Instruct, which scripts/get-model downloads, for tests whose names begin with
// "SmolLM2:". Where it is not there such a test is reported as not run (tests/CMakeLists.txt).
#pragma once
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "support/sanitized.hpp"

namespace test {

// The file of the model. If there is none the result is empty, and the test has said so and should
// return.
inline std::string smollm2() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  std::string folder = variable("SPECAGG_MODELS");  // as scripts/get-model finds it
  if (folder.empty()) {
    folder = variable("XDG_CACHE_HOME");
    folder = (folder.empty() ? variable("HOME") + "/.cache" : folder) + "/specagg";
  }
  const std::string file = folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  const bool there = std::ifstream(file).good();
  if (there && !SPECAGG_SANITIZED) return file;
  std::puts(
      there ? "skipped: SmolLM2 is too slow under a sanitizer; the tiny models test the same code"
            : "skipped: SmolLM2 is not there (scripts/get-model downloads it)");
  std::fflush(stdout);
  return "";
}

}  // namespace test
