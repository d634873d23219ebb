// SPDX-License-Identifier: Apache-2.0
// What every experiment needs: the models, the held-out texts, their rows, a table that becomes a
// CSV file, progress.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/specagg.hpp>

namespace experiments {

using namespace specagg;

struct pair {  // q drafts, p is the target
  std::string q, p;
  std::string name() const { return q + "-" + p; }
};
inline const std::array<pair, 3> pairs{{{"draft", "target"}, {"bard", "bible"}, {"bible", "bard"}}};
inline const std::array<std::string, 2> texts{"shakespeare", "kjv"};

struct settings {
  bool quick = false;
  std::uint64_t seed = 1;
  unsigned threads = 0;  // of the exact parts; no number depends on it
  std::filesystem::path out = "build/experiments";
};

// Rows of text; numbers to 9 digits.
class table {
 public:
  explicit table(std::string header = "") : text_(header.empty() ? "" : header + "\n") {}
  template <class... Cells>
  void add(const Cells&... cells) {
    std::size_t n = 0;
    ((text_ += (n++ ? "," : "") + cell(cells)), ...);
    text_ += '\n';
  }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  static std::string cell(const T& x) {
    if constexpr (std::is_floating_point_v<T>) return std::isnan(x) ? "" : fmt::format("{:.9g}", x);
    else return fmt::format("{}", x);
  }
  std::string text_;
};

// A finished part, read back: rows by column.
using records = std::vector<std::map<std::string, std::string>>;

// Mean of f(i), i < n, and its standard error; `together` successive ones count as one observation,
// for the positions of one window depend on each other.
struct estimate {
  double mean = 0, se = 0;
};
template <class F>
estimate mean_of(std::size_t begin, std::size_t end, std::size_t together, F&& f) {
  double sum = 0, squares = 0, n = 0;
  for (std::size_t i = begin; i < end; i += together, ++n) {
    double x = 0;
    for (std::size_t k = 0; k < together; ++k) x += f(i + k) / double(together);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / n;
  return {mean, n > 1 ? std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1)) : NAN};
}
inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? NAN : x[x.size() / 2];
}
// One cell for what each repeat measured: report.py's errors are from it.
inline std::string listed(const std::vector<double>& x) {
  return fmt::format("{:.5g}", fmt::join(x, ";"));
}

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

  records read(const std::string& part) const;
  // Seconds of a call of a model that appends n tokens, from the part `times`.
  double seconds(const std::string& model, double n) const;

 private:
  thread_pool pool_;
  std::map<std::string, std::shared_ptr<const cpu::llama_weights>> weights_;
  std::map<std::string, std::vector<std::vector<token_id>>> held_out_;
  std::map<std::string, std::vector<float>> logits_;
  mutable std::map<std::string, std::vector<double>> seconds_;
};

// A part writes one CSV file. The numbers of an exact part are the same in every run; those of a
// timed part are seconds, and what follows from them.
struct part {
  const char* name;
  bool timed;
  double seconds, quick_seconds;  // about, for the time left
  const char* header;
  void (*run)(lab&, table&);
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
