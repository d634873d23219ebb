// SPDX-License-Identifier: Apache-2.0
// Rows on which predictions of acceptance are compared (estimators.py): texts are decoded with
// drafts of gamma tokens, and each drafted token whose verdict was seen is a line
//   {"step": 7, "depth": 0, "log_odds": 1.2, "forecast": 0.71, "acceptance": 0.69, "accepted": 1}
// step: of all texts. log_odds: of the row's largest probability, at the temperature. forecast:
// what plan::draft_forecast said before the round. acceptance: sum min(q, p) of the rows.
//
// usage: specagg-estimators TEMPERATURE GAMMA ROUNDS [SMOLLM2.gguf]
//        of the bundled models; or of SmolLM2 (scripts/get-model) and its head, in models/
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/error.hpp>

using namespace specagg;

namespace {

constexpr std::size_t longest = 160;  // tokens of a text, after its prompt

struct asked {
  double temperature;
  std::size_t gamma, rounds;
};

// A forecast that remembers what it said of the rows of the round.
struct remembering : plan::draft_forecast {
  std::array<double, most> said = {};
  bool keep(std::size_t k, double row_confidence) {
    if (kept < most) said[kept] = acceptance[k](row_confidence, kept);
    return plan::draft_forecast::keep(k, row_confidence);
  }
};

template <class Row>
double log_odds_of_largest(const Row& row) {
  double most = 0, all = 0;
  for (std::size_t v = 0; v < row.size(); ++v) {
    most = std::max(most, double(row[v]));
    all += double(row[v]);
  }
  return std::log(most / std::max(all - most, 1e-300));
}

// One text after another, until there were enough rounds. open(f): calls f(draft, target) with new
// contexts.
template <class Open>
void record(const asked& how, const std::vector<std::vector<token_id>>& prompts, Open&& open) {
  remembering forecast;
  std::size_t step = 0;
  for (std::size_t i = 0; step < how.rounds; ++i) {
    open([&](auto& draft, auto& target) {
      const std::vector<token_id>& prompt = prompts[i % prompts.size()];
      std::vector<token_id> memory(prompt);
      memory.resize(prompt.size() + longest);
      text t{memory, prompt.size()};
      random_streams random(i + 1);
      workspace_for<decltype(draft), decltype(target)> work(
          target.vocab_size(), {.gamma = how.gamma,
                                .sample = {.temperature = how.temperature},
                                .end_of_text = {},
                                .acceptances = true});
      const auto after_round = [&](const speculative_result& r, auto& w) {
        for (std::size_t j = 0; j < std::min(r.drafted, r.accepted + 1); ++j)
          std::printf(
              "{\"step\": %zu, \"depth\": %zu, \"log_odds\": %.9g, \"forecast\": %.9g, "
              "\"acceptance\": %.9g, \"accepted\": %d}\n",
              step, j, log_odds_of_largest(w.draft_rows[j]), forecast.said[j],
              w.acceptances[j].of_row, j < r.accepted ? 1 : 0);
        step += r.drafted > 0;
      };
      const status s =
          speculative_decode(draft, target, lossless(), random,
                             {.text = t, .most = longest, .work = work, .after_round = after_round},
                             token_verifier(), forecast);
      if (s != status::ok) throw error("decoding", "", name(s));
    });
  }
}

std::vector<std::vector<token_id>> prompts_of(const cpu::tokenizer& tokens) {
  std::ifstream file(SPECAGG_MODELS "/../research/prompts.txt");
  std::vector<std::vector<token_id>> all;
  for (std::string line; std::getline(file, line);) all.push_back(tokens.encode(line));
  if (all.empty()) throw error("research/prompts.txt", "", "has no lines");
  return all;
}

void run(const asked& how, const char* smollm2) {
  const auto pool = std::make_shared<thread_pool>(1);
  const auto weights_of = [](const std::string& file) {
    return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
  };
  if (!smollm2) {
    const auto small = weights_of(SPECAGG_MODELS "/draft.gguf"),
               large = weights_of(SPECAGG_MODELS "/target.gguf");
    return record(how, prompts_of(cpu::tokenizer(large->file)), [&](auto&& f) {
      cpu::llama q(small, pool, 512), p(large, pool, 512);
      f(q, p);
    });
  }
  const auto weights = weights_of(smollm2);
  const auto head_weights = std::make_shared<const cpu::head_weights>(
      cpu::gguf_file::open(SPECAGG_MODELS "/smollm2-head.gguf"));
  record(how, prompts_of(cpu::tokenizer(weights->file)), [&](auto&& f) {
    cpu::llama p(weights, pool, 512);
    cpu::draft_head head(head_weights, weights, pool, p.capacity());
    p.keep_hidden();
    head_source source(head, p);
    mapped_source q(source, head.weights().map);
    f(q, p);
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const asked how{argc > 3 ? std::atof(argv[1]) : -1,
                    std::size_t(argc > 3 ? std::atoi(argv[2]) : 0),
                    std::size_t(argc > 3 ? std::atoi(argv[3]) : 0)};
    if (!(how.temperature > 0) || how.gamma < 1 || how.gamma > 16 || how.rounds < 1)
      throw error("specagg-estimators TEMPERATURE GAMMA ROUNDS [SMOLLM2.gguf]", "",
                  "needs a temperature above 0, gamma 1 to 16 and some rounds");
    run(how, argc > 4 ? argv[4] : nullptr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specagg-estimators: %s\n", specagg::printable(e.what()).c_str());
    return 2;
  }
}
