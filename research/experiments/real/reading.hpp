// SPDX-License-Identifier: Apache-2.0
// Models that read, and what they read: SmolLM2-135M-Instruct on the library's own engine, Gemma 3
// 270M in llama.cpp, texts and questions from Debian's packages (texts.py).
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "../lab.hpp"

namespace experiments::real {

// Of the environment, as scripts/experiments sets it: SPECAGG_SMOLLM2, SPECAGG_GEMMA (empty or not
// there: no part uses Gemma), SPECAGG_TEXTS.
struct sources {
  std::string smollm2, gemma, texts;
};
sources from_environment();

// A world over the vocabulary of `target`: "smollm2" or "gemma". Its models, by name:
//   smollm2, gemma   the models; the one that is not the target through the map of vocabularies
//   head             SmolLM2's draft head, on the smollm2 that is opened with it, or on its own
//   amateur          the same with all tokens: those that the head does not know are as likely as
//                    the least likely one that it knows
//   smollm2/plain, smollm2/vivid, smollm2/teacher   SmolLM2 under three system prompts, which stand
//                    before the text: experts of equal cost
// threads: of each model.
world reading(const sources& of, const std::string& target, std::size_t windows, std::size_t scored,
              unsigned threads);

// The same models over SmolLM2's vocabulary, one thread each, with prompts of these kinds (code,
// rewrite, story, chat: research/prompts) as turns of a user that follow a system prompt.
world chatting(const sources& of, const std::vector<std::string>& kinds);

// A question and its answer, in the tokens of a world's vocabulary.
struct question {
  std::string task;
  std::vector<token_id> text;  // answer included
  std::size_t answer;          // its tokens
};
std::vector<question> questions(const sources& of, const std::string& target);
// What the rules write after the beginnings of windows, in their three executions: calls, tokens
// that the models read, and how near the text is to the true one and to the target's own choice.
void texts_of(lab&, const pair&, table&);
void answers(lab&, const pair&, const std::vector<question>&, table&);

}  // namespace experiments::real
