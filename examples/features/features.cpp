// SPDX-License-Identifier: Apache-2.0
// What a draft head is trained on: a model writes a text at temperature 1 after each prompt, and the tokens and the
// model's hidden states are written to a file for each prompt. A prompt whose file is there is not run again.
//
//   specagg-features --model F.gguf --prompts FILE --out FOLDER [--tokens 200] [--seed 1] [--chat]
//
// --prompts: one prompt a line. The file of line i, counted from 0, is FOLDER/i.bin: 32-bit integers, little-endian,
//   n, dim, p     the number of tokens; the width of a hidden state; how many of the tokens are the prompt's
//   n tokens
// and then n x dim 32-bit floats: the hidden state after each token, after the model's final norm.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/error.hpp>
#include <specagg/process.hpp>
#include <specagg/verify/verify.hpp>

#include "../cli/chat.hpp"

namespace {

using namespace specagg;

void put(std::ofstream& to, const void* from, std::size_t bytes) {
  to.write(static_cast<const char*>(from), std::streamsize(bytes));
}

// Under another name until it is complete.
void write_features(const cpu::llama& model, std::span<const token_id> tokens, std::size_t prompt,
                    const std::string& path) {
  const std::string part = path + ".part";
  std::ofstream to(part, std::ios::binary);
  const std::size_t n = model.position();
  const std::int32_t sizes[] = {std::int32_t(n), std::int32_t(model.hidden_size()), std::int32_t(prompt)};
  put(to, sizes, sizeof sizes), put(to, tokens.data(), n * sizeof(token_id));
  for (std::size_t i = 0; i < n; ++i) put(to, model.hidden(i).data(), model.hidden(i).size_bytes());
  to.close();
  if (!to) throw error(part, "", "cannot be written");
  std::filesystem::rename(part, path);
}

int run(int argc, char** argv) {
  std::string file, prompts, out;
  std::size_t most = 200;
  std::uint64_t seed = 1;
  bool chat = false;
  CLI::App app("Texts of a model with its hidden states, to train a draft head on");
  app.add_option("--model", file, "GGUF file")->required();
  app.add_option("--prompts", prompts, "one prompt a line")->required();
  app.add_option("--out", out, "folder: a file for each prompt")->required();
  app.add_option("--tokens", most, "at most so many after each prompt")->check(CLI::Range(1, 100000));
  app.add_option("--seed", seed, "of the texts");
  app.add_flag("--chat", chat, "prompts are a user's turns (ChatML)");
  CLI11_PARSE(app, argc, argv);

  const auto weights = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
  const cpu::tokenizer text_tokens(weights->file);
  const auto ends = cli::end_tokens_of(weights->file);
  const auto form = chat ? std::make_unique<cli::chat_ml>(weights->file) : nullptr;
  cpu::llama model(weights);
  model.keep_hidden();
  std::vector<float> logits(weights->vocab);
  std::vector<double> scratch(verify_scratch(weights->vocab));
  std::ifstream lines(prompts);
  if (!lines) throw error(prompts, "", "cannot be read");
  std::filesystem::create_directories(out);
  std::size_t number = 0, written = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    const std::string path = out + "/" + std::to_string(number) + ".bin";
    if (std::filesystem::exists(path)) continue;
    std::vector<token_id> tokens;
    if (form) tokens = form->beginning({}), form->ask(tokens, line);
    else tokens = text_tokens.encode(line);
    const std::size_t prompt = tokens.size();
    if (prompt == 0 || prompt >= model.capacity())
      throw error(prompts, "line " + std::to_string(number + 1), "has no tokens, or more than the model's context");
    (void)model.rollback(0);
    const random_streams random(seed, number);
    while (tokens.size() < std::min(prompt + most, model.capacity())) {
      if (const status s = model.extend(std::span(tokens).subspan(model.position()), logits); s != status::ok)
        throw error(file, "", std::string(name(s)));
      processed_row<float> row(logits, sampling());
      tokens.push_back(draw_draft(row, std::uint32_t(tokens.size()), 0, random, scratch));
      if (tokens.back() == no_token) throw error(file, "", "gave a row that is none");
      if (std::find(ends.begin(), ends.end(), tokens.back()) != ends.end()) break;
    }
    write_features(model, tokens, prompt, path);
    written += model.position() - prompt;
    std::printf("%s: %zu tokens, %zu in all\n", path.c_str(), model.position(), written);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specagg-features: %s\n", e.what());
    return 2;
  }
}
