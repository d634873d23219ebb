// SPDX-License-Identifier: Apache-2.0
// Every policy of the catalogue (policy/catalogue.hpp) by its name, chosen at run time.
#pragma once
#include <vector>

#include <specagg/compiled_once.hpp>
#include <specagg/policy/catalogue.hpp>

// What uses it is compiled once for all policies.
using any_policy = specagg::compiled_once<specagg::any_catalogued>;

struct named_policy {
  const char* name;
  any_policy policy;
};
// Each with parameters that do something.
inline std::vector<named_policy> all_policies() {
  std::vector<named_policy> all;
  specagg::for_each_in_catalogue([&](const auto& line) {
    all.push_back({line.name, line.values[line.values.size() > 1 ? 1 : 0]});
  });
  return all;
}
