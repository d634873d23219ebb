// SPDX-License-Identifier: Apache-2.0
// What the experiments with the bundled models need: the models, the held-out texts, their rows.
#pragma once
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/specagg.hpp>

#include "table.hpp"

namespace experiments {

using namespace specagg;

struct pair {  // q drafts, p is the target
  std::string q, p;
  std::string name() const { return q + "-" + p; }
};
inline const std::array<pair, 3> pairs{{{"draft", "target"}, {"bard", "bible"}, {"bible", "bard"}}};
inline const std::array<std::string, 2> texts{"shakespeare", "kjv"};

class lab {
 public:
  explicit lab(const settings& s);
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

  std::shared_ptr<const cpu::llama_weights> weights(const std::string& model);
  // on the calling thread
  cpu::llama session(const std::string& model) { return cpu::llama(weights(model)); }
  std::size_t vocabulary() { return weights("target")->vocab; }

  // A text is read in windows spread evenly over it: `context` tokens, and the token after each of
  // the last `scored`.
  static constexpr std::size_t context = 256;
  std::size_t windows() const { return how.quick ? 4 : 16; }
  std::size_t scored() const { return how.quick ? 16 : 128; }
  std::size_t positions() const { return windows() * scored(); }  // of one text
  // windows of context + 1 tokens
  const std::vector<std::vector<token_id>>& held_out(const std::string& text);
  token_id truth(const std::string& text, std::size_t i) {
    return held_out(text)[i / scored()][context + 1 - scored() + i % scored()];
  }
  // A model's logits at position i of a text. Computed once.
  std::span<const float> logits(const std::string& model, const std::string& text, std::size_t i);
  // Position i of both texts, the first text's first.
  const std::string& text_of(std::size_t i) const { return texts[i / positions()]; }
  std::span<const float> logits(const std::string& model, std::size_t i) {
    return logits(model, text_of(i), i % positions());
  }
  token_id truth(std::size_t i) { return truth(text_of(i), i % positions()); }

  // The beginnings of windows of both texts: what the decoders continue.
  std::vector<std::vector<token_id>> prompts(std::size_t of_each_text, std::size_t tokens = 64);

  records read(const std::string& part) const { return experiments::read(how, part); }
  // Seconds of a call of a model that appends n tokens, from the part `times`.
  double seconds(const std::string& model, double n) const;

 private:
  thread_pool pool_;
  std::map<std::string, std::shared_ptr<const cpu::llama_weights>> weights_;
  std::map<std::string, std::vector<std::vector<token_id>>> held_out_;
  std::map<std::string, std::vector<float>> logits_;
  mutable std::map<std::string, std::vector<double>> seconds_;
};

void cascades(lab&, const pair&, table&);
void acceptance(lab&, table&);
void cos_calls(lab&, table&);
void verifiers(lab&, table&);
void draft_length(lab&, table&);
void times(lab&, table&);
void latency(lab&, table&);
void cos_speed(lab&, table&);
void draft_length_speed(lab&, table&);
void dssd(lab&, table&);
void dssd_paired(lab&, table&);
void dragon_acceptance(lab&, table&);
void dragon_latency(lab&, table&);
void dragon_devices(lab&, table&);
void bilds(lab&, table&);
void regrets(lab&, table&);

}  // namespace experiments
