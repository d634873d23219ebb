// SPDX-License-Identifier: Apache-2.0
// specagg man: one page, a section for each command.
#include "manual.hpp"

#include <fmt/format.h>

#include <string>

#include <specagg/config.hpp>

#include "commands.hpp"

namespace cli {
namespace {

// Text that roff prints as it is: no escape, no quote or hyphen made typographic, and no line that
// is a request.
std::string roff(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    out += c == '\\'   ? "\\e"
           : c == '-'  ? "\\-"
           : c == '\'' ? "\\(aq"
           : c == '^'  ? "\\(ha"
           : c == '~'  ? "\\(ti"
           : c == '`'  ? "\\(ga"
                       : std::string(1, c);
  }
  return out;
}

std::string as_printed(const std::string& text) {
  return text.empty() ? "" : ".PP\n.nf\n.ft CR\n" + roff(text) + "\n.ft\n.fi\n";
}

std::string described(const CLI::Option& o) {
  std::string names, after;
  for (const std::string& name : names_of(o))
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (o.get_positional()) names = "\\fI" + roff(o.get_name(true)) + "\\fR";
  if (const auto known = words_of(o); !known.empty()) {
    // One word too long to be broken is a line too long.
    std::string words;
    for (const std::string& word : known) words += (words.empty() ? "" : ", ") + word;
    after = ".br\nOne of: " + roff(words) + ".\n";
    if (!o.get_positional()) names += " \\fIword\\fR";
  } else if (!is_flag(o)) {
    // "FLOAT:FLOAT in [0 - 1]": the type and what it is checked for
    const std::string type = o.get_type_name();
    const auto colon = type.find(':'), range = type.find(" in [");
    names += " \\fI" + roff(type.substr(0, colon)) + "\\fR";
    if (range != std::string::npos) after += ".br\nRange: " + roff(type.substr(range + 4)) + ".\n";
  }
  if (!o.get_default_str().empty() && !is_flag(o))
    after += ".br\nDefault: " + roff(o.get_default_str()) + ".\n";
  return ".TP\n" + names + "\n" + roff(o.get_description()) + "\n" + after;
}

std::string page(const CLI::App& program) {
  const std::string name = program.get_name(), about = program.get_description();
  std::string text =
      fmt::format(".TH {} 1 \"\" \"specagg {}\" \"User Commands\"\n", name, SPECAGG_VERSION);
  text += ".nh\n.ad l\n.SH NAME\n" + roff(name) + " \\- " +
          roff(about.substr(about.find(": ") + 2)) + "\n";
  text += ".SH SYNOPSIS\n";
  for (const auto& [path, app] : commands_of(program)) {
    if (!subcommands_of(*app).empty()) continue;
    text += ".B " + roff(path) + "\n";
    for (const CLI::Option* o : app->get_options())
      if (o->get_positional()) text += ".I " + roff(o->get_name(true)) + "\n";
    text += "[options]\n.br\n";
  }
  text += ".SH OPTIONS\n";
  for (const auto& [path, app] : commands_of(program)) {
    if (app != &program) text += ".SH " + roff(path) + "\n" + roff(app->get_description()) + "\n";
    for (const CLI::Option* o : app->get_options()) text += described(*o);
    if (app != &program) text += as_printed(app->get_footer());
  }
  return text + ".SH EXIT STATUS\n" + roff(program.get_footer()) + "\n";
}

}  // namespace

void add_manual(CLI::App& program) {
  program.add_subcommand("man", "The manual page in roff: specagg man | man -l -")
      ->callback([&program] { fmt::print("{}", page(program)); });
}

}  // namespace cli
