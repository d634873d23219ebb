// SPDX-License-Identifier: Apache-2.0
// The target's own texts and both models' rows at their positions. The environment names files:
// SPECAGG_SMOLLM2 is a model file, SPECAGG_PAIRS the folder that pairs.py writes, SPECAGG_TEXTS
// that of real/texts.py.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>

#include "settings.hpp"

namespace experiments::frontier {

using namespace specagg;

using weights_of_model = std::shared_ptr<const cpu::llama_weights>;
constexpr std::size_t gamma = 4;
constexpr double top_p = 0.95;

std::vector<float> probabilities(std::span<const float> logits, const sampling& by);
// Throws what went wrong.
void must(status s, const char* what);
std::string variable(const char* name);
weights_of_model target();
// One of SPECAGG_PAIRS.
weights_of_model draft_named(const std::string& name);

struct question {
  std::string kind, asked, answer;
};
// The questions of texts.py, every n-th, so that there are about `most`.
std::vector<question> questions_of(std::size_t most);
// The prompts of research/prompts of some kinds, `each` of a kind, with what the target writes.
// Temperature 0: its most likely tokens.
std::vector<written> chats(cpu::llama& p, const cpu::tokenizer& of,
                           const std::vector<std::string>& kinds, std::size_t each,
                           std::size_t most, double temperature, std::uint64_t seed);
// The target's own texts at a temperature, drawn once.
const std::vector<written>& texts_at(laboratory& l, double temperature);

// The logits before each token that follows the prompt.
std::vector<float> rows_of(cpu::llama& m, const written& t);
position position_of(std::span<const float> q_logits, std::span<const float> p_logits,
                     const sampling& by, token_id next);
// The positions of a text, and rounds that begin at some of them.
observed read(cpu::llama& q, cpu::llama& p, const written& t, const sampling& by,
              std::size_t rounds, std::uint64_t seed);

// greedy.cpp, several.cpp, speed.cpp: parts for a draft.
void greedy(laboratory&, const char* draft, table&);
void several(laboratory&, const char* draft, double temperature, table&);
void speed(laboratory&, const char* draft, double temperature, table&);

}  // namespace experiments::frontier
