// SPDX-License-Identifier: Apache-2.0
// What a lossy policy costs where engines are: the target's own texts, a temperature and top-p, and
// drafts that accept 0.6 to 0.85. A policy's parameter is solved for more acceptance than lossless;
// then the distance of pi from p, right answers, and the accepted tokens of a round of four. All
// from whole rows; only texts and the drafts of rounds are drawn. scripts/frontier sets the
// environment: SPECAGG_SMOLLM2 is a model file, SPECAGG_PAIRS the folder that pairs.py writes,
// SPECAGG_TEXTS that of real/texts.py.
#include <array>
#include <cstdlib>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>

#include "../../../tools/cli/files.hpp"
#include "../parts.hpp"
#include "settings.hpp"

namespace experiments::frontier {
namespace {

using namespace specagg;

using weights_of_model = std::shared_ptr<const cpu::llama_weights>;
constexpr std::size_t gamma = 4;
constexpr double top_p = 0.95;

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
weights_of_model open(const std::string& path) {
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path));
}
weights_of_model target() { return open(variable("SPECAGG_SMOLLM2")); }

// ---- texts --------------------------------------------------------------------------------------

// A first turn as SmolLM2's chat template writes it.
std::vector<token_id> turn(const cpu::llama_weights& w, const cpu::tokenizer& of,
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
void go_on(cpu::llama& p, written& t, std::size_t most, double temperature, std::uint64_t seed) {
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
struct question {
  std::string kind, asked, answer;
};
// The questions of texts.py, every `every`-th.
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
// The prompts of research/prompts of some kinds, `each` of a kind, with what the target writes.
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
// The target's own texts at a temperature, drawn once.
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

// The logits before each token that follows the prompt.
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
std::vector<position> round_of(cpu::llama& q, cpu::llama& p, const written& t, std::size_t from,
                               const sampling& by, const random_streams& noise) {
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

// ---- parts --------------------------------------------------------------------------------------

double lossless_acceptance(std::span<const float> q, std::span<const float> p, const sampling& by) {
  return 1 - total_variation(normalise(processed_row<float>(q, by)),
                             normalise(processed_row<float>(p, by)));
}
// Which layers may be left out: always the one without which the draft accepts most, of the eight
// that were best in the last step. On the target's own answers to prompts that no other part has.
void layers(laboratory& l, table& out) {
  const auto all = target();
  cpu::llama p(all, l.pool, 1024);
  const auto texts = chats(p, cpu::tokenizer(all->file), {"chat"}, l.how.quick ? 1 : 6,
                           l.how.quick ? 8 : 32, 1, 77);
  const std::size_t V = p.vocab_size();
  std::vector<std::vector<float>> p_rows;
  for (const written& t : texts) p_rows.push_back(rows_of(p, t));
  const auto score = [&](const std::vector<std::size_t>& gone) {
    auto fewer = std::make_shared<cpu::llama_weights>(*all);
    auto& kept = fewer->layers;
    for (std::size_t i = kept.size(); i-- > 0;)
      if (std::find(gone.begin(), gone.end(), i) != gone.end())
        kept.erase(kept.begin() + std::ptrdiff_t(i));
    fewer->kv_memory = cpu::kv_cache::memory_for(kept.size(), fewer->kv_heads, fewer->head_dim);
    cpu::llama q(fewer, l.pool, 1024);
    double sum = 0, n = 0;
    for (std::size_t k = 0; k < texts.size(); ++k) {
      const auto rows = rows_of(q, texts[k]);
      for (std::size_t at = 0; at < rows.size(); at += V, ++n)
        sum += lossless_acceptance(std::span(rows).subspan(at, V),
                                   std::span(p_rows[k]).subspan(at, V), {});
    }
    return sum / n;
  };
  const std::size_t most = l.how.quick ? 4 : 12;
  std::vector<std::size_t> gone;
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < all->layers.size(); ++i) order.emplace_back(1, i);
  for (std::size_t step = 0; step < most; ++step) {
    const std::size_t tried = step == 0 ? order.size() : std::min<std::size_t>(8, order.size());
    for (std::size_t k = 0; k < tried; ++k) {
      auto with = gone;
      with.push_back(order[k].second);
      order[k].first = score(with);
      l.progress((double(step) + double(k) / double(tried)) / double(most));
    }
    std::sort(order.begin(), order.begin() + std::ptrdiff_t(tried), std::greater<>());
    gone.push_back(order[0].second);
    out.add(all->layers.size() - gone.size(), gone.back(), order[0].first);
    order.erase(order.begin());
  }
}
// Every draft's lossless acceptance, a line for each text and setting.
void pairs(laboratory& l, table& out) {
  cpu::llama p(target(), l.pool, 1024);
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(variable("SPECAGG_PAIRS")))
    if (file.path().extension() == ".gguf") files.push_back(file.path());
  std::sort(files.begin(), files.end());
  std::vector<cpu::llama> drafts;
  for (const auto& file : files) drafts.emplace_back(open(file.string()), l.pool, 1024);
  const std::size_t V = p.vocab_size();
  double done = 0;
  for (const double temperature : {0.7, 1.0}) {
    const auto& texts = texts_at(l, temperature);
    for (const written& t : texts) {
      const auto p_rows = rows_of(p, t);
      for (std::size_t d = 0; d < drafts.size(); ++d) {
        const auto q_rows = rows_of(drafts[d], t);
        for (const double share : {1.0, top_p}) {
          double sum = 0;
          for (std::size_t at = 0; at < p_rows.size(); at += V)
            sum += lossless_acceptance(std::span(q_rows).subspan(at, V),
                                       std::span(p_rows).subspan(at, V),
                                       {.temperature = temperature, .top_p = share});
          out.add(files[d].stem().string(), temperature, share, t.set, t.number,
                  sum / double(p_rows.size() / V));
        }
      }
      l.progress(0.2 + 0.8 * ++done / double(2 * texts.size()));
    }
  }
}
// Every policy for a draft at a temperature.
void policies(laboratory& l, const char* draft, double temperature, table& out) {
  cpu::llama p(target(), l.pool, 1024),
      q(open(fmt::format("{}/{}.gguf", variable("SPECAGG_PAIRS"), draft)), l.pool, 1024);
  const cpu::tokenizer tokenizer(p.weights().file);
  const sampling by{.temperature = temperature, .top_p = top_p};
  data d;
  const auto& texts = texts_at(l, temperature);
  for (const written& t : texts) {
    d.texts.push_back(read(q, p, t, by, 3, 1000 * l.how.seed + d.texts.size()));
    l.progress(0.4 * double(d.texts.size()) / double(texts.size()));
  }
  for (const question& asked : questions_of(l.how.quick ? 8 : 100)) {
    written t{asked.kind, d.questions.size(), 0, tokenizer.encode_inside(asked.asked)};
    t.prompt = t.tokens.size();
    const auto answer = tokenizer.encode_inside(asked.answer);
    t.tokens.insert(t.tokens.end(), answer.begin(), answer.end());
    d.questions.push_back(read(q, p, t, by, 0, 0));
    d.questions.back().answer = true;
  }
  all_policies(l, d, out);
}

constexpr const char* header =
    "rule,policy,goal,set,number,acceptance,tv,kl,outside,likeliest,right,accepted";
// The drafts that accept most nearly 0.75 with top-p, of each way to make one.
constexpr const char *first = "bits-4-3", *second = "layers-27";
const std::vector<part<laboratory>> parts{
    {"frontier-layers", false, 200, 10, "kept,layer,acceptance", layers},
    {"frontier-pairs", false, 300, 20, "draft,temperature,top_p,set,number,acceptance", pairs},
    {"frontier-first-0.7", false, 100, 8, header,
     [](laboratory& l, table& out) { policies(l, first, 0.7, out); }},
    {"frontier-first-1", false, 100, 8, header,
     [](laboratory& l, table& out) { policies(l, first, 1, out); }},
    {"frontier-second-0.7", false, 100, 8, header,
     [](laboratory& l, table& out) { policies(l, second, 0.7, out); }},
    {"frontier-second-1", false, 100, 8, header,
     [](laboratory& l, table& out) { policies(l, second, 1, out); }}};

}  // namespace
}  // namespace experiments::frontier

int main(int argc, char** argv) {
  return experiments::program(
      argc, argv, "specagg-experiments-frontier",
      "What each policy costs at equal acceptance: a CSV file for each part",
      experiments::frontier::parts, {});
}
