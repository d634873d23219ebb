// SPDX-License-Identifier: Apache-2.0
// Drafts without a model: the tokens that followed the last tokens before, by their counts.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include <specagg/draft/drafter.hpp>
#include <specagg/draft/ngram_counts.hpp>
#include <specagg/kernel/math.hpp>

SPECAGG_BEGIN

// An n-gram model of the text without the draft, and of documents. Its probability of token y after
// the history h is (Witten and Bell 1991; h' is h without its first token)
//   P(y | h) = (1 - lambda) c(h y) / c(h) + lambda P(y | h'),   lambda = N1+(h) / (N1+(h) + c(h))
// c(h y): how often y followed h; c(h): how many tokens followed h; N1+(h): how many different
// tokens did. If there are documents, each occurrence in the text counts text_weight times. For a
// history that did not occur lambda is 1. P of the empty history is taken as 0: a row has only
// tokens that followed the last token, renormalised. If there are more than `most`, the row has the
// most likely ones; among equally likely tokens the lower ids. Temperature and filters act on log P
// as on a model's logits; at temperature 0 the row is the most likely token. Penalties do not act
// on it. The confidence is the cube of the largest P, not renormalised and without temperature: a
// token that followed long histories is surer than one that followed the last token alone, and with
// the cube the first guess of plan/draft_length.hpp is about right. Row and confidence are
// functions of documents, text and draft.
//
// Each token of the text is counted once, and drafted tokens are never counted, so a round forgets
// nothing. If the text itself is cut, the next call of next() counts it again from its beginning. A
// row costs O(order x tokens that followed), and sorting these by id.
template <class T = float>
class counts_drafter {
 public:
  using row_type = normal_form<sparse_row<T>>;
  static constexpr std::size_t most = 256, text_weight = 4;
  // capacity: the longest text; gamma: the most tokens drafted in a round. Memory is allocated
  // here, and none later: at most 220 bytes for each token of the text (ngram_counts of order 5), 2
  // KB for each token of a draft, and 16 bytes for each token of the vocabulary (T = float). It
  // proposes nothing in a longer text (context_full) or a longer draft (invalid_parameter).
  // documents, if given, must outlive the object and stay as they are; any number of drafters may
  // share them. Their order is the model's. Tokens of documents that are not below `vocabulary` are
  // never proposed.
  counts_drafter(std::size_t vocabulary, std::size_t capacity, std::size_t gamma,
                 const sampling& sample = {}, const ngram_counts* documents = nullptr)
      : capacity_(capacity),
        gamma_(gamma),
        sample_(sample),
        documents_(documents && documents->size() > 0 ? documents : nullptr),
        text_(documents ? documents->order() : ngram_counts::usual_order, capacity),
        probability_(vocabulary),
        found_(vocabulary),
        logits_(vocabulary),
        ids_((gamma + 1) * most),
        rows_((gamma + 1) * most) {
    if (sample_.top_k == 0 || sample_.top_k > most) sample_.top_k = most;
  }

  std::size_t vocab_size() const { return probability_.size(); }
  std::size_t position() const { return size_; }
  status rollback(std::size_t n) {
    size_ = std::min(size_, n);
    return status::ok;
  }

  status next(const draft_position& at, auto& /*processor*/, row_type& row, double& confidence) {
    const std::size_t n = at.tokens.size() - at.drafted;
    row = row_type();
    confidence = 0;
    if (n > capacity_) return status::context_full;
    if (at.drafted > gamma_) return status::invalid_parameter;
    read(at.tokens.first(n));
    ngram_counts::histories in_text = text_.suffix(), in_documents = in_documents_;
    for (const token_id y : at.tokens.subspan(n)) {  // the draft is followed, not counted
      in_text = text_.step(in_text, y);
      if (documents_) in_documents = documents_->step(in_documents, y);
    }
    const std::span<const token_id> found = interpolate(in_text, in_documents);
    if (found.empty()) return status::no_draft;
    for (std::size_t i = 0; i < found.size(); ++i) {
      double& p = probability_[std::size_t(found[i])];
      confidence = std::max(confidence, p * p * p);
      logits_[i] = T(log(p));
      p = 0;
    }
    const std::span<const T> logits = std::span<const T>(logits_).first(found.size());
    const auto kept = specagg::normalise(processed_row<T>(logits, sample_));
    if (kept.why() != status::ok) return kept.why();
    const std::span<token_id> ids = std::span(ids_).subspan(at.drafted * most, most);
    const std::span<T> x = std::span(rows_).subspan(at.drafted * most, most);
    std::size_t size = 0;
    for (std::size_t i = 0; i < found.size(); ++i)
      if (const T p = kept[i]; p > 0) {
        ids[size] = found[i];
        x[size] = p;
        ++size;
      }
    row = specagg::normalise(sparse_row<T>(ids.first(size), x.first(size), vocab_size()));
    return row.why();
  }

 private:
  void read(std::span<const token_id> text) {
    // it was cut
    if (size_ < text_.size()) {
      text_.clear();
      size_ = 0;
      in_documents_ = ngram_counts::beginning();
    }
    for (; size_ < text.size(); ++size_) {
      text_.push(text[size_]);
      if (documents_) in_documents_ = documents_->step(in_documents_, text[size_]);
    }
  }
  // Adds up P in probability_, and returns the tokens for which it is above 0; their ids ascend.
  std::span<const token_id> interpolate(const ngram_counts::histories& in_text,
                                        const ngram_counts::histories& in_documents) {
    // without any, no history occurs in them
    const ngram_counts& documents = documents_ ? *documents_ : text_;
    const std::size_t weight = documents_ ? text_weight : 1;
    std::size_t size = 0;
    double left = 1;  // the weight of the shorter histories: the product of lambda
    for (std::size_t k = text_.order() - 1; k > 0; --k) {
      const ngram_counts::index own = in_text[k], other = in_documents[k];
      const std::size_t followed = weight * text_.followed(own) + documents.followed(other);
      std::size_t kinds = documents.kinds(other);
      text_.for_each(own,
                     [&](token_id y, std::size_t) { kinds += documents.count(other, y) == 0; });
      if (followed == 0) continue;
      const double share = left / double(kinds + followed);  // (1 - lambda) / c(h)
      const auto add = [&](token_id y, std::size_t count) {
        if (y < 0 || std::size_t(y) >= probability_.size()) return;
        double& p = probability_[std::size_t(y)];
        if (p == 0) found_[size++] = y;
        p = fma(share, double(count), p);
      };
      text_.for_each(own, [&](token_id y, std::size_t count) { add(y, weight * count); });
      documents.for_each(other, add);
      left = share * double(kinds);
    }
    std::sort(found_.begin(), found_.begin() + std::ptrdiff_t(size));
    return std::span(found_).first(size);
  }

  std::size_t capacity_, gamma_;
  sampling sample_;
  const ngram_counts* documents_;
  ngram_counts text_;
  std::size_t size_ = 0;  // tokens of the text that are known; text_ may still hold later ones
  ngram_counts::histories in_documents_ = ngram_counts::beginning();
  std::vector<double> probability_;  // of each token; 0 between two calls
  std::vector<token_id> found_;      // the tokens of a row before it is cut
  std::vector<T> logits_;            // theirs
  std::vector<token_id> ids_;        // (gamma + 1) x most: the rows of a draft
  std::vector<T> rows_;
};

SPECAGG_END
