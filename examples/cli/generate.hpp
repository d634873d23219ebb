// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <specagg/specagg.hpp>

namespace cli {

struct generate_options {
  std::string target = SPECAGG_MODELS "/target.gguf", draft = SPECAGG_MODELS "/draft.gguf";
  std::vector<std::string> models;                    // further ones, between draft and target
  std::string decoder = "speculative";
  std::string policy, verify, gamma;                  // empty: the decoder's own default
  std::optional<std::size_t> longest_run;             // the same
  std::string space;                                  // empty: the policy's own default
  std::string prompt = "ROMEO:\nO, she doth teach the torches to burn bright!\n", prompt_file;
  std::size_t max_tokens = 200;
  specagg::sampling sample = {.temperature = 0.8};
  specagg::penalty_options penalty;
  std::vector<std::string> stops;
  std::uint64_t seed = 1;
  std::string backend = "cpu";
  unsigned threads = 1;
  bool compare = false, json = false;
};

// specagg generate. Throws specagg::error for whatever cannot be used.
void generate(const generate_options& options);

}  // namespace cli
