// SPDX-License-Identifier: Apache-2.0
// A draft head: a small network that is fed with the target's own hidden states (EAGLE, Li et al. 2024,
// arXiv:2401.15077), as a source of logits.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include <specagg/decode/text.hpp>

SPECAGG_BEGIN

// A head reads pairs: a hidden state of the target, and the token that follows it in the text. Pair i is the state
// after token i and token i + 1; its row is that of token i + 2.
//   vocab_size()   the size of its rows, often smaller than the target's vocabulary (a vocabulary_map joins them)
//   hidden_size()  the width of the target's hidden states
//   capacity(), position(), rollback(n)  as of a LogitSource, counted in pairs
//   extend(tokens, states, logits)  appends pairs. states: tokens.size() x hidden_size(), and may be hidden(i). Writes
//                  the logits of the last logits.size() / vocab_size() of them. On any status but ok nothing is
//                  appended
//   hidden(i)      what the head takes the target's hidden state after the token of pair i to be, until the pair is
//                  removed. It stands for that state where the target has not read so far
template <class H>
concept DraftHead = Follower<H> && requires(H& h, const H& c, std::span<const token_id> tokens,
                                            std::span<const typename H::value_type> states,
                                            std::span<typename H::value_type> logits, std::size_t i) {
  { c.vocab_size() } -> std::convertible_to<std::size_t>;
  { c.hidden_size() } -> std::convertible_to<std::size_t>;
  { c.capacity() } -> std::convertible_to<std::size_t>;
  { h.extend(tokens, states, logits) } -> std::same_as<status>;
  { c.hidden(i) } -> std::convertible_to<std::span<const typename H::value_type>>;
};

// The head as a LogitSource that reads the target's tokens: a mapped_drafter or mapped_source (draft/mapped.hpp) around
// it drafts with it in every decoder. Head and target must outlive it, and the target's context must be a prefix of the
// tokens that it is given, or the other way round, as in every decoder.
//   * A pair is read with the target's state where the target has it, and with the head's own otherwise. Pairs that
//     were read with the head's own are read again as soon as the target has read their tokens.
//   * Where the target keeps no states of the beginning of the text, the head's context begins where they begin.
//   * A row needs two tokens, of which the target has read the first: else no_draft. A decoder with a rule that reads
//     the draft's row ends there, so give it a prompt of two tokens, all but the last of them read by the target.
// So a row is a function of the tokens and of how many of them the target has read. That changes between rounds alone:
// a lossless law is the target's; for a rule that reads the draft, q is the row of a head that knows the states up to
// the beginning of the round. The constructor allocates all memory.
template <DraftHead H, HiddenSource M>
class head_source {
 public:
  using value_type = typename H::value_type;
  head_source(H& head, const M& target) : head_(&head), target_(&target), states_(together * head.hidden_size()) {
    tokens_.reserve(capacity());
  }

  std::size_t vocab_size() const { return head_->vocab_size(); }
  std::size_t capacity() const { return std::size_t(head_->capacity()) + 1; }
  std::size_t position() const { return tokens_.size(); }

  // vocabulary_mismatch: the target's states have another width. Nothing is computed where no rows are wanted.
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    const std::size_t before = tokens_.size(), v = vocab_size(), rows = v ? logits.size() / v : 0;
    if (rows > tokens.size() || rows * v != logits.size()) return status::invalid_parameter;
    if (tokens.size() > capacity() - before) return status::context_full;
    if (std::size_t(target_->hidden_size()) != std::size_t(head_->hidden_size())) return status::vocabulary_mismatch;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    const status s = rows > 0 ? read(rows, logits) : status::ok;
    if (s != status::ok) (void)rollback(before);
    return s;
  }
  status rollback(std::size_t n) {
    tokens_.resize(std::min(n, tokens_.size()));
    const std::size_t pairs = tokens_.empty() ? 0 : tokens_.size() - 1;
    if (pairs < begin_) {
      begin_ = known_ = 0;
      return head_->rollback(0);
    }
    known_ = std::min(known_, pairs);
    return cut(pairs);
  }

 private:
  static constexpr std::size_t together = 32;  // pairs read in one call

  bool has_state(std::size_t i) const { return !target_->hidden(i).empty(); }
  // Removes the pairs from `pair` on.
  status cut(std::size_t pair) {
    const std::size_t kept = pair - std::min(pair, begin_);
    return kept < std::size_t(head_->position()) ? head_->rollback(kept) : status::ok;
  }

  // Reads the pairs that are not read, or not with the target's states, and those of the wanted rows.
  status read(std::size_t rows, std::span<value_type> logits) {
    const std::size_t end = tokens_.size() - 1, v = vocab_size();  // pairs
    std::size_t known = known_;                                    // those before it: with the target's states
    while (known < end && has_state(known)) ++known;
    if (const std::size_t last = std::min<std::size_t>(end, target_->position());
        known == known_ && known < last && has_state(last - 1)) {  // there is a gap: begin behind it
      for (begin_ = last - 1; has_state(begin_ - 1);) --begin_;
      known_ = begin_, known = last;
    }
    if (known == begin_ || end < begin_ + rows) return status::no_draft;
    const std::size_t first_row = end - rows;
    std::size_t next = known > known_ ? known_ : begin_ + std::size_t(head_->position());
    next = std::min(next, first_row);
    if (const status s = cut(next); s != status::ok) return s;
    while (next < end) {
      const std::size_t n = next < known ? std::min(together, known - next) : 1, w = head_->hidden_size();
      for (std::size_t i = 0; i < n; ++i) {
        const auto state = next < known ? target_->hidden(next + i) : head_->hidden(next - 1 - begin_);
        std::copy_n(state.begin(), w, states_.begin() + std::ptrdiff_t(i * w));
      }
      const std::size_t from = std::max(next, first_row), wanted = next + n - std::min(from, next + n);
      const auto own = logits.subspan((from - first_row) * (wanted > 0 ? v : 0), wanted * v);
      const status s = head_->extend(std::span(tokens_).subspan(next + 1, n), std::span(states_).first(n * w), own);
      if (s != status::ok) return s;
      next += n;
      if (next <= known) known_ = std::max(known_, next);
    }
    return status::ok;
  }

  H* head_;
  const M* target_;
  std::vector<token_id> tokens_;
  std::vector<value_type> states_;
  std::size_t begin_ = 0;  // the first pair that the head has read
  std::size_t known_ = 0;  // the pairs before it were read with the target's states
};

SPECAGG_END
