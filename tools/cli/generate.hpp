// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <specagg/decoders.hpp>

#include "llama_cpp_options.hpp"

namespace cli {

struct generate_options {
  // empty: the bundled pair; a target without a draft writes alone
  std::string target, draft;
  std::vector<std::string> lookups;  // texts that lookup and counts know
  std::vector<std::string> models;   // further ones, between draft and target
  std::string decoder = "speculative";
  std::string policy, verify, gamma;       // empty: the decoder's own default
  std::string tree, propose;               // the same
  std::optional<std::size_t> longest_run;  // the same
  std::string space;                       // empty: the policy's own default
  std::optional<double> synthetic_length;  // none: drafts are verified, as without rates
  std::vector<double> synthetic_rates;     // the same by position
  // none: a bundled one, or with chat the first line of standard input
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::size_t max_tokens = 200;
  specagg::sampling sample = {.temperature = 0.8};
  specagg::penalty_options penalty;
  std::vector<std::string> stops;
  std::uint64_t seed = 1;
  std::string backend = "cpu";
  llama_cpp_options llama_cpp;
  unsigned threads = 1;
  std::string baseline;  // of compare: target (also if empty), all-models
  bool compare = false, json = false, chat = false;
  std::optional<std::string> system;  // of a chat; none: what its template says
};

// specagg generate. Throws specagg::error for anything that cannot be used.
void generate(const generate_options& options);

}  // namespace cli
