// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <array>
#include <cstdlib>
#include <fstream>

#include "../../../tools/cli/files.hpp"

namespace experiments::frontier {

std::vector<float> probabilities(std::span<const float> logits, const sampling& by) {
  const auto row = normalise(processed_row<float>(logits, by));
  if (row.why() != status::ok) throw error("row", "", name(row.why()));
  std::vector<float> x(logits.size());
  for (std::size_t v = 0; v < x.size(); ++v) x[v] = row[v];
  return x;
}
void must(status s, const char* what) {
  if (s != status::ok) throw error(what, "", name(s));
}
std::string variable(const char* name) {
  const char* const found = std::getenv(name);
  if (!found) throw error(name, "", "is not set");
  return found;
}
static weights_of_model open(const std::string& path) {
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path));
}
weights_of_model target() { return open(variable("SPECAGG_SMOLLM2")); }
weights_of_model draft_named(const std::string& name) {
  return open(fmt::format("{}/{}.gguf", variable("SPECAGG_PAIRS"), name));
}

// ---- texts --------------------------------------------------------------------------------------

// A first turn as SmolLM2's chat template writes it.
static std::vector<token_id> turn(const cpu::llama_weights& w, const cpu::tokenizer& of,
                                  const std::string& asked) {
  const auto begin = token_id(w.file.integer("tokenizer.ggml.bos_token_id")),
             end = token_id(w.file.integer("tokenizer.ggml.eos_token_id"));
  std::vector<token_id> all;
  const auto add = [&](const std::string& text) {
    const auto some = of.encode_inside(text);
    all.insert(all.end(), some.begin(), some.end());
  };
  all.push_back(begin);
  add("system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face");
  all.push_back(end);
  add("\n");
  all.push_back(begin);
  add("user\n" + asked);
  all.push_back(end);
  add("\n");
  all.push_back(begin);
  add("assistant\n");
  return all;
}
// What the target writes after a prompt: until it ends the text, or `most` tokens.
static void go_on(cpu::llama& p, written& t, std::size_t most, double temperature,
                  std::uint64_t seed) {
  const auto end = token_id(p.weights().file.integer("tokenizer.ggml.eos_token_id"));
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
std::vector<question> questions_of(std::size_t most) {
  const std::string path = variable("SPECAGG_TEXTS") + "/questions.tsv";
  std::vector<question> all, some;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (second == std::string::npos) throw error(path, line, "has no answer");
    std::string text = line.substr(first + 1, second - first - 1);
    for (std::size_t at; (at = text.find("\\n")) != std::string::npos;) text.replace(at, 2, "\n");
    all.push_back({line.substr(0, first), text, line.substr(second + 1)});
  }
  if (all.empty()) throw error(path, "", "has no questions");
  const std::size_t every = std::max<std::size_t>(1, all.size() / most);
  for (std::size_t i = 0; i < all.size(); i += every) some.push_back(all[i]);
  return some;
}
std::vector<written> chats(cpu::llama& p, const cpu::tokenizer& of,
                           const std::vector<std::string>& kinds, std::size_t each,
                           std::size_t most, double temperature, std::uint64_t seed) {
  std::vector<written> all;
  for (const std::string& kind : kinds)
    for (std::size_t i = 1; i <= each; ++i) {
      written t{kind, i, 0,
                turn(p.weights(), of,
                     cli::read_text(fmt::format("{}/../research/prompts/{}-{:02}.txt",
                                                SPECAGG_MODELS, kind, i)))};
      t.prompt = t.tokens.size();
      go_on(p, t, most, temperature, seed + all.size());
      all.push_back(std::move(t));
    }
  return all;
}
const std::vector<written>& texts_at(laboratory& l, double temperature) {
  auto& all = l.texts[temperature];
  if (!all.empty()) return all;
  cpu::llama p(target(), l.pool, 1024);
  const cpu::tokenizer tokenizer(p.weights().file);
  const std::uint64_t seed = 10000 * l.how.seed + std::uint64_t(1000 * temperature);
  all = chats(p, tokenizer, {"story", "code", "rewrite"}, l.how.quick ? 2 : 10,
              l.how.quick ? 12 : 48, temperature, seed);
  std::size_t n = 0;
  for (const question& q : questions_of(l.how.quick ? 2 : 30)) {
    written t{"question", n++, 0, tokenizer.encode_inside(q.asked)};
    t.prompt = t.tokens.size();
    go_on(p, t, l.how.quick ? 8 : 24, temperature, seed + 500 + n);
    all.push_back(std::move(t));
  }
  return all;
}

// ---- rows ---------------------------------------------------------------------------------------

std::vector<float> rows_of(cpu::llama& m, const written& t) {
  const std::size_t n = t.tokens.size() - t.prompt;
  std::vector<float> rows(n * m.vocab_size());
  must(m.rollback(0), "model");
  must(m.extend(std::span(t.tokens).first(t.prompt - 1), {}), "model");
  must(m.extend(std::span(t.tokens).subspan(t.prompt - 1, n), rows), "model");
  return rows;
}
position position_of(std::span<const float> q_logits, std::span<const float> p_logits,
                     const sampling& by, token_id next) {
  const auto q = probabilities(q_logits, by), p = probabilities(p_logits, by),
             likely = probabilities(p_logits, {.temperature = by.temperature});
  position at;
  for (std::size_t v = 0; v < q.size(); ++v) {
    if (q[v] == 0 && p[v] == 0) continue;
    if (v == std::size_t(next)) at.next = at.q.size();
    at.q.push_back(q[v]);
    at.p.push_back(p[v]);
    at.likely.push_back(likely[v]);
  }
  return at;
}
// A round that drafts after the first `from` tokens of a text, which both models have read.
static std::vector<position> round_of(cpu::llama& q, cpu::llama& p, const written& t,
                                      std::size_t from, const sampling& by,
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
observed read(cpu::llama& q, cpu::llama& p, const written& t, const sampling& by,
              std::size_t rounds, std::uint64_t seed) {
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
