// SPDX-License-Identifier: Apache-2.0
// The papers' experiments with models that read. scripts/experiments sets the environment:
// SPECAGG_SMOLLM2 and SPECAGG_GEMMA are model files, SPECAGG_TEXTS is the folder that texts.py
// writes. Without SPECAGG_GEMMA the parts with Gemma are left out.
#include <optional>
#include <string_view>

#include "../parts.hpp"
#include "reading.hpp"

namespace experiments::real {
namespace {

// What the parts share. A text has many windows and few positions of each, because those of a
// window depend on each other.
struct laboratory {
  const settings how;
  const sources of = from_environment();
  std::function<void(double)> progress = [](double) {};
  explicit laboratory(const settings& s) : how(s) {}

  std::unique_ptr<lab> over(const std::string& target) const {
    const bool small = target == "smollm2";  // Gemma's rows are five times as long
    auto one = std::make_unique<lab>(how, reading(of, target, how.quick ? 4 : 16,
                                                  how.quick ? 2
                                                  : small   ? 20
                                                            : 6,
                                                  2));
    one->progress = progress;
    return one;
  }
};

constexpr const char* cascades_header =
    "pair,text,window,temperature,rule,parameter,policy,rejection,cross_entropy,argmax_accuracy,"
    "sampled_accuracy,tv_target,kl_target";
// (a), (b), (d) of docs/experiments.md
const pair head{"head", "smollm2"}, up{"smollm2", "gemma"}, down{"gemma", "smollm2"};

void sweep(laboratory& l, const pair& models, table& t) {
  const auto one = l.over(models.p);
  cascades(*one, models,
           {{1, {}},
            {0.5, {"ensemble", "opt", "token-v3"}},
            {0, {"ensemble", "chow", "diff", "opt", "token-v3"}}},
           t);
}
void ask(laboratory& l, const pair& models, table& t) {
  const auto one = l.over(models.p);
  std::vector<question> all = questions(l.of, models.p);
  if (l.how.quick) all.resize(8);
  answers(*one, models, all, t);
}

const std::vector<part<laboratory>> parts = {
    {"real-cascades-head", false, 300, 20, cascades_header,
     [](laboratory& l, table& t) { sweep(l, head, t); }},
    {"real-cascades-down", false, 300, 20, cascades_header,
     [](laboratory& l, table& t) { sweep(l, down, t); }},
    {"real-cascades-up", false, 400, 60, cascades_header,
     [](laboratory& l, table& t) { sweep(l, up, t); }},
    {"real-answers-down", false, 200, 20, cascades_header,
     [](laboratory& l, table& t) { ask(l, down, t); }},
    {"real-answers-up", false, 400, 60, cascades_header,
     [](laboratory& l, table& t) { ask(l, up, t); }},
};

}  // namespace
}  // namespace experiments::real

int main(int argc, char** argv) {
  using namespace experiments::real;
  const sources of = from_environment();
  std::vector<std::filesystem::path> inputs{of.smollm2, of.gemma,
                                            SPECAGG_MODELS "/smollm2-head.gguf"};
  for (const char* text : {"manual.txt", "handbook.txt", "jargon.txt", "questions.tsv"})
    inputs.push_back(of.texts + "/" + text);
  auto all = parts;
  if (of.gemma.empty())
    std::erase_if(all, [](const auto& p) {
      const std::string_view name = p.name;
      return name.ends_with("-up") || name.ends_with("-down");
    });
  return experiments::program(
      argc, argv, "specagg-experiments-real",
      "The papers' experiments with models that read: a CSV file for each part", all, inputs);
}
