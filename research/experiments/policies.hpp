// SPDX-License-Identifier: Apache-2.0
// The rules by the names of `specagg law`, each over the whole range of its parameter.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/decoders.hpp>

namespace experiments {

// f(policy) of a rule of the catalogue with this value of its first parameter. lossy-beta is
// Leviathan's lenience, beta = 1 - alpha.
template <class F>
void with_policy(const std::string& rule, double x, F&& f) {
  if (rule == "lossy-beta") return f(specagg::lossy{x, 1 - x});
  bool found = false;
  specagg::for_each_in_catalogue([&](const auto& line) {
    if (rule != line.name) return;
    auto policy = line.values[0];
    if (!line.parameters.empty()) policy.*line.parameters[0].number = x;
    found = true;
    f(policy);
  });
  if (!found) throw specagg::error("rule", rule, "is not in the catalogue");
}
// As `specagg law --policy` takes it.
inline std::string policy_text(const std::string& rule, double x) {
  if (rule == "lossy-beta") return fmt::format("lossy:alpha={},beta={}", x, 1 - x);
  std::string text = rule;
  specagg::for_each_in_catalogue([&](const auto& line) {
    if (rule == line.name && !line.parameters.empty())
      text += fmt::format(":{}={}", line.parameters[0].name, x);
  });
  return text;
}

struct sweep {
  std::string rule;
  // from "always the target" to "always the draft", or the other way round
  std::vector<double> values;
};
inline std::vector<sweep> sweeps() {
  const std::vector<double> leniences{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97};
  const std::vector<double> chances{-1,   -0.5, -0.3, -0.2, -0.1, -0.05, 0,
                                    0.05, 0.1,  0.15, 0.2,  0.3,  0.5,   1};
  const std::vector<double> nats{-4, -2, -1, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5};
  return {{"ensemble", {0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1}},
          {"lossy", leniences},
          {"lenient", leniences},
          {"lossy-beta", leniences},
          {"mentored", {0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6}},
          {"chow", {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1}},
          {"chow-log", {0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 8.5}},
          {"diff", chances},
          {"diff-log", nats},
          {"opt", {-3, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 3}},
          {"opt-log", {-15, -6, -3, -1.5, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 15}},
          {"bild", {0, 1, 2, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 8, 10, 14}},
          {"token-v1", {-0.5, -0.1, 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1}},
          {"token-v2", {0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1}},
          {"token-v3",
           {0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998,
            0.9999, 0.99999, 1}}};
}

}  // namespace experiments
