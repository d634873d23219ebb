// SPDX-License-Identifier: Apache-2.0
// Texts of lines, and of lines of JSON.
#pragma once
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace cli {

// Calls next(line, number) for each line; numbers are from 1.
void for_each_line(std::string_view text, auto&& next) {
  for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
    const auto end = std::min(text.find('\n', at), text.size());
    next(text.substr(at, end - at), number);
    at = end + 1;
  }
}

// Calls next(value, number) for each line that is not blank; the value of one that is no JSON
// is_discarded().
void for_each_json_line(std::string_view text, auto&& next) {
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (line.find_first_not_of(" \t\r") != line.npos)
      next(nlohmann::json::parse(line, nullptr, false), number);
  });
}

}  // namespace cli
