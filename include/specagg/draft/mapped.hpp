// SPDX-License-Identifier: Apache-2.0
// A draft model of another vocabulary, as one of the target's: as a LogitSource, which every
// decoder takes, and as a drafter with sparse rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include <specagg/draft/drafter.hpp>
#include <specagg/draft/mapped_row.hpp>
#include <specagg/draft/vocabulary_map.hpp>

SPECAGG_BEGIN

// mapped_source and mapped_drafter take a source that reads tokens of the target's vocabulary and
// gives rows of the draft's:
//   * a retokenising_source (draft/retokenised.hpp): a model with a tokenizer of its own
//   * a draft head of the target's own tokens with a reduced vocabulary (`d2t`): the head itself
// Source and map must outlive them. q'(to[d]) = q(d) / Z, Z the sum of q over mapped tokens (Timor
// et al. 2025, arXiv:2502.05202). If no mapped token has mass there is no row: no_draft.
// vocabulary_mismatch: the source's rows do not have the map's size.

// A LogitSource over the target's vocabulary. Its logits are the draft's at mapped tokens and -inf
// elsewhere, so processors, temperature and filters act after the mask. The memory of one row is
// allocated by the constructor. A TreeSource stays one. A call with more rows than all before it
// allocates memory for them. If a node's row has no mass at mapped tokens, -inf is written
// everywhere, and nothing can be drawn from the row.
template <LogitSource S>
class mapped_source {
 public:
  using value_type = typename S::value_type;
  mapped_source(S& source, const vocabulary_map& map)
      : source_(&source), map_(&map), logits_(map.draft_size()) {}

  std::size_t vocab_size() const { return map_->target_size(); }
  std::size_t capacity() const { return source_->capacity(); }
  std::size_t position() const { return source_->position(); }
  std::span<const token_id> tokens() const
    requires requires(const S& s) { s.tokens(); }
  {
    return source_->tokens();
  }
  status rollback(std::size_t n) { return source_->rollback(n); }
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    if (std::size_t(source_->vocab_size()) != map_->draft_size())
      return status::vocabulary_mismatch;
    const std::size_t v = vocab_size(), rows = v ? logits.size() / v : 0, before = position();
    if (rows > tokens.size() || (v && logits.size() % v != 0)) return status::invalid_parameter;
    if (rows == 0) return source_->extend(tokens, {});
    const auto own = std::span(logits_).first(map_->draft_size());
    std::size_t read = 0;
    for (std::size_t j = 0; j < rows; ++j) {
      const std::size_t until = tokens.size() - rows + j + 1;
      const std::span<value_type> row = logits.subspan(j * v, v);
      status s = source_->extend(tokens.subspan(read, until - read), own);
      if (s == status::ok && !map_row(own, row)) s = status::no_draft;
      if (s != status::ok) {
        (void)specagg::rollback(before, *source_);
        return s;
      }
      read = until;
    }
    return status::ok;
  }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<value_type> logits)
    requires TreeSource<S>
  {
    if (std::size_t(source_->vocab_size()) != map_->draft_size())
      return status::vocabulary_mismatch;
    const std::size_t v = vocab_size(), d = map_->draft_size(), rows = v ? logits.size() / v : 0;
    if (rows > tokens.size() || (v && logits.size() % v != 0)) return status::invalid_parameter;
    if (logits_.size() < rows * d) logits_.resize(rows * d);
    const auto own = std::span(logits_).first(rows * d);
    if (const status s = source_->extend_tree(tokens, parents, own); s != status::ok) return s;
    for (std::size_t j = 0; j < rows; ++j)
      (void)map_row(own.subspan(j * d, d), logits.subspan(j * v, v));
    return status::ok;
  }
  status keep_path(std::span<const std::uint32_t> nodes)
    requires TreeSource<S>
  {
    return source_->keep_path(nodes);
  }
  // The mean of Z over all rows so far; 0 if there was none.
  double mass() const { return rows_ > 0 ? mass_ / double(rows_) : 0; }

 private:
  bool map_row(std::span<const value_type> own, std::span<value_type> row) {
    const bool any = map_logits<value_type>(*map_, own, row);
    if (const double z = any ? mass_kept<value_type>(own, row) : double(NAN); z <= 1 + 1e-3) {
      mass_ += z;
      ++rows_;
    }
    return any;
  }

  S* source_;
  const vocabulary_map* map_;
  std::vector<value_type> logits_;
  double mass_ = 0;
  std::size_t rows_ = 0;
};

// A drafter whose rows are mapped_row, for a draft vocabulary that is smaller than the target's.
// Otherwise like model_drafter. gamma: the most tokens drafted in a round. All memory is allocated
// by the constructor: draft_size() and (gamma + 1) x size() logits, and V for a processor, which is
// applied to the row in the target's vocabulary. (With no_processor, or with penalties that are all
// off, no loop is over V.)
template <LogitSource S>
class mapped_drafter {
 public:
  using T = typename S::value_type;
  using row_type = normal_form<mapped_row<T>>;
  mapped_drafter(S& source, const vocabulary_map& map, std::size_t gamma,
                 const sampling& sample = {})
      : source_(&source),
        map_(&map),
        sample_(sample),
        logits_(map.draft_size()),
        row_(map.target_size()),
        rows_((gamma + 1) * map.size()) {}

  std::size_t vocab_size() const { return map_->target_size(); }
  std::size_t position() const { return source_->position(); }
  status rollback(std::size_t n) { return source_->rollback(n); }

  status next(const draft_position& at, auto& processor, row_type& row, double& confidence) {
    row = row_type();
    confidence = 0;
    const std::size_t n = at.tokens.size(), kept = map_->size();
    if (std::size_t(source_->vocab_size()) != map_->draft_size())
      return status::vocabulary_mismatch;
    if (kept == 0) return status::no_draft;
    if (n > std::size_t(source_->capacity())) return status::context_full;
    if (rows_.size() < (at.drafted + 1) * kept) return status::invalid_parameter;
    if (const status s = detail::keep_prefix(at.tokens.first(n - 1), *source_); s != status::ok)
      return s;
    if (const status s = source_->extend(at.tokens.subspan(source_->position()), logits_);
        s != status::ok)
      return s;
    const std::span<T> mapped = std::span(rows_).subspan(at.drafted * kept, kept);
    if (changes_nothing(processor)) {
      for (std::size_t i = 0; i < kept; ++i) mapped[i] = logits_[std::size_t(map_->drafts()[i])];
    } else {
      (void)map_logits<T>(*map_, logits_, row_);
      processor.apply(std::span(row_));
      for (std::size_t i = 0; i < kept; ++i) mapped[i] = row_[std::size_t(map_->targets()[i])];
    }
    if (std::all_of(mapped.begin(), mapped.end(), [](T l) { return is_masked(l); }))
      return status::no_draft;
    const mapped_row<T> made(map_->targets(), mapped, vocab_size(), sample_);
    row = specagg::normalise(made, at.confidence);
    if (at.confidence && row.why() == status::ok) confidence = double(row.largest_confidence());
    return row.why();
  }

 private:
  template <class P>
  static bool changes_nothing(const P& processor) {
    if constexpr (requires { processor.none(); }) return processor.none();
    else return std::is_same_v<P, no_processor>;
  }

  S* source_;
  const vocabulary_map* map_;
  sampling sample_;
  std::vector<T> logits_, row_, rows_;
};

SPECAGG_END
