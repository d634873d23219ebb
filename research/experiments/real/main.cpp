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
                                                            : 4,
                                                  2));
    one->progress = progress;
    return one;
  }
  std::unique_ptr<lab> clock(const std::string& target) const {
    world w = reading(of, target, how.quick ? 4 : 16, 1, 1);
    w.parts = target == "smollm2" ? "real-" : "real-up-";
    auto one = std::make_unique<lab>(how, w);
    one->progress = progress;
    return one;
  }
  std::unique_ptr<lab> chat(const std::vector<std::string>& kinds) const {
    auto one = std::make_unique<lab>(how, chatting(of, kinds));
    one->progress = progress;
    return one;
  }
};

constexpr const char* cascades_header =
    "pair,text,window,temperature,rule,parameter,policy,rejection,cross_entropy,argmax_accuracy,"
    "sampled_accuracy,tv_target,kl_target";
// (a), (b), (d) of docs/experiments.md
const pair head{"head", "smollm2"}, up{"smollm2", "gemma"}, down{"gemma", "smollm2"};

void held_out(laboratory& l, const pair& models, table& t) {
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
  const std::size_t every = std::max<std::size_t>(all.size() / (l.how.quick ? 8 : 100), 1);
  for (std::size_t i = 0; i * every < all.size(); ++i) all[i] = all[i * every];
  all.resize((all.size() + every - 1) / every);
  answers(*one, models, all, t);
}

// Two and three contexts of one model are experts of equal cost; its head is the amateur.
cos_plan cos(bool quick, std::size_t prompts, std::size_t tokens, std::size_t repeats = 1) {
  const cos_models models{
      {"smollm2/plain", "smollm2/vivid", "smollm2/teacher"}, "amateur", "smollm2", false};
  if (quick) return {models, {0.5}, {0.1}, true, true, prompts, tokens, repeats};
  return {models, {0.1, 0.3, 0.5, 0.7, 0.9}, {0.1, 0.3, 0.5}, true, false, prompts, tokens,
          repeats};
}
// The tables' first setting, a task at a time.
void tasks(laboratory& l, table& t) {
  const std::vector<std::string> kinds{"code", "rewrite", "story", "chat"};
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const auto one = l.chat({kinds[k]});
    one->progress = [&](double share) { l.progress((double(k) + share) / double(kinds.size())); };
    cos_plan plan = cos(true, l.how.quick ? 1 : 5, l.how.quick ? 16 : 64);
    plan.mus = {};
    plan.trade = false;
    plan.models.experts.pop_back();
    t.begin_with(kinds[k]);
    cos_calls(*one, plan, t);
  }
}

constexpr const char* tasks_header =
    "task,models,policy,value,temperature,method,gamma,tokens,a_q,a_p,calls_q,calls_p,calls,"
    "predicted_q,predicted_p,predicted";
constexpr const char* calls_header =
    "models,policy,value,temperature,method,gamma,tokens,a_q,a_p,calls_q,calls_p,calls,predicted_q,"
    "predicted_p,predicted";

constexpr const char* latency_header =
    "pair,execution,gamma,rule,parameter,policy,seconds_per_token,target_seconds_per_token,"
    "relative_latency,speedup,predicted,error,predicted_free_scoring,acceptance,"
    "target_calls_per_token,speedups";
latency_plan by_the_clock(const pair& models, bool quick) {
  const bool small = models.p == "smollm2";  // a step of Gemma takes six times as long
  std::vector<sweep> rules{{"lossless", {0}}, {"lenient", {0.5, 0.8}}, {"chow", {0.3, 0.5, 0.7}},
                           {"opt", {0, 0.2}}, {"diff", {0.2}},         {"token-v3", {0.8, 0.95}}};
  if (!small)
    rules = {
        {"lossless", {0}}, {"lenient", {0.5}}, {"chow", {0.5}}, {"opt", {0}}, {"token-v3", {0.9}}};
  return {models,
          rules,
          small ? std::vector<std::size_t>{1, 3} : std::vector<std::size_t>{3},
          1,
          std::size_t(!quick  ? 32
                      : small ? 16
                              : 8),
          std::size_t(quick ? 3 : 15)};
}

const std::vector<part<laboratory>> parts = {
    {"real-cascades-head", false, 300, 20, cascades_header,
     [](laboratory& l, table& t) { held_out(l, head, t); }},
    {"real-cascades-down", false, 300, 20, cascades_header,
     [](laboratory& l, table& t) { held_out(l, down, t); }},
    {"real-cascades-up", false, 400, 60, cascades_header,
     [](laboratory& l, table& t) { held_out(l, up, t); }},
    {"real-answers-down", false, 200, 20, cascades_header,
     [](laboratory& l, table& t) { ask(l, down, t); }},
    {"real-answers-up", false, 400, 60, cascades_header,
     [](laboratory& l, table& t) { ask(l, up, t); }},
    {"real-cos-calls", false, 300, 20, calls_header,
     [](laboratory& l, table& t) {
       const auto one = l.chat({"chat", "story"});
       cos_calls(*one, l.how.quick ? cos(true, 1, 16) : cos(false, 1, 96), t);
     }},
    {"real-cos-tasks", false, 300, 20, tasks_header, tasks},
    {"real-times", true, 20, 5, "model,tokens,seconds,quartile_1,quartile_3,v",
     [](laboratory& l, table& t) {
       const auto one = l.chat({"chat"});
       times(*one,
             {"smollm2", "head", "amateur", "smollm2/plain", "smollm2/vivid", "smollm2/teacher"},
             t);
     }},
    {"real-texts", false, 300, 20,
     "pair,execution,temperature,rule,parameter,policy,tokens,target_calls,draft_calls,"
     "target_tokens,draft_tokens,rouge_l,rouge_l_se,agreement,agreement_se",
     [](laboratory& l, table& t) {
       const auto one = l.clock("smollm2");
       texts_of(*one, head, t);
     }},
    {"real-latency", true, 500, 40, latency_header,
     [](laboratory& l, table& t) {
       const auto one = l.clock("smollm2");
       latency(*one, by_the_clock(head, l.how.quick), t);
     },
     "real-times real-cascades-head"},
    {"real-up-times", true, 90, 12, "model,tokens,seconds,quartile_1,quartile_3,v",
     [](laboratory& l, table& t) {
       const auto one = l.clock("gemma");
       times(*one, {"gemma", "smollm2"}, t);
     }},
    {"real-up-latency", true, 700, 45, latency_header,
     [](laboratory& l, table& t) {
       const auto one = l.clock("gemma");
       latency(*one, by_the_clock(up, l.how.quick), t);
     },
     "real-up-times real-cascades-up"},
    {"real-cos-speed", true, 700, 40,
     "models,policy,value,temperature,method,gamma,tokens_per_second,speedup,predicted,error,"
     "predicted_free_scoring,speedups",
     [](laboratory& l, table& t) {
       const auto one = l.chat({"chat", "story"});
       cos_speed(*one, l.how.quick ? cos(true, 1, 16, 3) : cos(false, 1, 32, 15), t);
     },
     "real-times real-cos-calls"},
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
      return name.ends_with("-up") || name.ends_with("-down") || name.starts_with("real-up-");
    });
  return experiments::program(
      argc, argv, "specagg-experiments-real",
      "The papers' experiments with models that read: a CSV file for each part", all, inputs);
}
