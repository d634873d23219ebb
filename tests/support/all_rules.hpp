// SPDX-License-Identifier: Apache-2.0
// Every rule of the catalogue as the command line writes it, with parameters that do something.
#pragma once
#include <string>
#include <vector>

#include "../tools/cli/policies.hpp"

inline std::vector<std::string> all_rules() {
  std::vector<std::string> all;
  for (const cli::rule& r : cli::rules()) all.push_back(r.samples.front());
  return all;
}
