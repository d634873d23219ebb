// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "llama_cpp_options.hpp"

namespace cli {

struct score_options {
  std::string model, draft, text, text_file, backend = "cpu";
  llama_cpp_options llama_cpp;
  unsigned threads = 1;
  bool json = false;
};
// How probable a text is to a model; with a draft model also how much of it would be drafted.
// Throws specagg::error.
void score(const score_options& o);

}  // namespace cli
