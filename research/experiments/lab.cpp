// SPDX-License-Identifier: Apache-2.0
#include "lab.hpp"

#include <fstream>
#include <thread>

#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/error.hpp>

#include "../../tools/cli/files.hpp"

namespace experiments {

world bundled(const settings& how) {
  const auto weights = std::make_shared<weight_files>(
      [](const std::string& m) { return SPECAGG_MODELS "/" + m + ".gguf"; });
  return {{texts.begin(), texts.end()},
          256,
          how.quick ? std::size_t(4) : 16,
          how.quick ? std::size_t(16) : 128,
          [weights](const std::string& text) {
            return cpu::tokenizer(weights->of("target")->file)
                .encode(cli::read_text(SPECAGG_MODELS "/../research/text/" + text + "/test.txt"));
          },
          [weights](const std::vector<std::string>& models) {
            readers all;
            for (const std::string& m : models)
              all.push_back(std::make_unique<cli::session_of<cpu::llama>>(weights->of(m)));
            return all;
          }};
}

lab::lab(const settings& s, world of)
    : how(s),
      world_(std::move(of)),
      pool_(s.threads ? s.threads : std::max(1u, std::thread::hardware_concurrency())) {}

const std::vector<std::vector<token_id>>& lab::held_out(const std::string& text) {
  auto& all = held_out_[text];
  if (!all.empty()) return all;
  const std::vector<token_id> tokens = world_.tokens(text);
  const std::size_t size = world_.context + 1;
  if (tokens.size() < windows() * size) throw error(text, "", "is too short");
  for (std::size_t w = 0; w < windows(); ++w) {
    const auto from = tokens.begin() + std::ptrdiff_t(w * (tokens.size() - size) / (windows() - 1));
    all.emplace_back(from, from + std::ptrdiff_t(size));
  }
  return all;
}

std::span<const float> lab::logits(const std::string& model, const std::string& text,
                                   std::size_t i) {
  auto& rows = logits_[model + " " + text];
  if (rows.empty()) {
    const auto& all = held_out(text);
    const readers opened = open({model});
    cli::session& one = *opened[0];
    const std::size_t v = one.vocab_size();
    rows.resize(positions() * v);
    for (std::size_t w = 0; w < windows(); ++w) {
      (void)one.rollback(0);
      const status s = one.extend(std::span(all[w]).first(world_.context),
                                  std::span(rows).subspan(w * scored() * v, scored() * v));
      if (s != status::ok) throw error(model, text, std::string(name(s)));
    }
  }
  const std::size_t v = rows.size() / positions();
  return std::span(rows).subspan(i * v, v);
}

std::vector<std::vector<token_id>> lab::prompts(std::size_t of_each_text, std::size_t tokens) {
  if (world_.prompts) return world_.prompts(of_each_text);
  std::vector<std::vector<token_id>> all;
  for (std::size_t i = 0; i < of_each_text; ++i)
    for (const std::string& text : texts()) {
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
