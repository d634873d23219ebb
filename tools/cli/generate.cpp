// SPDX-License-Identifier: Apache-2.0
// specagg generate: one prompt, two models, one policy.
#include "generate.hpp"

#include <unistd.h>

#include <specagg/format.hpp>

#include "files.hpp"
#include "job.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;

// How many tokens follow the prompt: as many as are asked for, and have room.
void make_room(job& j, const char* input, const std::string& place) {
  if (j.prompt.size() >= j.context)
    throw error(
        input, place,
        fmt::format("has {} tokens, the models' context holds {}", j.prompt.size(), j.context));
  j.most = std::min(j.options.max_tokens, j.context - j.prompt.size());
}

// The next line of standard input that is not empty; false at its end.
bool read_turn(std::string& asked, std::size_t& lines, bool at_terminal) {
  while (asked.empty()) {
    if (at_terminal) {
      fmt::print("{}", bold("> "));
      std::fflush(stdout);
    }
    if (!read_line(asked, lines++, most_text_bytes)) return false;
  }
  return true;
}

// Answers the prompt, if there is one, and every line of standard input. The models keep what they
// have seen.
void converse(job& j) {
  const generate_options& o = j.options;
  const auto turns = j.tokens().chat();
  const bool at_terminal = isatty(STDIN_FILENO) && !o.json;
  std::optional<std::string> first = o.prompt;
  if (!o.prompt_file.empty()) first = read_text(o.prompt_file);
  std::vector<std::string> texts = {""};
  (void)turns->tokens(o.system, texts);  // a system text that cannot be tokens ends it all
  texts.clear();
  for (std::size_t turn = 1, lines = 0;; ++turn) {
    const bool given = turn == 1 && first;
    std::string asked = given ? *first : "";
    if (!read_turn(asked, lines, at_terminal)) return;
    try {
      texts.push_back(asked);
      auto prompt = j.prompt.empty() ? turns->tokens(o.system, texts)
                                     : turns->next(j.prompt, o.system, texts);
      const auto changed =
          std::mismatch(j.prompt.begin(), j.prompt.end(), prompt.begin(), prompt.end()).first;
      j.known = std::min(j.known, std::size_t(changed - j.prompt.begin()));
      j.prompt = std::move(prompt);
      // the text cannot be tokens: the turn ends, the conversation does not
    } catch (const error& e) {
      texts.pop_back();
      if (given) throw;  // it came from the command line
      print_refused(j, e, turn, asked);
      continue;
    }
    make_room(j, "conversation", fmt::format("turn {}", turn));
    const decoded answer = run_and_print(j, turn == 1);
    print_turn(j, answer, turn, asked);
    texts.emplace_back();
    for (const emission& e : answer.emissions)
      if (!end_tokens(j.ends).contains(e.token)) {
        j.prompt.push_back(e.token);
        texts.back() += j.tokens().piece(e.token);
      }
    j.known = j.prompt.size();
  }
}

// The prompt's text; its tokens are the job's.
std::string take_prompt(job& j) {
  const generate_options& o = j.options;
  const std::unique_ptr<const chat> turns = o.chat ? j.tokens().chat() : nullptr;
  if (turns && !o.prompt && o.prompt_file.empty())
    throw error("--compare", "", "with --chat needs --prompt or --prompt-file");
  const std::string prompt =
      !o.prompt_file.empty()
          ? read_text(o.prompt_file)
          : o.prompt.value_or("ROMEO:\nO, she doth teach the torches to burn bright!\n");
  j.prompt = turns ? turns->tokens(o.system, {&prompt, 1}) : j.tokens().encode(prompt);
  if (j.prompt.empty()) {
    if (j.tokens().bos() == no_token)
      throw error("prompt", "", "is empty, and the model has no token that begins a text");
    j.prompt.push_back(j.tokens().bos());
  }
  make_room(j, "prompt", "");
  return prompt;
}

}  // namespace

void generate(const generate_options& options) {
  job j = prepare(options);
  if (options.chat && !options.compare) return converse(j);
  const std::string prompt = take_prompt(j);
  if (options.compare) return print_comparison(j, compare(j), prompt);
  if (!options.json) {
    fmt::print("{}", dim(prompt));
    std::fflush(stdout);
  }
  print_once(j, run_and_print(j, true), prompt);
}

}  // namespace cli
