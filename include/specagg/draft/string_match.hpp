// SPDX-License-Identifier: Apache-2.0
// Drafts of any model for any target, through their text alone.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/draft/drafter.hpp>
#include <specagg/draft/retokenised.hpp>

SPECAGG_BEGIN

// The model writes greedily, with all of its own tokens. The target's tokenizer encodes the written
// bytes, and these tokens are proposed with probability 1 (string-level exact match, Timor et al.
// 2025, arXiv:2502.05202). A token is proposed when another one follows it, because then more bytes
// would seldom change it. The last token is proposed when the model ends: at a special token, at a
// full context, or if 4 (j + 2) own tokens did not make j + 2 of the target's, j the tokens drafted
// so far. The draft is a function of the text. Processors are not applied to the model's rows.
//
// encode(std::string_view): the target's tokens (std::vector<token_id>) of bytes that stand inside
// a text. own: the tokens of the model's vocabulary. Both and the source must outlive the object.
// next() allocates.
template <LogitSource M, class EncodeOwn, class Encode>
class string_match_drafter {
 public:
  using T = typename M::value_type;
  using row_type = normal_form<one_hot_row<computed<T>>>;
  string_match_drafter(retokenising_source<M, EncodeOwn>& source, std::span<const token_text> own,
                       std::size_t target_vocabulary, Encode encode)
      : source_(&source),
        own_(own),
        vocabulary_(target_vocabulary),
        encode_(std::move(encode)),
        logits_(source.vocab_size()) {}

  std::size_t vocab_size() const { return vocabulary_; }
  std::size_t position() const { return source_->position(); }
  status rollback(std::size_t n) { return source_->rollback(n); }

  // confidence: the probability at temperature 1 of the last own token that was written.
  status next(const draft_position& at, auto& /*processor*/, row_type& row, double& confidence) {
    const std::size_t n = at.tokens.size() - at.drafted, j = at.drafted;
    if (const status s = specagg::rollback(n, *source_); s != status::ok) return s;
    if (const status s = source_->read(at.tokens.subspan(position(), n - position()));
        s != status::ok)
      return s;
    if (j == 0) {
      written_.clear();
      bytes_.clear();
      proposed_.clear();
      why_ = status::ok;
    }
    while (why_ == status::ok && proposed_.size() < j + 2) why_ = write(4 * (j + 2));
    if (why_ == status::stopped) return why_;
    const auto drafted = at.tokens.subspan(n);
    if (proposed_.size() <= j) return why_;
    if (!std::equal(drafted.begin(), drafted.end(), proposed_.begin())) return status::no_draft;
    row = specagg::normalise(one_hot_row<computed<T>>(proposed_[j], vocabulary_));
    confidence = confidence_;
    return row.why() == status::ok ? status::ok : status::no_draft;
  }

 private:
  // Writes one own token. no_draft: the model has ended.
  status write(std::size_t most) {
    if (written_.size() >= most || logits_.size() != own_.size()) return status::no_draft;
    if (const status s = source_->row_after(written_, logits_); s != status::ok) return s;
    const auto largest = find_largest(logits_.data(), logits_.size());
    if (!largest.valid) return status::invalid_row;
    const auto d = std::size_t(largest.id);
    if (own_[d].in_text().empty()) return status::no_draft;
    written_.push_back(token_id(d));
    bytes_ += own_[d].in_text();
    proposed_ = encode_(std::string_view(bytes_));
    confidence_ = 1 / sum_exponentials(logits_.data(), logits_.size(), 1).total;
    return status::ok;
  }

  retokenising_source<M, EncodeOwn>* source_;
  std::span<const token_text> own_;
  std::size_t vocabulary_;
  Encode encode_;
  std::vector<T> logits_;
  // this round: own tokens, and their text in the target's
  std::vector<token_id> written_, proposed_;
  std::string bytes_;
  status why_ = status::ok;  // why the model has ended
  double confidence_ = 0;
};

SPECAGG_END
