// SPDX-License-Identifier: Apache-2.0
// Every policy of the catalogue as the command line writes it, with parameters that do something.
#pragma once
#include <string>
#include <vector>

#include "../tools/cli/policies.hpp"

inline std::vector<std::string> all_policies() {
  std::vector<std::string> all;
  for (const cli::known_policy& r : cli::known_policies()) all.push_back(r.samples.front());
  return all;
}
