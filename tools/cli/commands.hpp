// SPDX-License-Identifier: Apache-2.0
// The program's commands and options as CLI11 has them: completion and the manual are written from
// these.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cli {

struct command {
  std::string path;  // "specagg plan cos"
  const CLI::App* app;
};

inline std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}
// Each before its subcommands, the program first.
inline std::vector<command> commands_of(const CLI::App& app, const std::string& before = "") {
  std::vector<command> all{{before + app.get_name(), &app}};
  for (const CLI::App* sub : subcommands_of(app))
    for (const command& c : commands_of(*sub, all.front().path + " ")) all.push_back(c);
  return all;
}

// "--policy", "-h"; a positional argument has none.
inline std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

inline bool is_flag(const CLI::Option& option) { return option.get_type_size() == 0; }

// The words given to takes(); empty: any text.
inline std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.find('|') == std::string::npos ? std::vector<std::string>()
                                             : CLI::detail::split(type, '|');
}
inline bool takes_file(const CLI::Option& option) {
  return option.get_type_name() == "FILE" || option.get_type_name() == "FOLDER";
}

inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  return CLI::detail::find_and_replace(std::move(text), what, by);
}

}  // namespace cli
