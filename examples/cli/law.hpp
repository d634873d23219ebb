// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace cli {

struct law_options {
  std::string policy = "lossless", verify = "token", q, p;
  bool batch = false, grid = false, json = false;
};

// specagg law: the exact law of one position under a policy and a verifier. Throws specagg::error for bad input.
void law(const law_options& options);

}  // namespace cli
