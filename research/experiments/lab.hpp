// SPDX-License-Identifier: Apache-2.0
// What experiments need: models, held-out texts, their rows. The bundled ones, or others.
#pragma once
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/thread_pool.hpp>
#include <specagg/decoders.hpp>

#include "../../tools/cli/backends.hpp"
#include "policies.hpp"
#include "table.hpp"

namespace experiments {

using namespace specagg;

struct pair {  // q drafts, p is the target
  std::string q, p;
  std::string name() const { return q + "-" + p; }
};
inline const std::array<pair, 3> pairs{{{"draft", "target"}, {"bard", "bible"}, {"bible", "bard"}}};
inline const std::array<std::string, 2> texts{"shakespeare", "kjv"};

// Models that are used together, on the thread that opened them.
using readers = std::vector<std::unique_ptr<cli::session>>;
// What is read, and by which models. All of them have one vocabulary, or rows over one.
struct world {
  std::vector<std::string> texts;
  // A text is read in windows spread evenly over it: `context` tokens, and the token after each of
  // the last `scored`. Even numbers of windows: parameters are chosen on one half of them.
  std::size_t context, windows, scored;
  std::function<std::vector<token_id>(const std::string& text)> tokens;  // of a held-out text
  // a new session of each of these models; on any thread
  std::function<readers(const std::vector<std::string>& models)> open;
  std::string parts = "";  // what the names of its parts begin with
  // what decoders continue, so many of each text, where it is not the beginnings of windows
  std::function<std::vector<std::vector<token_id>>(std::size_t)> prompts = nullptr;
};
// Weights by the model's name, read once. Thread-safe.
class weight_files {
 public:
  explicit weight_files(std::function<std::string(const std::string& model)> path)
      : path_(std::move(path)) {}
  std::shared_ptr<const cpu::llama_weights> of(const std::string& model) {
    const std::lock_guard lock(mutex_);
    auto& w = weights_[model];
    if (!w) w = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path_(model)));
    return w;
  }

 private:
  std::function<std::string(const std::string&)> path_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const cpu::llama_weights>> weights_;
};

world bundled(const settings&);

class lab {
 public:
  explicit lab(const settings& s) : lab(s, bundled(s)) {}
  lab(const settings& s, world of);
  const settings how;
  // the share of the present part that is done
  std::function<void(double)> progress = [](double) {};
  // f(i) for every i < count, on all threads; throws what the first of them threw.
  template <class F>
  void each(std::size_t count, F&& f) {
    std::vector<std::exception_ptr> failed(count);
    pool_.for_ranges(count, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) try {
          f(i);
        } catch (...) {
          failed[i] = std::current_exception();
        }
    });
    for (const auto& e : failed)
      if (e) std::rethrow_exception(e);
  }

  readers open(const std::vector<std::string>& models) const { return world_.open(models); }
  // The same ones for a prompt in every call. On one thread.
  readers& kept(const std::vector<std::string>& models, const std::vector<token_id>& prompt) {
    readers& of = kept_[{models, prompt}];
    if (of.empty()) of = open(models);
    return of;
  }
  const std::vector<std::string>& texts() const { return world_.texts; }
  std::size_t windows() const { return world_.windows; }
  std::size_t scored() const { return world_.scored; }
  std::size_t positions() const { return windows() * scored(); }  // of one text
  std::size_t all_positions() const { return texts().size() * positions(); }
  // windows of context + 1 tokens
  const std::vector<std::vector<token_id>>& held_out(const std::string& text);
  token_id truth(const std::string& text, std::size_t i) {
    return held_out(text)[i / scored()][world_.context + 1 - scored() + i % scored()];
  }
  // A model's logits at position i of a text. Computed once.
  std::span<const float> logits(const std::string& model, const std::string& text, std::size_t i);
  // Position i of all texts, the first text's first.
  const std::string& text_of(std::size_t i) const { return texts()[i / positions()]; }
  std::span<const float> logits(const std::string& model, std::size_t i) {
    return logits(model, text_of(i), i % positions());
  }
  token_id truth(std::size_t i) { return truth(text_of(i), i % positions()); }

  // What the decoders continue: the beginnings of windows, of each text in turn.
  std::vector<std::vector<token_id>> prompts(std::size_t of_each_text, std::size_t tokens = 64);

  records read(const std::string& part) const {
    return experiments::read(how, world_.parts + part);
  }
  // Seconds of a call of a model that appends n tokens, from the part `times`.
  double seconds(const std::string& model, double n) const;

 private:
  const world world_;
  thread_pool pool_;
  std::map<std::pair<std::vector<std::string>, std::vector<token_id>>, readers> kept_;
  std::map<std::string, std::vector<std::vector<token_id>>> held_out_;
  std::map<std::string, std::vector<float>> logits_;
  mutable std::map<std::string, std::vector<double>> seconds_;
};

// Every rule over its whole range, at a temperature; rules: only these, if there are any.
struct swept {
  double temperature;
  std::vector<std::string> rules;
};
inline const std::vector<swept> everywhere{{1, {}}, {0.5, {}}, {0, {}}};
// A window of a text: at(i), i < count, has both models' logits and the token that stands there.
// joint: its tokens are one answer, which is right if all of them are.
struct observed {
  struct position {
    std::span<const float> q, p;
    token_id truth;
  };
  std::string text;
  std::size_t number, count;
  std::function<position(std::size_t)> at;
  bool joint = false;
};
void sweep_windows(lab&, const std::string& name, const std::vector<observed>&,
                   const std::vector<swept>&, table&);
void cascades(lab&, const pair&, const std::vector<swept>&, table&);
void acceptance(lab&, table&);
// CoS: which models collaborate, and how much is decoded.
struct cos_models {
  std::vector<std::string> experts;  // two or three of one size
  std::string amateur, expert;       // a smaller one and a larger one
  bool both_ways;                    // either of two experts drafts
};
struct cos_plan {
  cos_models models;
  std::vector<double> lambdas, mus;
  bool trade;
  bool every_gamma;                      // 1 to 5 in all settings, not in those of the tables alone
  std::size_t prompts, tokens, repeats;  // prompts of each text
};
void cos_calls(lab&, const cos_plan&, table&);
void cos_speed(lab&, const cos_plan&, table&);
void verifiers(lab&, table&);
void draft_length(lab&, table&);
void times(lab&, const std::vector<std::string>& models, table&);
struct latency_plan {
  pair models;
  std::vector<sweep> rules;
  std::vector<std::size_t> gammas;
  std::size_t prompts, tokens, repeats;  // prompts of each text
};
void latency(lab&, const latency_plan&, table&);
void draft_length_speed(lab&, table&);
void dssd(lab&, table&);
void dssd_paired(lab&, table&);
void dragon_acceptance(lab&, table&);
void dragon_latency(lab&, table&);
void dragon_devices(lab&, table&);
void bilds(lab&, table&);
void regrets(lab&, table&);

}  // namespace experiments
