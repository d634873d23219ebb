// SPDX-License-Identifier: Apache-2.0
// A row over the target's vocabulary made from a draft's row over a smaller one.
// Proved: proofs/propose.v, `mapped_row_law`.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/rows/process.hpp>

SPECAGG_BEGIN

// q'(ids[i]) = softmax(logits / temperature)_i after the filters, and 0 elsewhere. logits: of the n
// mapped tokens alone. ids: their ids in the target's vocabulary, in the same order; they ascend
// strictly (vocabulary_map::targets()). So the row is masked before its softmax and filtered after:
// q'(to[d]) = q(d) / Z where nothing is filtered. It reads n numbers, not V. The probabilities are
// never stored: a pass over the row costs n exponentials.
template <class S>
class mapped_row {
 public:
  using value_type = computed<S>;
  using T = value_type;
  // The results of the pass over the logits.
  struct facts {
    // Not a base: its ids are those of the draft model's vocabulary.
    normal_form<processed_row<S>> mapped = {};
    bool confident() const { return mapped.confident(); }
    T largest_confidence() const { return mapped.largest_confidence(); }
  };
  mapped_row() = default;
  // status::vocabulary_mismatch from normalise() if ids and logits have different sizes, or the
  // last id is not below V.
  mapped_row(std::span<const token_id> ids, std::span<const S> logits, std::size_t vocabulary,
             const sampling& sample = {})
      : ids_(ids), logits_(logits), sample_(sample), size_(vocabulary) {}

  std::size_t size() const { return size_; }

  struct block : detail::two_blocks<detail::gathered_block<T>> {
    bool empty;
  };
  block open(const facts& known, std::size_t begin, std::size_t count) const {
    const auto place = [&](std::size_t id) {
      return std::size_t(std::lower_bound(ids_.begin(), ids_.end(), token_id(id)) - ids_.begin());
    };
    const std::size_t first = place(begin), n = place(begin + count) - first;
    const auto from = known.mapped.open(first, n);
    const auto filled = [&](bool nothing, auto&& probability) {
      return detail::gathered_block<T>(count, nothing, [&](T* x) {
        for (std::size_t i = 0; i < n; i += 16) {
          const int lanes = int(std::min<std::size_t>(16, n - i));
          alignas(64) T some[16];
          probability(i, lanes).store(some);
          for (std::size_t l = 0; l < std::size_t(lanes); ++l)
            x[std::size_t(ids_[first + i + l]) - begin] = some[l];
        }
      });
    };
    using V = vec<T, 16>;
    return {
        {filled(n == 0,
                [&](std::size_t i, int lanes) { return from.template operator()<V>(i, lanes); }),
         filled(n == 0 || !known.confident(),
                [&](std::size_t i, int lanes) { return from.template confidence<V>(i, lanes); })},
        n == 0};
  }

 protected:
  status find_facts(bool confidence, facts& found) const {
    if (ids_.size() != logits_.size() || (!ids_.empty() && std::size_t(ids_.back()) >= size_))
      return status::vocabulary_mismatch;
    found.mapped = specagg::normalise(processed_row<S>(logits_, sample_), confidence);
    return found.mapped.why();
  }

 private:
  std::span<const token_id> ids_;
  std::span<const S> logits_;
  sampling sample_;
  std::size_t size_ = 0;
};

SPECAGG_END
