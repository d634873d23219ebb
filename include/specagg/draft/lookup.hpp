// SPDX-License-Identifier: Apache-2.0
// Drafts without a model: the token that followed the same tokens before.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/draft/drafter.hpp>
#include <specagg/draft/suffix_automaton.hpp>

SPECAGG_BEGIN

// Proposes, with probability 1, the token that followed the longest suffix of the text and its
// draft that
//   * is at least `least` tokens long (at most the last documents.longest() tokens are compared; 32
//     without documents)
//   * occurs in the text without the draft, or in a document, and some token follows it there
// If the suffix occurs several times, the most recent occurrence is continued; documents given
// later are more recent. If the longest suffix in the text and the longest one in the documents are
// equally long, the text decides. The token is a function of documents, text and draft. The
// confidence grows with the length of the suffix, up to 16 tokens.
//
// Each token of the text is read once, and drafted tokens are never entered, so a round forgets
// nothing. If the text itself is cut, the next call reads it again from its beginning.
template <class T = float>
class lookup_drafter {
 public:
  using row_type = normal_form<one_hot_row<T>>;
  // capacity: the longest text; allocated here, and nothing is allocated later. It proposes nothing
  // in a longer text (context_full). documents, if given, must outlive the object and stay as they
  // are; any number of drafters may share them. Tokens of documents that are not below `vocabulary`
  // are never proposed.
  lookup_drafter(std::size_t vocabulary, std::size_t capacity,
                 const suffix_automaton* documents = nullptr, std::size_t least = 2)
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

  status next(const draft_position& at, auto& /*processor*/, row_type& row, double& confidence) {
    using index = suffix_automaton::index;
    const std::size_t n = at.tokens.size() - at.drafted;
    if (n > capacity_) return status::context_full;
    const found f = find(at);
    const index length = std::max(f.in_text.length, f.in_documents.length);
    if (length < least_) return status::no_draft;
    const token_id next =
        f.own() ? text_[f.in_text.position] : (*documents_)[f.in_documents.position];
    row = specagg::normalise(one_hot_row<T>(next, vocabulary_));
    confidence = (double(std::min<index>(length, 16)) - 0.5) / 16;
    return row.why() == status::ok ? status::ok : status::no_draft;
  }

  // For a tree of drafts (decode/tree.hpp): all tokens that followed that suffix, the most frequent
  // first. Among equally frequent tokens, the one that next() proposes stands first, then the lower
  // ids. Writes as many as there is room for, and returns how many.
  std::size_t continuations(const draft_position& at, std::span<token_id> out) {
    if (at.tokens.size() - at.drafted > capacity_) return 0;
    const found f = find(at);
    if (std::max(f.in_text.length, f.in_documents.length) < least_) return 0;
    const std::size_t n = f.own() ? text_.all_that_follow(f.text, out)
                                  : documents_->all_that_follow(f.documents, out);
    const auto ours = out.first(n);
    const auto end = std::remove_if(ours.begin(), ours.end(), [this](token_id t) {
      return t < 0 || std::size_t(t) >= vocabulary_;
    });
    return std::size_t(end - ours.begin());
  }

 private:
  // The longest suffixes of the text and its draft that occur, and what followed them.
  struct found {
    suffix_automaton::match text, documents;
    suffix_automaton::continuation in_text, in_documents;
    bool own() const { return in_text.length >= in_documents.length; }
  };
  found find(const draft_position& at) {
    const std::size_t n = at.tokens.size() - at.drafted;
    read(at.tokens.first(n));
    found f{text_.suffix(), in_documents_, {}, {}};
    for (const token_id y : at.tokens.subspan(n)) {  // the draft is followed, not entered
      f.text = text_.step(f.text, y);
      if (documents_) f.documents = documents_->step(f.documents, y);
    }
    f.in_text = text_.follows(f.text);
    if (documents_) f.in_documents = documents_->follows(f.documents);
    return f;
  }
  void read(std::span<const token_id> text) {
    if (size_ < text_.size()) {
      text_.clear();
      size_ = 0;
      in_documents_ = {};
    }  // it was cut
    for (; size_ < text.size(); ++size_) {
      text_.push(text[size_]);
      if (documents_) in_documents_ = documents_->step(in_documents_, text[size_]);
    }
  }

  std::size_t vocabulary_, capacity_, least_;
  const suffix_automaton* documents_;
  suffix_automaton text_;
  // tokens of the text that are known; text_ may still hold later ones
  std::size_t size_ = 0;
  suffix_automaton::match in_documents_;  // the longest suffix of the text that occurs there
};

SPECAGG_END
