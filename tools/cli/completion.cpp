// SPDX-License-Identifier: Apache-2.0
// specagg completion: every script asks the same of the line typed so far. The words that are
// commands say which command it is; the word before the cursor says whether an option waits for its
// value.
#include "completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <specagg/error.hpp>

#include "commands.hpp"
#include "options.hpp"

namespace cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// What can follow a command where no option waits for a value.
std::vector<std::string> follows(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : subcommands_of(app)) words.push_back(sub->get_name());
  for (const CLI::Option* o : app.get_options()) {
    const auto more = o->get_positional() ? words_of(*o) : names_of(*o);
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

// 'text' in a shell's single quotes: a quote inside ends them, stands for itself, and begins them
// again.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// ---- bash ---------------------------------------------------------------------------------------

std::string bash(const CLI::App& program) {
  std::string paths, values, words;
  for (const auto& [path, app] : commands_of(program)) {
    if (app != &program) paths += (paths.empty() ? "" : " | ") + quoted(path);
    words += fmt::format("        {}) words={} ;;\n", quoted(path), quoted(joined(follows(*app))));
    for (const CLI::Option* o : app->get_options()) {
      if (o->get_positional() || is_flag(*o)) continue;
      std::string pattern;
      for (const std::string& name : names_of(*o))
        pattern += (pattern.empty() ? "" : " | ") + quoted(path + " " + name);
      const auto known = words_of(*o);
      values += fmt::format("    {}) {} ;;\n", pattern,
                            !known.empty()   ? "words=" + quoted(joined(known))
                            : takes_file(*o) ? "compopt -o default 2>/dev/null; return"
                                             : "return");
    }
  }
  const std::string script =
      R"sh(# Completion of specagg for bash; in ~/.bashrc: eval "$(specagg completion bash)"
_specagg() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}
  local command=specagg words='' i
  COMPREPLY=()
  # --option=value is three words
  if [[ $word == = ]]; then
    word=''
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${COMP_WORDS[i]}" in
      @PATHS@) command+=" ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$command $option" in
@VALUES@    *)
      case $command in
@WORDS@      esac ;;
  esac
  while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -W "$words" -- "$word")
}
complete -F _specagg specagg
)sh";
  return replaced(replaced(replaced(script, "@PATHS@", paths), "@VALUES@", values), "@WORDS@",
                  words);
}

// ---- zsh ----------------------------------------------------------------------------------------

// The name of the function that completes a command.
std::string zsh_function(const std::string& path) { return "_" + replaced(path, " ", "_"); }

// In the [description] of an option, and in a name:description.
std::string zsh_text(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"})
    text = replaced(text, special, std::string("\\") + special);
  return text;
}

std::string zsh_value(const CLI::Option& o) {
  const auto known = words_of(o);
  const std::string what = o.get_positional() ? o.get_name(true) : o.get_lnames().front();
  return ":" + what + ":" +
         (!known.empty()  ? "(" + joined(known) + ")"
          : takes_file(o) ? "_files"
                          : "");
}

std::string zsh(const CLI::App& program) {
  std::string script =
      "#compdef specagg\n# Completion of specagg for zsh; in ~/.zshrc, after compinit: "
      "eval \"$(specagg completion zsh)\"\n";
  for (const auto& [path, app] : commands_of(program)) {
    script += zsh_function(path) + "() {\n";
    const auto subs = subcommands_of(*app);
    if (!subs.empty())
      script += "  local curcontext=$curcontext state line\n  typeset -A opt_args\n";
    script += subs.empty() ? "  _arguments" : "  _arguments -C";
    for (const CLI::Option* o : app->get_options()) {
      if (o->get_positional()) {
        script += " \\\n    " + quoted(zsh_value(*o));
        continue;
      }
      for (const std::string& name : names_of(*o)) {
        const bool several = o->get_items_expected_max() > 1;
        script += " \\\n    " +
                  quoted((several ? "*" : "") + name + "[" + zsh_text(o->get_description()) + "]" +
                         (is_flag(*o) ? "" : zsh_value(*o)));
      }
    }
    if (!subs.empty()) {
      std::string names, calls;
      for (const CLI::App* sub : subs) {
        names += "\n        " + quoted(sub->get_name() + ":" + zsh_text(sub->get_description()));
        calls += fmt::format("        {}) {} ;;\n", sub->get_name(),
                             zsh_function(path + " " + sub->get_name()));
      }
      script +=
          " \\\n    '1: :->command' '*:: :->arguments'\n  case $state in\n    command)\n      "
          "local -a commands\n"
          "      commands=(" +
          names +
          "\n      )\n      _describe command commands ;;\n    arguments)\n"
          "      case $line[1] in\n" +
          calls + "      esac ;;\n  esac";
    }
    script += "\n}\n";
  }
  return script +
         "if [[ ${funcstack[1]-} == _specagg ]]; then _specagg \"$@\"; else compdef _specagg "
         "specagg; fi\n";
}

// ---- fish ---------------------------------------------------------------------------------------

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish(const CLI::App& program) {
  std::string paths, lines;
  for (const auto& [path, app] : commands_of(program)) {
    if (app != &program) paths += " " + fish_quoted(path);
    const std::string here =
        fmt::format("complete -c specagg -n {} ", fish_quoted("__specagg_command " + path));
    for (const CLI::App* sub : subcommands_of(*app))
      lines +=
          here + fmt::format("-a {} -d {}\n", sub->get_name(), fish_quoted(sub->get_description()));
    for (const CLI::Option* o : app->get_options()) {
      const auto known = words_of(*o);
      lines += here;
      if (o->get_positional()) {
        lines += "-a " + fish_quoted(joined(known));
      } else {
        for (const std::string& name : o->get_snames()) lines += "-s " + name + " ";
        for (const std::string& name : o->get_lnames()) lines += "-l " + name + " ";
        if (!is_flag(*o))
          lines += takes_file(*o)  ? "-r -F "
                   : known.empty() ? "-x "
                                   : "-x -a " + fish_quoted(joined(known)) + " ";
        lines += "-d " + fish_quoted(o->get_description());
      }
      lines += "\n";
    }
  }
  const std::string script =
      R"sh(# Completion of specagg for fish; in config.fish: specagg completion fish | source
function __specagg_command
  set -l command specagg
  set -l words (commandline -opc)
  set -e words[1]
  for word in $words
    if contains -- "$command $word"@PATHS@
      set command "$command $word"
    end
  end
  test "$command" = "$argv"
end
complete -c specagg -f
)sh";
  return replaced(script, "@PATHS@", paths) + lines;
}

}  // namespace

void add_completion(CLI::App& program) {
  CLI::App* c = program.add_subcommand("completion", "A completion script for bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  one_of(c->add_option("shell", *shell, "Whose script")->required(), {"bash", "zsh", "fish"});
  c->callback([&program, shell] {
    if (*shell == "bash") fmt::print("{}", bash(program));
    else if (*shell == "zsh") fmt::print("{}", zsh(program));
    else fmt::print("{}", fish(program));
  });
}

}  // namespace cli
