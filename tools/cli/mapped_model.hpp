// SPDX-License-Identifier: Apache-2.0
// A model whose vocabulary is not the target's, as one of the target's.
#pragma once
#include <memory>
#include <string>

#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/draft/retokenised.hpp>

#include "backends.hpp"
#include "joined_vocabularies.hpp"

namespace cli {

// A session over the target's vocabulary: the model reads the text in its own tokens, and its rows
// are mapped.
class mapped_session final : public session {
 public:
  // own: of the model. Both tokenizers are needed only here and by encode, so `own` must outlive
  // the object.
  mapped_session(std::unique_ptr<session> model, const tokenizer& own, const tokenizer& target)
      : model_(std::move(model)),
        joined_(own, target),
        reader_(*model_, joined_.no_text(own)),
        mapped_(reader_, joined_.map) {}
  std::size_t vocab_size() const override { return mapped_.vocab_size(); }
  std::size_t capacity() const override { return mapped_.capacity(); }
  std::size_t position() const override { return mapped_.position(); }
  specagg::status extend(std::span<const specagg::token_id> tokens,
                         std::span<float> logits) override {
    return mapped_.extend(tokens, logits);
  }
  specagg::status rollback(std::size_t position) override { return mapped_.rollback(position); }
  bool scores_trees() const override { return false; }
  specagg::status extend_tree(std::span<const specagg::token_id>, std::span<const std::uint32_t>,
                              std::span<float>) override {
    return specagg::status::model_failed;
  }
  specagg::status keep_path(std::span<const std::uint32_t>) override {
    return specagg::status::model_failed;
  }

  const specagg::vocabulary_map& map() const { return joined_.map; }
  // the mean part of the model's rows that is mapped
  double mass() const { return mapped_.mass(); }

 private:
  std::unique_ptr<session> model_;
  joined_vocabularies joined_;
  specagg::retokenising_source<session, specagg::cpu::inside_encoder<tokenizer>> reader_;
  specagg::mapped_source<decltype(reader_)> mapped_;
};

// Makes `model` a session over the target's vocabulary if its own is another; returns it then, else
// null. path: of the model. Both tokenizers must outlive the session. Says so on standard error,
// unless quiet.
const mapped_session* map_to_target(std::unique_ptr<session>& model, const std::string& path,
                                    const tokenizer& own, const tokenizer& target, bool quiet);

}  // namespace cli
