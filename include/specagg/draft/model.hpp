// SPDX-License-Identifier: Apache-2.0
// A model as a drafter.
#pragma once
#include <span>

#include <specagg/draft/drafter.hpp>

SPECAGG_BEGIN

// Rows are softmax(logits) after the processor, temperature and filters, as the target's. The
// confidence is the largest probability of the row at temperature 1 (0 unless it was asked for):
// temperature and filters would make a row look more confident than the model is. The model's
// context may be smaller than the target's: if it is full, there is no row (context_full). logits:
// memory for (gamma + 1) x V logits. It and the model must outlive the object.
template <LogitSource M>
class model_drafter {
 public:
  using T = typename M::value_type;
  using row_type = normal_form<processed_row<T>>;
  model_drafter(M& model, std::span<T> logits, const sampling& sample = {})
      : model_(&model), logits_(logits), sample_(sample) {}

  std::size_t vocab_size() const { return model_->vocab_size(); }
  std::size_t position() const { return model_->position(); }
  status rollback(std::size_t n) { return model_->rollback(n); }

  status next(const draft_position& at, auto& processor, row_type& row, double& confidence) {
    row = row_type();
    confidence = 0;
    if (const status s = takes(at); s != status::ok) return s;
    const std::span<T> logits = row_of(at);
    if (at.computed) detail::process_rows(at.tokens, vocab_size(), processor, logits);
    else if (const status s = specagg::score(at.tokens, *model_, processor, logits);
             s != status::ok)
      return s;
    row = specagg::normalise(processed_row<T>(logits, sample_), at.confidence);
    if (at.confidence && row.why() == status::ok) confidence = double(row.largest_confidence());
    return row.why();
  }

  // Describes the model call that next(at) would make if at.computed is false, so that a caller can
  // batch the calls of several texts. False: there is no call, and next(at) says why.
  using model_type = M;
  bool call(const draft_position& at, addition<M>& to_make) const {
    return takes(at) == status::ok &&
           detail::score_call(at.tokens, *model_, row_of(at), to_make) == status::ok;
  }

 private:
  status takes(const draft_position& at) const {
    if (at.tokens.size() > std::size_t(model_->capacity())) return status::context_full;
    return logits_.size() < (at.drafted + 1) * vocab_size() ? status::invalid_parameter
                                                            : status::ok;
  }
  std::span<T> row_of(const draft_position& at) const {
    return logits_.subspan(at.drafted * vocab_size(), vocab_size());
  }

  M* model_;
  std::span<T> logits_;
  sampling sample_;
};

SPECAGG_END
