// SPDX-License-Identifier: Apache-2.0
// --backend NAME: where models run. What the decoders see is the same for all.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <specagg/logit_source.hpp>

namespace cli {

// A LogitSource of any backend.
struct session {
  using value_type = float;
  virtual ~session() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual std::size_t capacity() const = 0;
  virtual std::size_t position() const = 0;
  virtual specagg::status extend(std::span<const specagg::token_id> tokens, std::span<float> logits) = 0;
  virtual specagg::status rollback(std::size_t position) = 0;
  virtual bool scores_trees() const = 0;  // has the next two
  virtual specagg::status extend_tree(std::span<const specagg::token_id> tokens, std::span<const std::uint32_t> parents,
                                      std::span<float> logits) = 0;
  virtual specagg::status keep_path(std::span<const std::uint32_t> nodes) = 0;
};
template <specagg::LogitSource Model>
struct session_of final : session {
  Model model;
  explicit session_of(auto&&... arguments) : model(std::forward<decltype(arguments)>(arguments)...) {}
  std::size_t vocab_size() const override { return model.vocab_size(); }
  std::size_t capacity() const override { return model.capacity(); }
  std::size_t position() const override { return model.position(); }
  specagg::status extend(std::span<const specagg::token_id> tokens, std::span<float> logits) override {
    return model.extend(tokens, logits);
  }
  specagg::status rollback(std::size_t position) override { return model.rollback(position); }
  bool scores_trees() const override { return specagg::TreeSource<Model>; }
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

struct backend {
  virtual ~backend() = default;
  virtual std::unique_ptr<session> open(const std::string& file) = 0;  // throws specagg::error
  virtual unsigned threads() const { return 1; }                       // of the CPU
};
// cpu or cuda; threads: of the CPU, as many as can be had. Throws specagg::error where there is none.
std::unique_ptr<backend> make_backend(const std::string& name, unsigned threads);

}  // namespace cli

extern "C" cli::backend* specagg_make_cuda_backend();  // in the library that is cuda_backend.cu
