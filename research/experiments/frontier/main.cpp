// SPDX-License-Identifier: Apache-2.0
// What a lossy policy costs where engines are: the target's own texts, a temperature and top-p, and
// drafts that accept 0.6 to 0.85. A policy's parameter is solved for more acceptance than lossless;
// then the distance of pi from p, right answers, and the accepted tokens of a round of four. All
// from whole rows; only texts and the drafts of rounds are drawn. scripts/frontier sets the
// environment: SPECAGG_SMOLLM2 is a model file, SPECAGG_PAIRS the folder that pairs.py writes,
// SPECAGG_TEXTS that of real/texts.py.
#include "reading.hpp"

#include "../parts.hpp"

namespace experiments::frontier {
namespace {

using namespace specagg;

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
  const std::size_t most = l.how.quick ? 1 : 12;
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
// Whether another run has the same texts.
void texts(laboratory& l, table& out) {
  for (const double temperature : {0.0, 0.7, 1.0})
    for (const written& t : texts_at(l, temperature)) {
      std::string tokens;
      for (const token_id y : t.tokens) tokens += fmt::format("{} ", y);
      out.add(temperature, t.set, t.number,
              fmt::format("{:016x}", experiments::detail::hash(0xcbf29ce484222325, tokens)));
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
  for (const auto& file : files)
    drafts.emplace_back(draft_named(file.stem().string()), l.pool, 1024);
  const std::size_t V = p.vocab_size();
  double done = 0;
  for (const double temperature : {0.7, 1.0}) {
    const auto& texts = texts_at(l, temperature);
    for (std::size_t i = 0; i < texts.size(); i += l.how.quick ? 2 : 1) {
      const written& t = texts[i];
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
      l.progress(0.2 + 0.8 * (done += l.how.quick ? 2 : 1) / double(2 * texts.size()));
    }
  }
}
// Every policy for a draft at a temperature.
void policies(laboratory& l, const char* draft, double temperature, table& out) {
  cpu::llama p(target(), l.pool, 1024), q(draft_named(draft), l.pool, 1024);
  const cpu::tokenizer tokenizer(p.weights().file);
  const sampling by{.temperature = temperature, .top_p = top_p};
  data d;
  const auto& texts = texts_at(l, temperature);
  for (const written& t : texts) {
    d.texts.push_back(read(q, p, t, by, 3, 1000 * l.how.seed + t.place));
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
constexpr const char* greedy_header =
    "rule,drafted,set,number,calls,tokens,looked_at,kept,others,same";
constexpr const char* speed_header =
    "rule,policy,set,number,repetition,calls,tokens,ms,q_ms,p_ms,clock_ms";
constexpr const char* several_header = "shape,proposed,set,number,nodes,recursive,traversal";
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
     [](laboratory& l, table& out) { policies(l, second, 1, out); }},
    {"frontier-greedy-first", false, 200, 10, greedy_header,
     [](laboratory& l, table& out) { greedy(l, first, out); }},
    {"frontier-greedy-second", false, 200, 10, greedy_header,
     [](laboratory& l, table& out) { greedy(l, second, out); }},
    {"frontier-several-first-0.7", false, 150, 10, several_header,
     [](laboratory& l, table& out) { several(l, first, 0.7, out); }},
    {"frontier-several-first-1", false, 150, 10, several_header,
     [](laboratory& l, table& out) { several(l, first, 1, out); }},
    {"frontier-several-second-0.7", false, 150, 10, several_header,
     [](laboratory& l, table& out) { several(l, second, 0.7, out); }},
    {"frontier-several-second-1", false, 150, 10, several_header,
     [](laboratory& l, table& out) { several(l, second, 1, out); }},
    {"frontier-texts", false, 60, 5, "temperature,set,number,hash", texts},
    {"frontier-speed", true, 300, 10, speed_header,
     [](laboratory& l, table& out) { speed(l, first, 0.7, out); }}};

}  // namespace
}  // namespace experiments::frontier

int main(int argc, char** argv) {
  return experiments::program(
      argc, argv, "specagg-experiments-frontier",
      "What each policy costs at equal acceptance: a CSV file for each part",
      experiments::frontier::parts, {});
}
