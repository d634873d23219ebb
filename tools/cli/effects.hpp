// SPDX-License-Identifier: Apache-2.0
// Options that were given: their values are checked alike for all commands, and one that has no
// effect is refused, since whoever gave it meant it to do something. CLI11 refuses by the names of
// other options (needs(), excludes()), refuse_without_effect() by their values.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/error.hpp>

#include "no_effect.hpp"

namespace cli {

// The command's options but these.
inline std::vector<std::string> all_but(const CLI::App& command,
                                        const std::vector<std::string>& these) {
  std::vector<std::string> others;
  for (const CLI::Option* o : command.get_options()) {
    const std::string name = o->get_name();
    if (std::find(these.begin(), these.end(), name) == these.end() && name != "--help")
      others.push_back(name);
  }
  return others;
}
// CLI11 refuses `option` beside any of these: "--grid excludes --q".
inline void exclude(CLI::App& command, const std::string& option,
                    const std::vector<std::string>& others) {
  for (const std::string& other : others)
    command.get_option(option)->excludes(command.get_option(other));
}
inline void refuse_without_effect(const CLI::App& command, const std::vector<no_effect>& rows) {
  for (const no_effect& row : rows)
    for (const std::string& name : row.options) {
      if (!row.now) continue;
      const CLI::Option& o = *command.get_option(name);  // throws CLI::OptionNotFound
      if (o.count() == 0) continue;
      const bool flag = o.get_type_size() == 0;
      const std::string value = flag ? "" : fmt::format(" {}", fmt::join(o.results(), ","));
      throw specagg::error(name + value, "", "has no effect " + row.how);
    }
}

// CLI11 reads 010 as 8, 0x10 as 16, -1 as the largest unsigned number, and what is too large as the
// largest.
template <class T>
bool is_decimal(std::string_view text) {
  T x{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), x);
  const bool leading_zero = std::is_integral_v<T> && text.size() > 1 && text[0] == '0';
  return failure == std::errc() && end == text.data() + text.size() && !leading_zero;
}
// Throws specagg::error where a number is not decimal, or a value is empty and no text.
inline void check_values(const CLI::App& command) {
  for (const CLI::Option* o : command.get_options()) {
    const std::string name = o->get_name(), type = o->get_type_name();
    const bool text = name == "--prompt" || name == "--system" || name == "--text",
               flag = o->get_type_size() == 0;
    for (const std::string& value : o->results()) {
      const auto wrong = [&](const std::string& why) {
        throw specagg::error(name + " " + value, "", why);
      };
      if (value.empty() && !text && !flag) throw specagg::error(name, "", "is empty");
      if (type.starts_with("UINT") && !is_decimal<std::uint64_t>(value))
        wrong("is no number from 0 to 18446744073709551615");
      if (type.starts_with("INT") && !is_decimal<std::int64_t>(value)) wrong("is no whole number");
      if (type.starts_with("FLOAT") && !is_decimal<double>(value)) wrong("is no decimal number");
    }
  }
}
// From now on it does so for the program and every command of it, before the command runs. All
// programs call it.
inline void check_values_of_all(CLI::App& program) {
  program.parse_complete_callback([&program] { check_values(program); });
  for (CLI::App* sub : program.get_subcommands([](CLI::App*) { return true; }))
    check_values_of_all(*sub);
}

}  // namespace cli
