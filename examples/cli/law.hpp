// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace cli {

struct law_options {
  std::string policy, verify;  // empty: lossless and token; all of them on the grid
  std::string q, p;            // numbers, or @FILE
  bool batch = false, grid = false, enumerate = false, json = false;
};

// specagg law: the exact law of one position under a policy and a verifier. Throws specagg::error for bad input.
void law(const law_options& options);

}  // namespace cli
