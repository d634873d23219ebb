// SPDX-License-Identifier: Apache-2.0
// What a draft head is trained on: a model writes texts at temperature 1 after each prompt. The
// tokens of a text and the model's hidden states are written to a file. A text whose file is there
// is not written again.
//
//   specagg-features --model F.gguf --prompts FILE --out FOLDER [--texts 1]
//                    [--tokens 200] [--seed 1] [--threads 1]
//                    [--chat]
//
// --prompts: one prompt a line. --texts N: so many after each prompt, written together (as many as
// the context has
//   room for), so that the model reads its weights once for a token of each. Text k of line i,
//   counted from 0, is FOLDER/(i N + k).bin, little-endian: n, dim, p     32-bit integers: the
//   number of tokens; the width of a hidden state; how many
//                 tokens are the prompt's
//   n tokens      32-bit integers
//   n x dim       32-bit floats: the hidden state after each token, after the model's final norm
//   n - p + 1     32-bit floats: log-sum-exp of the rows after the tokens from the prompt's last
//                 one on
//   n - p + 1     32-bit integers: the most likely token of each of these rows
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
#include <specagg/rows/process.hpp>
#include <specagg/verify/verify.hpp>

#include "../cli/chat.hpp"
#include "../cli/effects.hpp"

namespace {

using namespace specagg;

void put(std::ofstream& to, const void* from, std::size_t bytes) {
  to.write(static_cast<const char*>(from), std::streamsize(bytes));
}

// What is written after a prompt.
struct text {
  std::vector<token_id> tokens, most_likely;  // most_likely: of each row
  std::vector<float> log_sums;                // of each row
  std::vector<std::uint32_t> nodes;  // the tree's node of each token that the model has read
};

// Under another name until it is complete.
void write_features(const cpu::llama& model, std::span<const token_id> prompt, const text& t,
                    const std::string& path) {
  const std::string part = path + ".part";
  std::ofstream to(part, std::ios::binary);
  const std::size_t n = t.nodes.size();
  const std::int32_t sizes[] = {std::int32_t(prompt.size() + n), std::int32_t(model.hidden_size()),
                                std::int32_t(prompt.size())};
  put(to, sizes, sizeof sizes);
  put(to, prompt.data(), prompt.size_bytes());
  put(to, t.tokens.data(), n * sizeof(token_id));
  for (std::size_t i = 0; i < prompt.size(); ++i)
    put(to, model.hidden(i).data(), model.hidden(i).size_bytes());
  for (const auto node : t.nodes)
    put(to, model.node_hidden(node).data(), model.node_hidden(node).size_bytes());
  put(to, t.log_sums.data(), (n + 1) * sizeof(float));
  put(to, t.most_likely.data(), (n + 1) * sizeof(token_id));
  to.close();
  if (!to) throw error(part, "", "cannot be written");
  std::filesystem::rename(part, path);
}

// Writes several texts after a prompt, a token of each in one call of the model: they are branches
// of a tree.
class writer {
 public:
  writer(cpu::llama& model, thread_pool& pool, std::span<const token_id> ends, std::uint64_t seed)
      : model_(&model), pool_(&pool), ends_(ends), seed_(seed) {}

  // At most `most` tokens each. Text k has the random numbers of sequence first + k, so it is the
  // same beside any others.
  std::vector<text> write(std::span<const token_id> prompt, std::size_t most, std::size_t first,
                          std::size_t count) {
    const std::size_t V = model_->vocab_size();
    std::vector<text> texts(count);
    std::vector<std::size_t> writing(count);
    std::vector<token_id> tokens;
    std::vector<std::uint32_t> parents;
    rows_.resize(count * V);
    const auto scratch = verify_scratch(V);
    scratch_.resize(count * scratch);
    (void)model_->rollback(0);
    check(model_->extend(prompt, std::span(rows_).first(V)));
    for (std::size_t k = 0; k < count; ++k) writing[k] = k;
    std::uint32_t nodes = 0;
    for (std::size_t row = 0;; row = 1) {  // the first row is everyone's
      pool_->for_ranges(writing.size(), 1, [&](std::size_t begin, std::size_t end) {
        for (auto j = begin; j < end; ++j)
          draw(texts[writing[j]], std::span(rows_).subspan(j * row * V, V),
               std::uint32_t(prompt.size()), random_streams(seed_, first + writing[j]),
               std::span(scratch_).subspan(j * scratch, scratch));
      });
      for (const auto k : writing)
        if (texts[k].tokens.back() == no_token)
          throw error("the model", "", "gave a row that is none");
      std::erase_if(writing, [&](std::size_t k) {
        return texts[k].tokens.size() == most || ends_text(texts[k]);
      });
      if (writing.empty()) break;
      tokens.clear();
      parents.clear();
      for (const auto k : writing) {
        tokens.push_back(texts[k].tokens.back());
        parents.push_back(texts[k].nodes.empty() ? 0 : texts[k].nodes.back());
      }
      for (const auto k : writing) texts[k].nodes.push_back(++nodes);
      check(model_->extend_tree(tokens, parents, std::span(rows_).first(writing.size() * V)));
    }
    return texts;
  }

 private:
  static void draw(text& t, std::span<const float> logits, std::uint32_t prompt,
                   const random_streams& random, std::span<double> scratch) {
    t.log_sums.push_back(float(log_sum_exp(logits)));
    t.most_likely.push_back(
        token_id(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    processed_row<float> row(logits, sampling());
    t.tokens.push_back(
        draw_draft(row, prompt + std::uint32_t(t.tokens.size()), 0, random, scratch));
  }
  bool ends_text(const text& t) const {
    return std::find(ends_.begin(), ends_.end(), t.tokens.back()) != ends_.end();
  }
  static void check(status s) {
    if (s != status::ok) throw error("the model", "", std::string(name(s)));
  }

  cpu::llama* model_;
  thread_pool* pool_;
  std::span<const token_id> ends_;
  std::uint64_t seed_;
  std::vector<double> scratch_;
  std::vector<float> rows_;
};

// The tokens of each line, of which the model reads at most `context`.
template <class Encode>
std::vector<std::vector<token_id>> read_prompts(const std::string& file, std::size_t context,
                                                Encode&& encode) {
  std::ifstream lines(file);
  if (!lines) throw error(file, "", "cannot be read");
  std::vector<std::vector<token_id>> asked;
  for (std::string line; std::getline(lines, line);) {
    const auto& tokens = asked.emplace_back(encode(line));
    const auto place = "line " + std::to_string(asked.size());
    if (tokens.empty()) throw error(file, place, "has no tokens");
    if (tokens.size() >= context) throw error(file, place, "is longer than the model's context");
  }
  return asked;
}

// Of the longest prompt and `more` tokens, as far as the context goes.
std::size_t capacity_for(const std::vector<std::vector<token_id>>& asked, std::size_t more,
                         std::size_t context) {
  std::size_t capacity = 1;
  for (const auto& tokens : asked)
    capacity = std::max(capacity, std::min(tokens.size() + more, context));
  return capacity;
}

int run(int argc, char** argv) {
  std::string file, prompts, out;
  std::size_t texts = 1, most = 200, threads = 1;
  std::uint64_t seed = 1;
  bool chat = false;
  CLI::App app("Texts of a model with its hidden states, to train a draft head on");
  app.add_option("--model", file, "GGUF file")->required();
  app.add_option("--prompts", prompts, "one prompt a line")->required();
  app.add_option("--out", out, "folder: a file for each text")->required();
  app.add_option("--texts", texts, "after each prompt, written together")
      ->check(CLI::Range(1, 1000));
  app.add_option("--tokens", most, "at most so many a text")->check(CLI::Range(1, 100000));
  app.add_option("--seed", seed, "of the texts");
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_flag("--chat", chat, "prompts are a user's turns");
  cli::check_values_of_all(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help
  }

  const auto weights = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
  const cpu::tokenizer text_tokens(weights->file);
  const auto ends = cli::end_tokens_of(weights->file);
  const cli::cpu_tokenizer tokens(weights->file);
  const auto form = chat ? tokens.chat() : nullptr;
  const auto asked = read_prompts(prompts, weights->context, [&](const std::string& line) {
    if (!form) return text_tokens.encode(line);
    return form->tokens({}, {&line, 1});
  });
  const auto pool = std::make_shared<thread_pool>(threads);
  cpu::llama model(weights, pool, capacity_for(asked, texts * most, weights->context));
  model.keep_hidden();
  writer write(model, *pool, ends, seed);
  std::filesystem::create_directories(out);
  std::size_t written = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto path = [&](std::size_t k) {
      return out + "/" + std::to_string(i * texts + k) + ".bin";
    };
    std::size_t there = 0;
    for (std::size_t k = 0; k < texts; ++k) there += std::filesystem::exists(path(k));
    if (there == texts) continue;
    const std::size_t room = model.capacity() - asked[i].size(), length = std::min(most, room);
    for (std::size_t k = 0, n; k < texts; k += n) {
      n = std::min(texts - k, room / length);
      const auto some = write.write(asked[i], length, i * texts + k, n);
      for (std::size_t j = 0; j < n; ++j) {
        write_features(model, asked[i], some[j], path(k + j));
        written += some[j].nodes.size();
      }
    }
    std::printf("line %zu: %zu tokens in all\n", i + 1, written);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specagg-features: %s\n", specagg::printable(e.what(), 4000).c_str());
    return 2;
  }
}
