// SPDX-License-Identifier: Apache-2.0
#include "lab.hpp"

#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include <specagg/error.hpp>

namespace experiments {

lab::lab(const settings& s)
    : how(s), pool_(s.threads ? s.threads : std::max(1u, std::thread::hardware_concurrency())) {}

std::shared_ptr<const cpu::llama_weights> lab::weights(const std::string& model) {
  auto& w = weights_[model];
  if (!w)
    w = std::make_shared<const cpu::llama_weights>(
        cpu::gguf_file::open(SPECAGG_MODELS "/" + model + ".gguf"));
  return w;
}

const std::vector<std::vector<token_id>>& lab::held_out(const std::string& text) {
  auto& all = held_out_[text];
  if (!all.empty()) return all;
  const std::string path = SPECAGG_MODELS "/../text/" + text + "/test.txt";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw error(path, "", "cannot be read");
  const std::string characters{std::istreambuf_iterator<char>(file), {}};
  const std::vector<token_id> tokens = cpu::tokenizer(weights("target")->file).encode(characters);
  const std::size_t size = context + 1;
  if (tokens.size() < windows() * size) throw error(path, "", "is too short");
  for (std::size_t w = 0; w < windows(); ++w) {
    const auto from = tokens.begin() + std::ptrdiff_t(w * (tokens.size() - size) / (windows() - 1));
    all.emplace_back(from, from + std::ptrdiff_t(size));
  }
  return all;
}

std::span<const float> lab::logits(const std::string& model, const std::string& text,
                                   std::size_t i) {
  const std::size_t v = vocabulary();
  auto& rows = logits_[model + " " + text];
  if (rows.empty()) {
    const auto& all = held_out(text);
    rows.resize(positions() * v);
    cpu::llama one = session(model);
    for (std::size_t w = 0; w < windows(); ++w) {
      (void)one.rollback(0);
      const status s = one.extend(std::span(all[w]).first(context),
                                  std::span(rows).subspan(w * scored() * v, scored() * v));
      if (s != status::ok) throw error(model, text, std::string(name(s)));
    }
  }
  return std::span(rows).subspan(i * v, v);
}

std::vector<std::vector<token_id>> lab::prompts(std::size_t of_each_text, std::size_t tokens) {
  std::vector<std::vector<token_id>> all;
  for (std::size_t i = 0; i < of_each_text; ++i)
    for (const std::string& text : texts) {
      const auto& from = held_out(text)[i * windows() / of_each_text];
      all.emplace_back(from.begin(), from.begin() + std::ptrdiff_t(tokens));
    }
  return all;
}

double lab::seconds(const std::string& model, double n) const {
  auto& of = seconds_[model];
  if (of.empty())
    for (const auto& r : read("times"))
      if (r.at("model") == model) of.push_back(std::stod(r.at("seconds")));
  // between whole numbers of tokens: a straight line
  const double i = std::clamp(n - 1, 0.0, double(of.size() - 1));
  const auto low = std::size_t(i);
  return of[low] + (i - double(low)) * (of[std::min(low + 1, of.size() - 1)] - of[low]);
}

}  // namespace experiments
