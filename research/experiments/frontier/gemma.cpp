// SPDX-License-Identifier: Apache-2.0
// A second target: Gemma 3 270M, which libllama runs, and drafts that pairs.py makes of it. It is a
// base model without a chat template, so the prompts are plain text. It takes a third of the texts
// that SmolLM2 has, for a step takes six times as long. The environment is that of
// reading.hpp; SPECAGG_GEMMA is the model file.
#include <cmath>
#include <filesystem>

#include "../../../tools/cli/backends.hpp"
#include "../../../tools/cli/files.hpp"
#include "../parts.hpp"
#include "reading.hpp"

namespace experiments::frontier {
namespace {

struct llama_cpp {
  std::unique_ptr<cli::backend> on;
  std::unique_ptr<cli::session> p;
  std::unique_ptr<const cli::tokenizer> tokens;
  explicit llama_cpp(const laboratory& l)
      : on(cli::make_backend("llama.cpp", l.how.threads ? l.how.threads : 2, {})),
        p(on->open(variable("SPECAGG_GEMMA"))),
        tokens(cli::open_tokenizer(*on, variable("SPECAGG_GEMMA"))) {}
  std::unique_ptr<cli::session> draft(const std::string& name) const {
    return on->open(fmt::format("{}/{}.gguf", variable("SPECAGG_PAIRS"), name));
  }
  written beginning(const std::string& set, std::size_t number, const std::string& asked) const {
    written t{set, number, 0, tokens->beginning()};
    const auto some = tokens->encode_inside(asked);
    t.tokens.insert(t.tokens.end(), some.begin(), some.end());
    t.prompt = t.tokens.size();
    return t;
  }
};

const std::vector<written>& texts_of(laboratory& l, llama_cpp& models, double temperature) {
  auto& all = l.texts[temperature];
  if (!all.empty()) return all;
  const std::uint64_t seed = 10000 * l.how.seed + std::uint64_t(1000 * temperature);
  const auto end = models.tokens->end_tokens();
  for (const char* kind : {"story", "code", "rewrite"})
    for (std::size_t i = 1; i <= (l.how.quick ? 1 : 4); ++i)
      all.push_back(
          models.beginning(kind, i,
                           cli::read_text(fmt::format("{}/../research/prompts/{}-{:02}.txt",
                                                      SPECAGG_MODELS, kind, i))));
  std::size_t n = 0;
  for (const question& q : questions_of(l.how.quick ? 1 : 10))
    all.push_back(models.beginning("question", n++, q.asked));
  for (std::size_t i = 0; i < all.size(); ++i) {
    go_on(*models.p, all[i],
          l.how.quick                ? 8
          : all[i].set == "question" ? 24
                                     : 48,
          temperature, seed + i, end.empty() ? no_token : end[0]);
    l.progress(0.3 * double(i + 1) / double(all.size()));
  }
  return all;
}

void pairs(laboratory& l, table& out) {
  llama_cpp models(l);
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(variable("SPECAGG_PAIRS")))
    if (file.path().extension() == ".gguf") names.push_back(file.path().stem().string());
  std::sort(names.begin(), names.end());
  const std::size_t V = models.p->vocab_size(), every = l.how.quick ? 1 : 2;
  const auto& texts = texts_of(l, models, 0.7);
  double done = 0;
  for (const std::string& name : names) {
    const auto q = models.draft(name);
    for (std::size_t k = 0; k < texts.size(); k += every) {
      const auto p_rows = rows_of(*models.p, texts[k]), q_rows = rows_of(*q, texts[k]);
      for (const double share : {1.0, top_p}) {
        double sum = 0;
        for (std::size_t at = 0; at < p_rows.size(); at += V) {
          const sampling by{.temperature = 0.7, .top_p = share};
          sum += 1 - total_variation(
                         normalise(processed_row<float>(std::span(q_rows).subspan(at, V), by)),
                         normalise(processed_row<float>(std::span(p_rows).subspan(at, V), by)));
        }
        out.add(name, 0.7, share, texts[k].set, texts[k].number, sum / double(p_rows.size() / V));
      }
      l.progress(0.3 + 0.7 * (done += double(every) / double(names.size() * texts.size())));
    }
  }
}

void policies(laboratory& l, table& out) {
  llama_cpp models(l);
  const auto q = models.draft(variable("SPECAGG_GEMMA_DRAFT"));
  const sampling by{.temperature = 0.7, .top_p = top_p};
  data d;
  const auto& texts = texts_of(l, models, 0.7);
  for (const written& t : texts) {
    d.texts.push_back(read(*q, *models.p, t, by, 3, 1000 * l.how.seed + d.texts.size()));
    l.progress(0.3 + 0.2 * double(d.texts.size()) / double(texts.size()));
  }
  for (const question& asked : questions_of(l.how.quick ? 4 : 30)) {
    written t = models.beginning(asked.kind, d.questions.size(), asked.asked);
    const auto answer = models.tokens->encode_inside(asked.answer);
    t.tokens.insert(t.tokens.end(), answer.begin(), answer.end());
    d.questions.push_back(read(*q, *models.p, t, by, 0, 0));
    d.questions.back().answer = true;
  }
  all_policies(l, d, out);
}

const std::vector<part<laboratory>> parts{
    {"frontier-gemma-pairs", false, 200, 20, "draft,temperature,top_p,set,number,acceptance",
     pairs},
    {"frontier-gemma-0.7", false, 300, 20,
     "rule,policy,goal,set,number,acceptance,tv,kl,outside,likeliest,right,accepted", policies}};

}  // namespace
}  // namespace experiments::frontier

int main(int argc, char** argv) {
  return experiments::program(
      argc, argv, "specagg-experiments-frontier-gemma",
      "What each policy costs at equal acceptance, of Gemma 3: a CSV file for each part",
      experiments::frontier::parts, {});
}
