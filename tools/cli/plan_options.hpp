// SPDX-License-Identifier: Apache-2.0
// What the commands of specagg plan share: numbers in their ranges, a command with its options.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include <specagg/error.hpp>

#include "options.hpp"

namespace cli {

inline void require(const std::string& command, const char* option, double x, double low,
                    double high) {
  if (!(x >= low && x <= high))
    throw specagg::error("plan " + command, option,
                         fmt::format("{:g} is not in [{:g}, {:g}]", x, low, high));
}
inline void require(const std::string& command, const char* option, const std::vector<double>& all,
                    double low, double high) {
  for (const double x : all) require(command, option, x, low, high);
}
inline void require(const std::string& command, const char* option,
                    const std::vector<std::size_t>& all, double low, double high) {
  for (const std::size_t x : all) require(command, option, double(x), low, high);
}
inline constexpr double tiny = 1e-9, huge = 1e9, most_gamma = 1000;

// The options of one subcommand live as long as the program that parses them.
template <class Options, class Run>
CLI::App* add(CLI::App& plan, const char* name, const char* what, std::shared_ptr<Options> o,
              Run run, std::vector<no_effect> (*without_effect)(const Options&) = nullptr) {
  CLI::App* sub = plan.add_subcommand(name, what);
  sub->add_flag("--json", o->as_json, "One JSON object instead of text");
  sub->callback([=] {
    if (without_effect) refuse_without_effect(*sub, without_effect(*o));
    run(*o);
  });
  return sub;
}

// plan_record.cpp
void add_record(CLI::App& plan);
// plan_sites.cpp
void add_dssd(CLI::App& plan);
void add_dragon(CLI::App& plan);
void add_acceptance(CLI::App& plan);

}  // namespace cli
