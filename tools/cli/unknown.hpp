// SPDX-License-Identifier: Apache-2.0
// Words of the command line that nothing is called, and what they may have been meant to be.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

// How many letters are left out, added or changed, or neighbours exchanged, between a and b.
inline std::size_t letters_wrong(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

// After a failed parse: "--promt is no option of generate: did you mean --prompt?"; empty if every
// word was understood.
inline std::string unknown_word(const CLI::App& program, int argc, const char* const* argv) {
  std::string command;
  for (const CLI::App* app = &program; app;) {
    const std::vector<std::string> left = app->remaining();
    for (int i = 1; i < argc; ++i) {
      std::string word = argv[i];
      if (std::find(left.begin(), left.end(), word) == left.end()) continue;
      const bool option = word.size() > 1 && word[0] == '-';
      std::vector<std::string> names;
      if (option) {
        word.resize(std::min(word.size(), word.find('=')));
        for (const CLI::Option* o : app->get_options())
          for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
      } else {
        for (const CLI::App* one : app->get_subcommands([](const CLI::App*) { return true; }))
          names.push_back(one->get_name());
        if (names.empty()) return word + " was not expected by " + command;
      }
      const std::string what = word + (option ? " is no option of " : " is no subcommand of ") +
                               (command.empty() ? app->get_name() : command);
      const auto nearest =
          std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
            return letters_wrong(word, a) < letters_wrong(word, b);
          });
      const std::size_t letters = word.size() - (option ? 2 : 0);
      if (nearest != names.end() &&
          letters_wrong(word, *nearest) <= std::max<std::size_t>(1, letters / 3))
        return what + ": did you mean " + *nearest + "?";
      if (option) return what;
      std::string known;
      for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
      return what + " (" + known + " are known)";
    }
    const auto chosen = app->get_subcommands();
    app = chosen.empty() ? nullptr : chosen.front();
    if (app) command += (command.empty() ? "" : " ") + app->get_name();
  }
  return {};
}

}  // namespace cli
