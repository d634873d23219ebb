// SPDX-License-Identifier: Apache-2.0
// The model of one site of DRAGON: a model file, and a folder of text that never leaves the site.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/site/documents.hpp>

#include "passages.hpp"

namespace cli {

struct site_options {
  std::string model = {}, folder = {};  // no folder: the plain model, h = 0
  std::size_t documents = 4;   // passages read side by side, at most
  std::size_t rescore = 0;     // relevance is scored again every n tokens; 0: once
  // Nats of relevance per unit of BM25. Held-out text continued by target.gguf, passages of other text of its author,
  // nats a token (64-token prompts, 64-token continuations, 61 of them):
  //   scale         0      0.1    0.3    1      best passage alone   no passage
  //   kjv           3.870  3.870  3.870  3.872  3.874                3.883
  //   shakespeare   3.962  3.962  3.962  3.963  3.966                3.962
  // Small models hardly read their documents; what there is to gain, a wide mixture gains.
  double scale = 0.1;
  std::size_t most = 512;      // tokens of text in a session
  std::size_t prefixes = 256;  // passages whose keys and values are kept
};

// What the sessions of a process share: weights, index, and the keys and values of the passages last read. Any thread.
class site_library {
 public:
  explicit site_library(const site_options& options);  // throws specagg::error

  const site_options options;
  const std::shared_ptr<const specagg::cpu::llama_weights> weights;
  const specagg::cpu::tokenizer tokens;
  const std::optional<passages> texts;

  // A session that has read the passage: null if none is kept.
  std::shared_ptr<const specagg::cpu::llama> prefix(std::uint32_t passage);
  // Keeps a copy of one, for the one that was asked for least recently.
  void keep(std::uint32_t passage, const specagg::cpu::llama& session);
  std::atomic<std::size_t> prefixes_computed = 0;

 private:
  using kept = std::pair<std::uint32_t, std::shared_ptr<const specagg::cpu::llama>>;
  std::mutex mutex_;
  std::list<kept> recent_;  // first: last asked for
  std::unordered_map<std::uint32_t, std::list<kept>::iterator> at_;
};

// One session: ln p^s and h as functions of (text, length of the prompt), whatever it was asked before. One thread at
// a time. Memory: for each document keys and values of 66 + options.most tokens.
//
// Each of the passages found is read as "<begin> passage <newline>", and the text goes on behind that (without the
// newline, with two, or with a second begin: the same likelihoods within 0.001 nats). The query is the
// prompt's last 64 tokens, relevance R = scale x BM25. Every `rescore` tokens, R is scored anew for the last 64 tokens
// of the text so far; the passages stay those of the prompt. Where the query finds nothing, the plain model reads the
// text and h = 0: the passage of relevance 0.
class site_model {
 public:
  // threads: as many as can be had. Throws specagg::error.
  explicit site_model(std::shared_ptr<site_library> library, unsigned threads = 1);

  std::size_t vocab_size() const { return library_->weights->vocab; }
  std::size_t capacity() const { return capacity_; }  // tokens of text
  unsigned threads() const { return pool_->threads(); }
  const specagg::cpu::tokenizer& tokens() const { return library_->tokens; }
  const std::vector<std::uint32_t>& documents() const { return ids_; }  // read now

  // The first `prompt` tokens of the text are its prompt (of a shorter one, all).
  void begin(std::size_t prompt) { prompt_ = prompt; }

  // The rows behind each of the last logits.size() / V tokens of the text, V a row: ln p^s. h: of the last row. While
  // `stop`, which another thread may set, is true, it gives up within a layer: status::stopped. Unless it answers ok,
  // logits and h may hold anything. Throws specagg::error where the index cannot be read.
  specagg::status see(std::span<const specagg::token_id> text, std::span<float> logits, double& h,
                      const std::atomic<bool>& stop);

 private:
  static constexpr std::size_t rows_at_once = 8;
  specagg::status retrieve(std::span<const specagg::token_id> query);
  void score(std::span<const specagg::token_id> query);
  template <class Body>
  void for_each(std::size_t count, const Body& body);

  std::shared_ptr<site_library> library_;
  std::shared_ptr<specagg::cpu::thread_pool> pool_;
  bool side_by_side_;  // documents in parallel; else the threads share each document's matrices
  std::size_t capacity_ = 0, prompt_ = 0;
  specagg::token_id newline_;
  std::vector<specagg::cpu::llama> sources_;
  std::vector<std::uint32_t> ids_;
  std::optional<specagg::document_mixture<specagg::cpu::llama>> mixture_;  // of the first ids_.size() sources, or one
  std::vector<specagg::token_id> query_, scored_, text_;  // of the mixture; of scores_; as the mixture sees it
  std::vector<double> scores_, relevance_, h_;
};

}  // namespace cli
