// SPDX-License-Identifier: Apache-2.0
// Drafts that cost no model: what followed the same tokens before.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/draft/drafter.hpp>
#include <specagg/draft/suffix_automaton.hpp>

SPECAGG_BEGIN

// Proposes, with probability 1, the token that followed the longest suffix of the text and its draft that
//   * is at least `least` tokens long (of longer ones the last documents.longest() or 32 tokens are compared)
//   * occurs in the text without the draft, or in a document, and some token follows it there
// Of a suffix that occurs several times in the text, the most recent occurrence is continued; likewise in the
// documents, where the last one given is the most recent. If the longest suffix in the text and that in the documents
// are equally long, the text decides. It is a function of documents, text and draft. The confidence grows with the
// length of the suffix: 16 tokens or more are the most.
//
// It reads each token of the text once, and drafted tokens are never entered; so a round forgets nothing. Where the
// text itself is cut, it is read again from its beginning when the drafter is asked next.
template <class T = float>
class lookup_drafter {
 public:
  using row_type = one_hot_row<T>;
  // capacity: the longest text; allocated here, and nothing is allocated later. In a longer text it proposes nothing
  // (context_full). documents, if given, must outlive the object and stay as they are; any number of drafters may share
  // them. Tokens of documents that are not below `vocabulary` are never proposed.
  lookup_drafter(std::size_t vocabulary, std::size_t capacity, const suffix_automaton* documents = nullptr,
                 std::size_t least = 2)
      : vocabulary_(vocabulary),
        capacity_(capacity),
        least_(std::max<std::size_t>(least, 1)),
        documents_(documents),
        text_(capacity, documents ? documents->longest() : 32) {}

  std::size_t vocab_size() const { return vocabulary_; }
  std::size_t position() const { return size_; }
  status rollback(std::size_t n) {
    size_ = std::min(size_, n);
    return status::ok;
  }

  template <class P>
  status next(const draft_position& at, P& /*processor*/, row_type& row, double& confidence) {
    using index = suffix_automaton::index;
    const std::size_t n = at.tokens.size() - at.drafted;
    if (n > capacity_) return status::context_full;
    read(at.tokens.first(n));
    suffix_automaton::match in_text = text_.suffix(), in_documents = in_documents_;
    for (const token_id y : at.tokens.subspan(n)) {  // the draft is followed, not entered
      in_text = text_.step(in_text, y);
      if (documents_) in_documents = documents_->step(in_documents, y);
    }
    const auto of_text = text_.follows(in_text);
    const auto of_documents = documents_ ? documents_->follows(in_documents) : suffix_automaton::continuation();
    const bool own = of_text.length >= of_documents.length;
    const index length = own ? of_text.length : of_documents.length;
    if (length < least_) return status::no_draft;
    row = row_type(own ? text_[of_text.position] : (*documents_)[of_documents.position], vocabulary_);
    confidence = (double(std::min<index>(length, 16)) - 0.5) / 16;
    return row.normalise() == status::ok ? status::ok : status::no_draft;
  }

 private:
  void read(std::span<const token_id> text) {
    if (size_ < text_.size()) text_.clear(), size_ = 0, in_documents_ = {};  // it was cut
    for (; size_ < text.size(); ++size_) {
      text_.push(text[size_]);
      if (documents_) in_documents_ = documents_->step(in_documents_, text[size_]);
    }
  }

  std::size_t vocabulary_, capacity_, least_;
  const suffix_automaton* documents_;
  suffix_automaton text_;
  std::size_t size_ = 0;                  // tokens of the text that are known; text_ may still hold later ones
  suffix_automaton::match in_documents_;  // the longest suffix of the text that occurs there
};

SPECAGG_END
