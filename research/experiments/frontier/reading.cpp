// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

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
static token_id end_of(const cpu::llama& p) {
  return token_id(p.weights().file.integer("tokenizer.ggml.eos_token_id"));
}
std::vector<written> chats(cpu::llama& p, const cpu::tokenizer& of,
                           const std::vector<std::string>& kinds, std::size_t each,
                           std::size_t most, double temperature, std::uint64_t seed,
                           std::size_t every) {
  std::vector<written> all;
  std::size_t n = 0;
  for (const std::string& kind : kinds)
    for (std::size_t i = 1; i <= each; ++i, ++n) {
      if (n % every != 0) continue;
      written t{kind, i, 0,
                turn(p.weights(), of,
                     cli::read_text(fmt::format("{}/../research/prompts/{}-{:02}.txt",
                                                SPECAGG_MODELS, kind, i)))};
      t.prompt = t.tokens.size();
      t.place = n;
      go_on(p, t, most, temperature, seed + n, end_of(p));
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
  const std::size_t every = l.how.quick ? 6 : 1, each = 10;
  const std::vector<std::string> kinds{"story", "code", "rewrite"};
  all = chats(p, tokenizer, kinds, each, 48, temperature, seed, every);
  const auto questions = questions_of(30);
  for (std::size_t n = 0; n < questions.size(); n += every) {
    written t{"question", n, 0, tokenizer.encode_inside(questions[n].asked)};
    t.prompt = t.tokens.size();
    t.place = kinds.size() * each + n;
    go_on(p, t, 24, temperature, seed + 501 + n, end_of(p));
    all.push_back(std::move(t));
  }
  return all;
}

// ---- rows ---------------------------------------------------------------------------------------

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

}  // namespace experiments::frontier
