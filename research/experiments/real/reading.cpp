// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <specagg/error.hpp>

#include "../../../tools/cli/chat.hpp"
#include "../../../tools/cli/files.hpp"
#include "../../../tools/cli/mapped_model.hpp"

namespace experiments::real {
namespace {

constexpr std::size_t capacity = 1024;  // positions of a session
const std::string head_file = SPECAGG_MODELS "/smollm2-head.gguf";

// A model that has read a context of its own before the text: a system prompt, a begin token.
struct with_context {
  using value_type = float;
  std::unique_ptr<cli::session> of;
  std::size_t before;
  with_context(std::unique_ptr<cli::session> session, std::span<const token_id> context)
      : of(std::move(session)), before(context.size()) {
    if (of->extend(context, {}) != status::ok) throw error("context", "", "is too long");
  }
  std::size_t vocab_size() const { return of->vocab_size(); }
  std::size_t capacity() const { return of->capacity() - before; }
  std::size_t position() const { return of->position() - before; }
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    return of->extend(tokens, logits);
  }
  status rollback(std::size_t n) { return of->rollback(n + before); }
};

// Where a model has no token, the least logit that it has. Contrastive decoding divides by q.
struct with_all_tokens {
  using value_type = float;
  std::unique_ptr<cli::session> of;
  explicit with_all_tokens(std::unique_ptr<cli::session> session) : of(std::move(session)) {}
  std::size_t vocab_size() const { return of->vocab_size(); }
  std::size_t capacity() const { return of->capacity(); }
  std::size_t position() const { return of->position(); }
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    const status s = of->extend(tokens, logits);
    const std::size_t v = vocab_size();
    for (std::size_t row = 0; s == status::ok && row < logits.size(); row += v) {
      float least = std::numeric_limits<float>::infinity();
      for (std::size_t i = row; i < row + v; ++i)
        if (!is_masked(logits[i])) least = std::min(least, logits[i]);
      for (std::size_t i = row; i < row + v; ++i)
        if (is_masked(logits[i])) logits[i] = least;
    }
    return s;
  }
  status rollback(std::size_t n) { return of->rollback(n); }
};

// A head with the target that it reads.
struct head_alone {
  using value_type = float;
  std::unique_ptr<cli::session> target, head;
  head_alone(std::unique_ptr<cli::session> of, cli::backend& on)
      : target(std::move(of)), head(cli::over_target(on.open_head(head_file, *target))) {}
  std::size_t vocab_size() const { return head->vocab_size(); }
  std::size_t capacity() const { return head->capacity(); }
  std::size_t position() const { return head->position(); }
  // Row after row, as in a round that drafts one token: the target has read all but the last.
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    const std::size_t v = vocab_size(), rows = logits.size() / v, first = tokens.size() - rows;
    status s = target->extend(tokens.first(first), {});
    if (s == status::ok) s = head->extend(tokens.first(first), {});
    for (std::size_t i = 0; i < rows && s == status::ok; ++i) {
      s = head->extend(tokens.subspan(first + i, 1), logits.subspan(i * v, v));
      if (s == status::ok) s = target->extend(tokens.subspan(first + i, 1), {});
    }
    return s;
  }
  status rollback(std::size_t n) {
    (void)head->rollback(n);
    return target->rollback(n);
  }
};

struct opener {
  sources of;
  std::string target;
  unsigned threads;
  weight_files weights;
  std::unique_ptr<cli::backend> cpu, llama_cpp;
  std::unique_ptr<const cli::tokenizer> smollm2_tokens, gemma_tokens;
  std::mutex mutex;

  opener(const sources& from, const std::string& to, unsigned n)
      : of(from),
        target(to),
        threads(n),
        weights([file = from.smollm2](const std::string&) { return file; }),
        cpu(cli::make_backend("cpu", n, {})),
        smollm2_tokens(cli::open_tokenizer(*cpu, from.smollm2)) {
    if (from.gemma.empty()) return;
    llama_cpp = cli::make_backend("llama.cpp", n, {});
    gemma_tokens = cli::open_tokenizer(*llama_cpp, from.gemma);
  }
  const cli::tokenizer& tokens() const {
    return target == "gemma" ? *gemma_tokens : *smollm2_tokens;
  }

  std::unique_ptr<cli::session> smollm2() {
    return std::make_unique<cli::session_of<cpu::llama>>(
        weights.of("smollm2"), std::make_shared<thread_pool>(threads), capacity);
  }
  std::unique_ptr<cli::session> one(const std::string& name, cli::session* beside) {
    if (name == "smollm2" && target == "smollm2") return smollm2();
    if (name == "smollm2") return mapped(smollm2(), *smollm2_tokens);
    if (name == "gemma") {
      if (!llama_cpp) throw error("gemma", "", "is not there (SPECAGG_GEMMA names its file)");
      auto model = llama_cpp->open(of.gemma);
      if (target != "gemma") return mapped(std::move(model), *gemma_tokens);
      return std::make_unique<cli::session_of<with_context>>(std::move(model),
                                                             std::vector{gemma_tokens->bos()});
    }
    if (name == "head" || name == "amateur") {
      std::unique_ptr<cli::session> head =
          beside ? cli::over_target(cpu->open_head(head_file, *beside))
                 : std::make_unique<cli::session_of<head_alone>>(smollm2(), *cpu);
      if (name == "head") return head;
      return std::make_unique<cli::session_of<with_all_tokens>>(std::move(head));
    }
    const std::map<std::string, std::string> systems{
        {"smollm2/plain", "You are a helpful assistant. Answer in short, simple sentences."},
        {"smollm2/vivid", "You are a poet. Answer with vivid images."},
        {"smollm2/teacher", "You are a patient teacher. Explain your answer."}};
    const auto system = systems.find(name);
    if (system == systems.end()) throw error("model", name, "is unknown");
    const cpu::byte_level_bpe words(weights.of("smollm2")->file);
    return std::make_unique<cli::session_of<with_context>>(
        smollm2(), words.encode("<|im_start|>system\n" + system->second + "<|im_end|>\n", true));
  }
  std::unique_ptr<cli::session> mapped(std::unique_ptr<cli::session> model,
                                       const cli::tokenizer& own) {
    return std::make_unique<cli::mapped_session>(std::move(model), own, tokens());
  }
  readers open(const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex);
    readers all(names.size());
    cli::session* beside = nullptr;
    for (const bool heads : {false, true})  // a head is put on what is there
      for (std::size_t i = 0; i < names.size(); ++i)
        if ((names[i] == "head" || names[i] == "amateur") == heads) {
          all[i] = one(names[i], beside);
          if (names[i] == "smollm2") beside = all[i].get();
        }
    return all;
  }
};

}  // namespace

sources from_environment() {
  const auto value = [](const char* name) {
    const char* const found = std::getenv(name);
    return std::string(found ? found : "");
  };
  return {value("SPECAGG_SMOLLM2"), value("SPECAGG_GEMMA"), value("SPECAGG_TEXTS")};
}

world reading(const sources& of, const std::string& target, std::size_t windows, std::size_t scored,
              unsigned threads) {
  const auto opened = std::make_shared<opener>(of, target, threads);
  return {{"manual", "handbook", "jargon"},
          128,
          windows,
          scored,
          [opened](const std::string& text) {
            return opened->tokens().encode_inside(
                cli::read_text(opened->of.texts + "/" + text + ".txt"));
          },
          [opened](const std::vector<std::string>& names) { return opened->open(names); }};
}

world chatting(const sources& of, const std::vector<std::string>& kinds) {
  world w = reading(of, "smollm2", 2, 1, 1);
  w.parts = "real-";
  w.prompts = [of, kinds](std::size_t of_each) {
    const auto file = cpu::gguf_file::open(of.smollm2);
    const cpu::byte_level_bpe words(file);
    std::vector<std::vector<token_id>> all;
    for (const std::string& kind : kinds)
      for (std::size_t i = 1; i <= of_each; ++i)
        all.push_back(words.encode(
            "<|im_start|>user\n" +
                cli::read_text(fmt::format("{}/../prompts/{}-{:02}.txt", SPECAGG_MODELS, kind, i)) +
                "<|im_end|>\n<|im_start|>assistant\n",
            true));
    return all;
  };
  return w;
}

std::vector<question> questions(const sources& of, const std::string& target) {
  const opener opened(of, target, 1);
  std::vector<question> all;
  std::ifstream file(of.texts + "/questions.tsv");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (second == std::string::npos)
      throw error(of.texts + "/questions.tsv", line, "has no answer");
    std::string text = line.substr(first + 1, second - first - 1);
    for (std::size_t at; (at = text.find("\\n")) != std::string::npos;) text.replace(at, 2, "\n");
    question q{line.substr(0, first), opened.tokens().encode_inside(text), 0};
    const auto answer = opened.tokens().encode_inside(line.substr(second + 1));
    q.text.insert(q.text.end(), answer.begin(), answer.end());
    q.answer = answer.size();
    all.push_back(std::move(q));
  }
  if (all.empty()) throw error(of.texts + "/questions.tsv", "", "has no questions");
  return all;
}

}  // namespace experiments::real
