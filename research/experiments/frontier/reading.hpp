// SPDX-License-Identifier: Apache-2.0
// The target's own texts and both models' rows at their positions. The environment names files:
// SPECAGG_SMOLLM2 is a model file, SPECAGG_PAIRS the folder that pairs.py writes, SPECAGG_TEXTS
// that of real/texts.py.
#pragma once
#include <array>
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
// The prompts of research/prompts of some kinds, `each` of a kind, and of those every n-th, with
// what the target writes. Temperature 0: its most likely tokens.
std::vector<written> chats(cpu::llama& p, const cpu::tokenizer& of,
                           const std::vector<std::string>& kinds, std::size_t each,
                           std::size_t most, double temperature, std::uint64_t seed,
                           std::size_t every = 1);
// The target's own texts at a temperature, drawn once. A quick run has every sixth of a full one's.
const std::vector<written>& texts_at(laboratory& l, double temperature);

// The logits before each token that follows the prompt.
template <LogitSource M>
std::vector<float> rows_of(M& m, const written& t);
position position_of(std::span<const float> q_logits, std::span<const float> p_logits,
                     const sampling& by, token_id next);
// The positions of a text, and rounds that begin at some of them.
template <LogitSource M>
observed read(M& q, M& p, const written& t, const sampling& by, std::size_t rounds,
              std::uint64_t seed);
// What the target writes after a prompt: until it ends the text, or `most` tokens.
template <LogitSource M>
void go_on(M& p, written& t, std::size_t most, double temperature, std::uint64_t seed,
           token_id end);

// greedy.cpp, several.cpp, speed.cpp: parts for a draft.
void greedy(laboratory&, const char* draft, table&);
void several(laboratory&, const char* draft, double temperature, table&);
void speed(laboratory&, const char* draft, double temperature, table&);

// ---- definitions --------------------------------------------------------------------------------

template <LogitSource M>
void go_on(M& p, written& t, std::size_t most, double temperature, std::uint64_t seed,
           token_id end) {
  const random_streams noise(seed);
  std::vector<float> row(p.vocab_size());
  std::vector<double> scratch(verify_scratch(row.size()));
  must(p.rollback(0), "target");
  std::size_t read = 0;
  for (std::size_t n = 0; n < most; ++n) {
    must(p.extend(std::span(t.tokens).subspan(read), row), "target");
    read = t.tokens.size();
    const auto law = probabilities(row, {.temperature = temperature, .top_p = top_p});
    t.tokens.push_back(draw_draft(dense_row<float>(law), std::uint32_t(read), 0, noise, scratch));
    if (t.tokens.back() == end) break;
  }
}
template <LogitSource M>
std::vector<float> rows_of(M& m, const written& t) {
  const std::size_t n = t.tokens.size() - t.prompt;
  std::vector<float> rows(n * m.vocab_size());
  must(m.rollback(0), "model");
  if (t.prompt > 1) must(m.extend(std::span(t.tokens).first(t.prompt - 1), {}), "model");
  must(m.extend(std::span(t.tokens).subspan(t.prompt - 1, n), rows), "model");
  return rows;
}
// A round that drafts after the first `from` tokens of a text, which both models have read.
template <LogitSource M>
std::vector<position> round_of(M& q, M& p, const written& t, std::size_t from, const sampling& by,
                               const random_streams& noise) {
  const std::size_t V = p.vocab_size();
  std::vector<float> q_rows(gamma * V), p_rows(gamma * V);
  std::vector<double> scratch(verify_scratch(V));
  std::array<token_id, gamma + 1> tokens{t.tokens[from - 1]};
  must(q.rollback(from - 1), "draft");
  must(p.rollback(from - 1), "target");
  for (std::size_t j = 0; j < gamma; ++j) {
    const auto row = std::span(q_rows).subspan(j * V, V);
    must(q.extend(std::span(&tokens[j], 1), row), "draft");
    const auto law = probabilities(row, by);
    tokens[j + 1] = draw_draft(dense_row<float>(law), std::uint32_t(from), j, noise, scratch);
  }
  must(p.extend(std::span(tokens).first(gamma), p_rows), "target");
  std::vector<position> round;
  for (std::size_t j = 0; j < gamma; ++j)
    round.push_back(position_of(std::span(q_rows).subspan(j * V, V),
                                std::span(p_rows).subspan(j * V, V), by, tokens[j + 1]));
  return round;
}
template <LogitSource M>
observed read(M& q, M& p, const written& t, const sampling& by, std::size_t rounds,
              std::uint64_t seed) {
  const std::size_t V = p.vocab_size(), n = t.tokens.size() - t.prompt;
  const auto q_rows = rows_of(q, t), p_rows = rows_of(p, t);
  observed all{t.set, t.number, {}, {}};
  for (std::size_t i = 0; i < n; ++i)
    all.positions.push_back(position_of(std::span(q_rows).subspan(i * V, V),
                                        std::span(p_rows).subspan(i * V, V), by,
                                        t.tokens[t.prompt + i]));
  const random_streams noise(seed);
  for (std::size_t r = rounds; r-- > 0;)  // from the end on: what was read is cut
    all.rounds.push_back(round_of(q, p, t, t.prompt + r * n / rounds, by, noise));
  return all;
}

}  // namespace experiments::frontier
