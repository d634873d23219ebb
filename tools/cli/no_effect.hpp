// SPDX-License-Identifier: Apache-2.0
// Options that have no effect beside others. (effects.hpp refuses them.)
#pragma once
#include <string>
#include <vector>

#include <specagg/rows/process.hpp>

namespace cli {

// Options of a command that have no effect `how` ("with --batch"), if `now`.
struct no_effect {
  bool now;
  std::string how;
  std::vector<std::string> options;
};

inline std::vector<no_effect> without_effect_on(const std::string& backend) {
  return {{backend != "llama.cpp",
           "with --backend " + backend + ", only with --backend llama.cpp",
           {"--exact-batches", "--rpc"}},
          {backend == "cuda", "with --backend cuda", {"--threads"}}};
}

// --seed is not among them: the law of two most likely tokens may still be one that is drawn from,
// as ensemble's is.
inline no_effect without_effect_at(const specagg::sampling& s) {
  return {s.temperature == 0,
          "with --temperature 0: the most likely token is taken",
          {"--top-k", "--top-p", "--min-p", "--filter-order"}};
}

}  // namespace cli
