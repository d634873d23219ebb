// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands have.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/rows/process.hpp>

#include "effects.hpp"
#include "llama_cpp_options.hpp"
#include "terminal.hpp"

namespace cli {

// The words that an option takes. --help, completion and the manual list them; who reads the option
// checks them.
inline CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& words) {
  return option->type_name(CLI::detail::join(words, "|"));
}
// An option that takes exactly one of these words.
inline CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  const auto unknown = [option, words](const std::string& word) -> std::string {
    const bool known = std::find(words.begin(), words.end(), word) != words.end();
    if (known || word.empty()) return "";  // check_values() refuses an empty one
    throw specagg::error(option->get_name() + " " + word, "",
                         "is unknown (" + CLI::detail::join(words, ", ") + " are known)");
  };
  return takes(option->check(CLI::Validator(unknown, "")), words);
}

// An option that names a file.
template <class Path>
CLI::Option* file(CLI::App* c, const std::string& name, Path& path, const std::string& what) {
  return c->add_option(name, path, what)->type_name("FILE");
}
// A value whose default --help shows.
template <class T>
CLI::Option* value(CLI::App* c, const std::string& name, T& x, const std::string& what) {
  return c->add_option(name, x, what)->capture_default_str();
}
template <class T>
CLI::Option* value(CLI::App* c, const std::string& name, T& x, const std::string& what,
                   const CLI::Validator& range) {
  return value(c, name, x, what)->check(range);
}
template <class T>
CLI::Option* value(CLI::App* c, const std::string& name, T& x, const std::string& what,
                   const std::vector<std::string>& words) {
  return one_of(value(c, name, x, what), words);
}

inline void add_threads(CLI::App* c, unsigned& threads, const char* what) {
  value(c, "--threads", threads, what, CLI::Range(1, 256));
}
template <class Prompt>
void add_prompt(CLI::App* c, Prompt& prompt, std::string& file_name) {
  c->add_option("--prompt", prompt, "Text to continue");
  file(c, "--prompt-file", file_name, "File with the text to continue")->excludes("--prompt");
}

inline void add_color(CLI::App* c) {
  static const std::vector<std::string> words = {"auto", "always", "never"};
  const auto choose = [](const std::string& word) {
    chosen_color = color(std::find(words.begin(), words.end(), word) - words.begin());
  };
  const char* what = "Colours and marks; auto: at a terminal, and no colours if NO_COLOR is set";
  one_of(c->add_option_function<std::string>("--color", choose, what), words);
}

inline void add_backend(CLI::App* c, std::string& backend, llama_cpp_options& o,
                        const std::vector<std::string>& names) {
  value(c, "--backend", backend, "Where the models run", names);
  c->add_option("--exact-batches", o.exact_batches,
                "With llama.cpp: compute in calls of exactly so many tokens, 1 for one by one, so "
                "that a text with "
                "drafts is the target's own (docs/llama_cpp.md)")
      ->check(CLI::Range(1, 128));
  c->add_option("--rpc", o.rpc,
                "With llama.cpp: RPC servers that hold the model and compute (docs/llama_cpp.md)")
      ->type_name("HOST:PORT,...");
}

inline void add_sampling(CLI::App* c, specagg::sampling& s) {
  value(c, "--temperature", s.temperature, "0: greedy", CLI::Range(0.0, 1e6));
  value(c, "--top-k", s.top_k, "Keep the k most probable tokens; 0: all");
  value(c, "--top-p", s.top_p, "Keep the most probable tokens up to this mass, in (0, 1]",
        CLI::Range(1e-9, 1.0));
  value(c, "--min-p", s.min_p, "Keep tokens of at least this fraction of the largest probability",
        CLI::Range(0.0, 1.0));
  std::vector<std::string> orders;
  for (const specagg::filter_order one : specagg::filter_orders) orders.push_back(name(one));
  const auto choose = [&s, orders](const std::string& word) {
    s.order = specagg::filter_order(std::find(orders.begin(), orders.end(), word) - orders.begin());
  };
  const char* what = "Which engine's order the temperature and the filters have (docs/engine.md)";
  one_of(c->add_option_function<std::string>("--filter-order", choose, what), orders)
      ->default_str(name(s.order));
}

}  // namespace cli
