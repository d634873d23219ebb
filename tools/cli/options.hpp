// SPDX-License-Identifier: Apache-2.0
// Options that several subcommands have.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/verify/verifiers.hpp>

#include "effects.hpp"
#include "llama_cpp_options.hpp"
#include "terminal.hpp"

namespace cli {

inline const std::vector<std::string> verifiers = [] {
  std::vector<std::string> names;
  specagg::for_each_verifier(0, 0, [&](const auto& v) { names.push_back(v.name); });
  return names;
}();

// The words that an option takes. --help, completion and the manual list them; who reads the option
// checks them.
inline CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& words) {
  return option->type_name(CLI::detail::join(words, "|"));
}

inline void add_color(CLI::App* c) {
  static const std::vector<std::string> words = {"auto", "always", "never"};
  const auto choose = [](const std::string& word) {
    const auto found = std::find(words.begin(), words.end(), word);
    if (found == words.end())
      throw specagg::error("--color " + word, "", "is unknown (auto, always, never are known)");
    chosen_color = color(found - words.begin());
  };
  const char* what = "Colours and marks; auto: at a terminal, and no colours if NO_COLOR is set";
  takes(c->add_option_function<std::string>("--color", choose, what), words);
}

inline void add_backend(CLI::App* c, std::string& backend, llama_cpp_options& o,
                        const std::vector<std::string>& names) {
  takes(c->add_option("--backend", backend, "Where the models run"), names)->capture_default_str();
  c->add_option("--exact-batches", o.exact_batches,
                "With llama.cpp: compute in calls of exactly so many tokens, 1 for one by one, so "
                "that a text with "
                "drafts is the target's own (docs/llama_cpp.md)")
      ->check(CLI::Range(1, 128));
  c->add_option("--rpc", o.rpc,
                "With llama.cpp: RPC servers that hold the model and compute (docs/llama_cpp.md)")
      ->type_name("HOST:PORT,...");
}

inline std::vector<no_effect> without_effect_on(const std::string& backend) {
  return {{backend != "llama.cpp",
           "with --backend " + backend + ", only with --backend llama.cpp",
           {"--exact-batches", "--rpc"}},
          {backend == "cuda", "with --backend cuda", {"--threads"}}};
}

inline void add_sampling(CLI::App* c, specagg::sampling& s) {
  c->add_option("--temperature", s.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  c->add_option("--top-k", s.top_k, "Keep the k most probable tokens; 0: all")
      ->capture_default_str();
  c->add_option("--top-p", s.top_p, "Keep the most probable tokens up to this mass, in (0, 1]")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  c->add_option("--min-p", s.min_p,
                "Keep tokens of at least this fraction of the largest probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

// --seed is not among them: the law of two most likely tokens may still be one that is drawn from,
// as ensemble's is.
inline no_effect without_effect_at(const specagg::sampling& s) {
  return {s.temperature == 0,
          "with --temperature 0: the most likely token is taken",
          {"--top-k", "--top-p", "--min-p"}};
}

}  // namespace cli
