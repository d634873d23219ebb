// SPDX-License-Identifier: Apache-2.0
// specagg completion and specagg man know every command and option that --help does.
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../tools/cli/policies.hpp"
#include "cli/command.hpp"

namespace {

using cli::ran, cli::run, cli::shell;
using words = std::set<std::string>;

const std::vector<std::string> commands = {
    "",          "generate",         "law",         "audit",           "plan",       "plan cos",
    "plan dssd", "plan speculative", "plan dragon", "plan schedulers", "completion", "man"};

words words_in(const std::string& text) {
  std::istringstream in(text);
  words all;
  for (std::string word; in >> word;) all.insert(word);
  return all;
}
bool has(const std::string& program) { return shell("command -v " + program).status == 0; }

// The long options of a command by its --help.
words options_of(const std::string& command) {
  std::istringstream in(run(command + " --help").out);
  words all;
  std::string line;
  while (std::getline(in, line) && line != "Options:") continue;
  while (std::getline(in, line) && !line.empty())
    if (const auto begin = line.find("--"); line.rfind("  -", 0) == 0)
      all.insert(line.substr(begin, line.find_first_of(" =", begin) - begin));
  return all;
}

// What bash completes `line` to; its last word is the one that is being typed.
words in_bash(const std::string& line) {
  const ran r = shell(
      std::string("bash -c 'source <(") + SPECAGG_CLI + " completion bash); COMP_WORDS=(\"$@\"); " +
      "COMP_CWORD=$(($# - 1)); _specagg; echo \"${COMPREPLY[*]}\"' bash " + line + " 2>&1");
  INFO(line << "\n" << r.out);
  CHECK(r.status == 0);
  return words_in(r.out);
}

}  // namespace

TEST_CASE("bash completes every command, every option and every word that an option takes") {
  if (!has("bash")) return;
  for (const std::string& command : commands) {
    INFO(command);
    const words options = options_of(command);
    CHECK(options.size() > 0);
    CHECK(in_bash("specagg " + command + " --") == options);
  }
  words policies;
  for (const cli::known_policy& r : cli::known_policies()) policies.insert(r.name);
  for (const cli::known_stateful& r : cli::known_stateful_policies()) policies.insert(r.name);
  CHECK(in_bash("specagg generate --policy \"\"") == policies);
  CHECK(in_bash("specagg law --policy = \"\"") == policies);
  CHECK(in_bash("specagg law --policy =") == policies);
  CHECK(in_bash("specagg law --policy = los") == words{"lossless", "lossy"});
  CHECK(in_bash("specagg generate --decoder s") == words{"speculative", "sequential", "sequence"});
  CHECK(in_bash("specagg generate --json --verify \"\"") ==
        words{"token", "block", "match", "coupled", "traversal", "recursive"});
  CHECK(in_bash("specagg generate --backend \"\"") == words{"cpu", "cuda", "llama.cpp"});
  CHECK(in_bash("specagg generate --color a") == words{"auto", "always"});
  CHECK(in_bash("specagg pl") == words{"plan"});
  CHECK(in_bash("specagg plan s") == words{"speculative", "schedulers"});
  CHECK(in_bash("specagg completion \"\"").count("zsh") == 1);
  CHECK(in_bash("specagg generate --seed \"\"").empty());
}
TEST_CASE("fish completes the same") {
  const std::string script = run("completion fish").out;
  CHECK(script.find("complete -c specagg") != std::string::npos);
  if (!has("fish")) return;
  const auto in_fish = [](const std::string& line) {
    const ran r = shell(std::string("fish -c '") + SPECAGG_CLI +
                        " completion fish | source; complete -C \"" + line + "\" | cut -f 1' 2>&1");
    INFO(line << "\n" << r.out);
    CHECK(r.status == 0);
    return words_in(r.out);
  };
  for (const std::string& command : commands)
    if (!command.empty()) CHECK(in_fish("specagg " + command + " --") == options_of(command));
  CHECK(in_fish("specagg generate --policy los") == words{"lossless", "lossy"});
  CHECK(in_fish("specagg plan ") ==
        words{"acceptance", "cos", "speculative", "dssd", "dragon", "schedulers"});
  CHECK(in_fish("specagg completion ") == words{"bash", "zsh", "fish"});
}
TEST_CASE("the script for zsh is one, with every option in it") {
  const std::string script = run("completion zsh").out;
  CHECK(script.rfind("#compdef specagg\n", 0) == 0);
  for (const std::string& command : commands)
    for (const std::string& option : options_of(command))
      CHECK(script.find(option + "[") != std::string::npos);
  CHECK(script.find(":policy:(lossless ") != std::string::npos);
  if (has("zsh"))
    CHECK(shell(std::string(SPECAGG_CLI) + " completion zsh | zsh -n 2>&1").out.empty());
}
TEST_CASE("completion refuses other shells") {
  cli::refuses("completion tcsh", {"tcsh", "bash, zsh, fish"});
  cli::refuses("completion", {"shell"});
}
TEST_CASE("the manual has every command and option, and roff reads it without a warning") {
  const std::string roff = run("man").out;
  CHECK(roff.rfind(".TH specagg 1 ", 0) == 0);
  if (!has("groff")) return;
  const ran r =
      shell(std::string(SPECAGG_CLI) + " man | groff -man -ww -Tutf8 -P-cbou -rLL=500n 2>&1");
  INFO(r.out);
  CHECK(r.status == 0);
  CHECK(r.out.find("warning") == std::string::npos);
  for (const std::string& command : commands) {
    CHECK(r.out.find(command.empty() ? "SYNOPSIS" : "\nspecagg " + command + "\n") !=
          std::string::npos);
    for (const std::string& option : options_of(command))
      CHECK(r.out.find(option) != std::string::npos);
  }
  for (const cli::known_policy& policy : cli::known_policies())
    CHECK(r.out.find(policy.law) != std::string::npos);
  for (const char* text : {"EXIT STATUS", "One of: token, block, match, coupled.", "Default: 0.8."})
    CHECK(r.out.find(text) != std::string::npos);
}
