// SPDX-License-Identifier: Apache-2.0
// A site's documents as one model: one source of logits for each document. The mixture of their
// rows is the site's row.
//
//   p^s(v) = sum_d softmax_d(R(d)) p(v | d, text)      (mix_documents)
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <specagg/sites/aggregate.hpp>
#include <specagg/text.hpp>

SPECAGG_BEGIN
namespace sites {

// Computes the documents one after the other. A caller with threads passes another function.
struct in_order {
  template <class Body>
  void operator()(std::size_t count, Body&& body) const {
    for (std::size_t i = 0; i < count; ++i) body(i);
  }
};

// The documents are sources that have already seen their document, so the text begins at the
// position() of each source. A site without documents passes one source that has seen nothing, with
// relevance 0. From then on only the mixture may use the sources; it remembers what each source has
// seen. So see() accepts any text in any order, also after a call that failed or was stopped, and
// its rows are a function of text and relevance alone. Memory is allocated here, and none in see().
//   rows_at_once   the largest number of rows per call; memory: documents x rows_at_once x V
template <LogitSource S>
class document_mixture {
 public:
  using value_type = typename S::value_type;
  explicit document_mixture(std::span<S> documents, std::size_t rows_at_once = 1)
      : documents_(documents),
        rows_at_once_(rows_at_once),
        seen_(documents.size()),
        why_(documents.size()),
        logits_(documents.size() * rows_at_once *
                (documents.empty() ? 0 : documents[0].vocab_size())),
        rows_(documents.size()),
        scratch_(2 * documents.size()),
        even_(documents.size()) {
    for (std::size_t d = 0; d < documents.size(); ++d) {
      begin_.push_back(documents[d].position());
      seen_[d].reserve(documents[d].capacity() - begin_[d]);
    }
  }

  std::size_t size() const { return documents_.size(); }
  std::size_t vocab_size() const { return documents_[0].vocab_size(); }
  // The number of text tokens that fit after every document.
  std::size_t capacity() const {
    std::size_t n = std::numeric_limits<std::size_t>::max();
    for (std::size_t d = 0; d < size(); ++d) n = std::min(n, documents_[d].capacity() - begin_[d]);
    return n;
  }

  // Computes the rows after the last k tokens of the text, k = h.size(). k = 0 only feeds the text.
  //   relevance   R(d) for each row, k x documents, in nats; -inf leaves a document out of a row
  //   logits      k x V: ln p^s. If all documents are left out: the plain mean, which must get no
  //               weight
  //   h           k: ln sum_d e^R(d), -inf if all are left out
  //   for_each    for_each(n, body) calls body(0) .. body(n - 1), on any threads, and returns when
  //               all are done
  // On any status but ok (stopped, context_full ...; if several documents have one, the first),
  // logits and h have no meaning. The next call continues with what was already computed.
  template <class ForEach = in_order>
  status see(std::span<const token_id> text, std::span<const double> relevance,
             std::span<value_type> logits, std::span<double> h, const ForEach& for_each = {}) {
    const std::size_t n = size(), rows = h.size(), V = n == 0 ? 0 : vocab_size();
    if (n == 0 || rows > text.size() || relevance.size() != rows * n || logits.size() != rows * V)
      return status::invalid_parameter;
    for (std::size_t done = 0, some; done < rows || done == 0; done += some) {
      some = std::min(rows - done, rows_at_once_);
      const auto now = text.first(text.size() - rows + done + some);
      for_each(n, [&](std::size_t d) {
        why_[d] = bring(d, now, std::span(logits_).subspan(d * rows_at_once_ * V, some * V));
      });
      for (const status s : why_)
        if (s != status::ok) return s;
      for (std::size_t row = 0; row < some; ++row) {
        for (std::size_t d = 0; d < n; ++d)
          rows_[d] = std::span<const value_type>(logits_).subspan((d * rows_at_once_ + row) * V, V);
        const auto out = logits.subspan((done + row) * V, V);
        const auto share = mix(relevance.subspan((done + row) * n, n), out);
        if (share.why != status::ok) return share.why;
        h[done + row] = share.h;
        const bool left_out = share.h == -std::numeric_limits<double>::infinity();
        if (const status s = left_out ? mix(even_, out).why : status::ok; s != status::ok) return s;
      }
      if (rows == 0) break;
    }
    return status::ok;
  }

 private:
  // Tokens per call, so that a call that is stopped during a long text keeps what it has done.
  static constexpr std::size_t part_ = 64;

  // Feeds the text to document d, and computes the rows after its last tokens.
  status bring(std::size_t d, std::span<const token_id> text, std::span<value_type> rows) {
    auto& seen = seen_[d];
    // rows begin at this position
    const std::size_t wanted = text.size() - rows.size() / vocab_size();
    const auto end = seen.begin() + std::ptrdiff_t(std::min(seen.size(), wanted));
    const auto kept = std::mismatch(seen.begin(), end, text.begin()).first;
    const status back = documents_[d].rollback(begin_[d] + std::size_t(kept - seen.begin()));
    // a state that only knows its beginning
    if (back == status::rollback_refused && begin_[d] == 0) {
      if (const status s = documents_[d].rollback(0); s != status::ok) return s;
      seen.clear();
    } else {
      if (back != status::ok) return back;
      seen.erase(kept, seen.end());
    }
    while (seen.size() < text.size()) {
      const auto left = text.subspan(seen.size());
      const bool last = left.size() <= part_ || seen.size() >= wanted;
      const auto part = last ? left : left.first(std::min(part_, wanted - seen.size()));
      const status s = documents_[d].extend(part, last ? rows : std::span<value_type>());
      if (s != status::ok) return s;
      seen.insert(seen.end(), part.begin(), part.end());
    }
    return status::ok;
  }

  site_share mix(std::span<const double> relevance, std::span<value_type> out) {
    return mix_documents<value_type>(rows_, relevance, out, scratch_);
  }

  std::span<S> documents_;
  std::size_t rows_at_once_;
  std::vector<std::size_t> begin_;           // where the text begins
  std::vector<std::vector<token_id>> seen_;  // of the text
  std::vector<status> why_;
  std::vector<value_type> logits_;  // documents x rows_at_once x V
  std::vector<std::span<const value_type>> rows_;
  std::vector<value_type> scratch_;
  std::vector<double> even_;  // relevance 0 for each
};

// A site as a model for decoders (a LogitSource): its documents' mixture, and the text it has seen.
//   relevance(text, R)  writes R(d) of every document after this text, in nats; -inf leaves it
//                       out. It is called for each row, so it may follow the text (dynamic weights)
// extend() allocates if it is asked for more rows than ever before.
template <LogitSource S, class Relevance>
class site_source {
 public:
  using value_type = typename S::value_type;
  // documents: as for document_mixture, which alone may use them from now on.
  site_source(std::span<S> documents, Relevance relevance, std::size_t rows_at_once = 1)
      : mixture_(documents, rows_at_once), relevance_(std::move(relevance)) {
    text_.reserve(mixture_.capacity());
  }

  std::size_t vocab_size() const { return mixture_.vocab_size(); }
  std::size_t capacity() const { return mixture_.capacity(); }
  std::size_t position() const { return text_.size(); }
  std::span<const token_id> tokens() const { return text_; }
  // ln sum_d e^R(d) of the last row that was computed: what weigh_sites() takes.
  double h() const { return h_.empty() ? 0 : h_[rows_ - 1]; }

  status rollback(std::size_t n) {
    text_.resize(std::min(n, text_.size()));
    return status::ok;
  }
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    const std::size_t rows = logits.size() / vocab_size(), n = mixture_.size();
    if (rows > tokens.size()) return status::invalid_parameter;
    if (text_.size() + tokens.size() > capacity()) return status::context_full;
    const std::size_t before = text_.size();
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    const specagg::detail::on_exception restore([&] { text_.resize(before); });
    const std::span<const token_id> text = text_;
    if (rows > h_.size()) {
      h_.resize(rows);
      scores_.resize(rows * n);
    }
    for (std::size_t j = 0; j < rows; ++j)
      relevance_(text.first(text.size() - rows + j + 1), std::span(scores_).subspan(j * n, n));
    const status s =
        mixture_.see(text, std::span(scores_).first(rows * n), logits, std::span(h_).first(rows));
    if (rows > 0) rows_ = rows;
    if (s != status::ok) text_.resize(before);
    return s;
  }

 private:
  document_mixture<S> mixture_;
  Relevance relevance_;
  std::vector<token_id> text_;
  std::vector<double> scores_, h_;  // of each row of a call
  std::size_t rows_ = 0;            // of the last call that asked for rows
};

}  // namespace sites
SPECAGG_END
