// SPDX-License-Identifier: Apache-2.0
// --backend NAME: where models run. What the decoders see is the same for all.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/draft/vocabulary_map.hpp>
#include <specagg/error.hpp>
#include <specagg/logit_source.hpp>

#include "llama_cpp_options.hpp"
#include "unused.hpp"

namespace cli {

// A LogitSource of any backend.
struct session {
  using value_type = float;
  virtual ~session() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual std::size_t capacity() const = 0;
  virtual std::size_t position() const = 0;
  virtual specagg::status extend(std::span<const specagg::token_id> tokens,
                                 std::span<float> logits) = 0;
  virtual specagg::status rollback(std::size_t position) = 0;
  virtual bool scores_trees() const = 0;  // has the next two
  virtual specagg::status extend_tree(std::span<const specagg::token_id> tokens,
                                      std::span<const std::uint32_t> parents,
                                      std::span<float> logits) = 0;
  virtual specagg::status keep_path(std::span<const std::uint32_t> nodes) = 0;
};
template <specagg::LogitSource Model>
struct session_of final : session {
  Model model;
  explicit session_of(auto&&... arguments)
      : model(std::forward<decltype(arguments)>(arguments)...) {}
  std::size_t vocab_size() const override { return model.vocab_size(); }
  std::size_t capacity() const override { return model.capacity(); }
  std::size_t position() const override { return model.position(); }
  specagg::status extend(std::span<const specagg::token_id> tokens,
                         std::span<float> logits) override {
    return model.extend(tokens, logits);
  }
  specagg::status rollback(std::size_t position) override { return model.rollback(position); }
  bool scores_trees() const override {
    if constexpr (requires { model.scores_trees(); }) return model.scores_trees();
    else return specagg::TreeSource<Model>;
  }
  specagg::status extend_tree([[maybe_unused]] std::span<const specagg::token_id> tokens,
                              [[maybe_unused]] std::span<const std::uint32_t> parents,
                              [[maybe_unused]] std::span<float> logits) override {
    if constexpr (specagg::TreeSource<Model>) return model.extend_tree(tokens, parents, logits);
    else return specagg::status::model_failed;
  }
  specagg::status keep_path([[maybe_unused]] std::span<const std::uint32_t> nodes) override {
    if constexpr (specagg::TreeSource<Model>) return model.keep_path(nodes);
    else return specagg::status::model_failed;
  }
};

// A draft head: its rows are over a small vocabulary of its own, which the map joins to the
// target's.
struct head_session : session {
  virtual const specagg::vocabulary_map& map() const = 0;
};
// With rows over the target's vocabulary.
std::unique_ptr<session> over_target(std::unique_ptr<head_session> head);

// Conversations, as the tokens that the model's chat template makes of them.
struct chat {
  virtual ~chat() = default;
  // A conversation until its next answer. system: none means the template's own text. texts: the
  // user's, the answer, the user's, ... Throws specagg::error.
  virtual std::vector<specagg::token_id> tokens(const std::optional<std::string>& system,
                                                std::span<const std::string> texts) const = 0;
  // The same, of texts whose last answer is known by its tokens: `known` is the conversation with
  // it. These stay, where the template writes that answer as it was written.
  virtual std::vector<specagg::token_id> next(std::vector<specagg::token_id> known,
                                              const std::optional<std::string>& system,
                                              std::span<const std::string> texts) const = 0;
};

// A tokenizer of any backend; cpu::tokenizer says what its members do.
struct tokenizer {
  virtual ~tokenizer() = default;
  virtual std::size_t size() const = 0;
  virtual specagg::token_id bos() const = 0;
  virtual std::uint64_t hash() const = 0;
  virtual std::vector<specagg::token_id> encode(std::string_view text) const = 0;
  virtual std::vector<specagg::token_id> encode_inside(std::string_view text) const = 0;
  virtual std::vector<specagg::token_id> beginning() const = 0;
  virtual std::string piece(specagg::token_id token) const = 0;
  virtual std::vector<specagg::token_text> texts() const = 0;
  virtual std::vector<specagg::token_id> end_tokens() const = 0;  // those that end a text
  virtual std::vector<specagg::token_id> unused() const = 0;      // unused_tokens()
  // Throws specagg::error if the file has no template, or one that is not known. The tokenizer must
  // outlive it.
  virtual std::unique_ptr<const cli::chat> chat() const = 0;
};
template <class Tokenizer>
struct tokenizer_of : tokenizer {
  Tokenizer of;
  explicit tokenizer_of(auto&&... arguments)
      : of(std::forward<decltype(arguments)>(arguments)...) {}
  std::size_t size() const override { return of.size(); }
  specagg::token_id bos() const override { return of.bos(); }
  std::uint64_t hash() const override { return of.hash(); }
  std::vector<specagg::token_id> encode(std::string_view text) const override {
    return of.encode(text);
  }
  std::vector<specagg::token_id> encode_inside(std::string_view text) const override {
    return of.encode_inside(text);
  }
  std::vector<specagg::token_id> beginning() const override { return of.beginning(); }
  std::string piece(specagg::token_id token) const override { return of.piece(token); }
  std::vector<specagg::token_text> texts() const override { return of.texts(); }
  std::vector<specagg::token_id> unused() const override { return unused_tokens(of); }
};

struct backend {
  virtual ~backend() = default;
  virtual std::unique_ptr<session> open(const std::string& file) = 0;  // throws specagg::error
  // target: a session of this backend, which must outlive the head. Throws specagg::error.
  virtual std::unique_ptr<head_session> open_head(const std::string& file, session&) {
    throw specagg::error(file, "", "is a draft head, which --backend cpu alone runs");
  }
  // Null: the backend has no tokenizers of its own.
  virtual std::unique_ptr<const tokenizer> own_tokenizer(const std::string&) { return nullptr; }
  virtual unsigned threads() const { return 1; }  // of the CPU
};
// Whether the file is a draft head.
bool is_draft_head(const std::string& file);
// The tokenizer of a model file: the backend's own, else cpu::tokenizer. Throws specagg::error.
std::unique_ptr<const tokenizer> open_tokenizer(backend& on, const std::string& file);

inline const std::vector<std::string> backend_names = {"cpu", "cuda", "llama.cpp"};
// One of backend_names. threads: of the CPU, as many as can be had. Throws specagg::error where
// there is none.
std::unique_ptr<backend> make_backend(const std::string& name, unsigned threads,
                                      const llama_cpp_options& o);
std::unique_ptr<backend> make_llama_cpp_backend(unsigned threads, const llama_cpp_options& o);

}  // namespace cli

extern "C" cli::backend* specagg_make_cuda_backend();  // in the library that is cuda_backend.cu
