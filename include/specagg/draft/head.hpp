// SPDX-License-Identifier: Apache-2.0
// A draft head: a small network that is fed with the target's own hidden states (EAGLE, Li et al.
// 2024, arXiv:2401.15077), as a source of logits.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include <specagg/text.hpp>

SPECAGG_BEGIN

// A head reads pairs: a hidden state of the target, and the token that follows it in the text. Pair
// i is the state after token i, and token i + 1. Its row is the distribution of token i + 2.
//   vocab_size()   the size of its rows, often smaller than the target's vocabulary (a
//                  vocabulary_map joins them)
//   hidden_size()  the width of the target's hidden states
//   capacity(), position(), rollback(n)  as of a LogitSource, counted in pairs
//   extend(tokens, states, logits)  appends pairs. states: tokens.size() x hidden_size(), and may
//                  be hidden(i). Writes the logits of the last logits.size() / vocab_size() of
//                  them. On any status but ok nothing is appended
//   hidden(i)      the head's estimate of the target's hidden state after the token of pair i,
//                  valid until the pair is removed. It replaces that state if the target has not
//                  read so far
template <class H>
concept DraftHead =
    Follower<H> && requires(H& h, const H& c, std::span<const token_id> tokens,
                            std::span<const typename H::value_type> states,
                            std::span<typename H::value_type> logits, std::size_t i) {
      { c.vocab_size() } -> std::convertible_to<std::size_t>;
      { c.hidden_size() } -> std::convertible_to<std::size_t>;
      { c.capacity() } -> std::convertible_to<std::size_t>;
      { h.extend(tokens, states, logits) } -> std::same_as<status>;
      { c.hidden(i) } -> std::convertible_to<std::span<const typename H::value_type>>;
    };

// A head that reads trees of pairs, too, as a TreeSource does:
//   extend_tree(tokens, parents, states, logits)  states[i]: the hidden state before the token of
//                  node i. On any status but ok nothing is appended
//   node_hidden(n) as hidden(i), of node n; empty if it was not appended
//   cut_tree(n)    keeps the first n nodes
//   keep_path(nodes)
template <class H>
concept TreeDraftHead = DraftHead<H> && requires(H& h, const H& c, std::span<const token_id> tokens,
                                                 std::span<const std::uint32_t> nodes,
                                                 std::span<const typename H::value_type> states,
                                                 std::span<typename H::value_type> logits) {
  { h.extend_tree(tokens, nodes, states, logits) } -> std::same_as<status>;
  { c.node_hidden(nodes[0]) } -> std::convertible_to<std::span<const typename H::value_type>>;
  h.cut_tree(nodes.size());
  { h.keep_path(nodes) } -> std::same_as<status>;
};

// The head as a LogitSource that reads the target's tokens; a TreeDraftHead as a TreeSource, too. A
// mapped_drafter or mapped_source (draft/mapped.hpp) around it drafts with it in every decoder.
// Head and target must outlive it, and the target's context must be a prefix of the tokens that it
// is given, or the other way round, as in every decoder.
//   * A pair is read with the target's state if the target has it, else with the head's own. Pairs
//     that were read with the head's own state are read again as soon as the target has read their
//     tokens. Pairs whose state the target was rolled back from are read again with the head's own.
//   * If the target keeps no states of the beginning of the text, the head's context begins at the
//     first state that the target keeps.
//   * A row needs two tokens, and the target must have read the first: else no_draft. A decoder
//     with a policy that reads the draft's row ends there. Give such a decoder a prompt of at
//     least two tokens, all but the last of them read by the target.
// A row is thus a function of the tokens and of how many of them the target has read. This number
// changes between rounds, and before the row for the bonus token. A lossless law is the target's in
// any case. For a policy that reads the draft, q is the row of a head that knows the states up to
// the beginning of the round; for the bonus token, of a head that knows all states that the target
// has read. The constructor allocates all memory except that for trees.
template <DraftHead H, HiddenSource M>
class head_source {
 public:
  using value_type = typename H::value_type;
  head_source(H& head, const M& target)
      : head_(&head), target_(&target), states_(together * head.hidden_size()) {
    tokens_.reserve(capacity());
  }

  std::size_t vocab_size() const { return head_->vocab_size(); }
  std::size_t capacity() const { return std::size_t(head_->capacity()) + 1; }
  std::size_t position() const { return tokens_.size() + nodes_.size(); }
  std::span<const token_id> tokens() const { return tokens_; }

  // vocabulary_mismatch: the target's states have another width. If no rows are wanted, only pairs
  // whose states the target has are read, so give a prompt to the target first.
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    const std::size_t before = tokens_.size(), rows = rows_of(logits);
    if (!nodes_.empty()) return status::invalid_parameter;  // end the tree first
    if (const status s = takes(tokens, logits); s != status::ok) return s;
    if (const status s = forget_lost(); s != status::ok) return s;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    const std::size_t known = known_pairs();
    status s = status::ok;
    if (rows > 0) s = read(known, pairs(), rows, logits);
    else if (known > known_) s = read(known, known, 0, {});
    if (s != status::ok) (void)rollback(before);
    return s;
  }

  // The members of a TreeSource. The context must have a token: else no_draft. A node is read with
  // the target's state after its parent if the target has it, else with the head's own. So nodes at
  // positions that the target has read must be the tokens of its text, one after another. Memory is
  // allocated for a tree that is larger than all before it.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<value_type> logits)
    requires TreeDraftHead<H>
  {
    const std::size_t before = nodes_.size();
    if (parents.size() != tokens.size()) return status::invalid_parameter;
    for (std::size_t i = 0; i < parents.size(); ++i)
      if (parents[i] > before + i) return status::invalid_parameter;
    if (const status s = takes(tokens, logits); s != status::ok) return s;
    if (const status s = before == 0 ? read_context() : status::ok; s != status::ok) return s;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      nodes_.push_back({tokens[i], parents[i] == 0 ? 1 : nodes_[parents[i] - 1].depth + 1, false});
    const status s = read_nodes(tokens, parents, logits, before);
    if (s != status::ok) {
      nodes_.resize(before);
      head_->cut_tree(before);
    }
    return s;
  }
  status keep_path(std::span<const std::uint32_t> nodes)
    requires TreeDraftHead<H>
  {
    if (const status s = head_->keep_path(nodes); s != status::ok) return s;
    for (const std::uint32_t n : nodes) {
      if (nodes_[n - 1].known && known_ == tokens_.size() - 1) ++known_;
      tokens_.push_back(nodes_[n - 1].token);
    }
    nodes_.clear();
    return status::ok;
  }
  status rollback(std::size_t n) {
    nodes_.clear();
    tokens_.resize(std::min(n, tokens_.size()));
    if (pairs() < begin_) {
      begin_ = known_ = 0;
      return head_->rollback(0);
    }
    known_ = std::min(known_, pairs());
    return cut(pairs());
  }

 private:
  static constexpr std::size_t together = 32;  // pairs read in one call

  std::size_t rows_of(std::span<value_type> logits) const {
    return vocab_size() ? logits.size() / vocab_size() : 0;
  }
  status takes(std::span<const token_id> tokens, std::span<value_type> logits) const {
    const std::size_t rows = rows_of(logits);
    if (rows > tokens.size() || rows * vocab_size() != logits.size())
      return status::invalid_parameter;
    if (tokens.size() > capacity() - position()) return status::context_full;
    return std::size_t(target_->hidden_size()) == std::size_t(head_->hidden_size())
               ? status::ok
               : status::vocabulary_mismatch;
  }

  // The part of the logits for the rows [begin, end). The first row of the logits is row first_row.
  std::span<value_type> rows_between(std::size_t begin, std::size_t end, std::size_t first_row,
                                     std::span<value_type> logits) const {
    if (end <= first_row) return {};
    begin = std::max(begin, first_row);
    return logits.subspan((begin - first_row) * vocab_size(), (end - begin) * vocab_size());
  }

  std::size_t pairs() const { return tokens_.empty() ? 0 : tokens_.size() - 1; }
  bool has_state(std::size_t i) const { return !target_->hidden(i).empty(); }
  // Removes the pairs from `pair` on.
  status cut(std::size_t pair) {
    const std::size_t kept = pair - std::min(pair, begin_);
    return kept < std::size_t(head_->position()) ? head_->rollback(kept) : status::ok;
  }

  // Removes the pairs that were read with states which the target has lost by a rollback since
  // then.
  status forget_lost() {
    const std::size_t read = std::max<std::size_t>(begin_, target_->position());
    if (known_ <= read) return status::ok;
    const status s = cut(read);
    if (s == status::ok) known_ = read;
    return s;
  }

  // The end of the pairs from begin_ on whose states the target has, or which were read with them.
  // If states are missing, begin_ moves to the first pair after them.
  std::size_t known_pairs() {
    const std::size_t end = pairs();
    std::size_t known = known_;
    while (known < end && has_state(known)) ++known;
    const std::size_t last = std::min<std::size_t>(end, target_->position());
    if (known == known_ && known < last && has_state(last - 1)) {  // a gap: begin after it
      for (begin_ = last - 1; has_state(begin_ - 1);) --begin_;
      known_ = begin_;
      known = last;
    }
    return known;
  }

  // Reads the pairs before `end` that are not read yet, those before `known` that were not read
  // with the target's states, and those of the wanted rows.
  status read(std::size_t known, std::size_t end, std::size_t rows, std::span<value_type> logits) {
    if (known == begin_ || end < begin_ + rows) return status::no_draft;
    const std::size_t first_row = end - rows;
    std::size_t next = known > known_ ? known_ : begin_ + std::size_t(head_->position());
    next = std::min(next, first_row);
    if (const status s = cut(next); s != status::ok) return s;
    while (next < end) {
      const std::size_t n = next < known ? std::min(together, known - next) : 1,
                        w = head_->hidden_size();
      for (std::size_t i = 0; i < n; ++i) {
        const auto state =
            next < known ? target_->hidden(next + i) : head_->hidden(next - 1 - begin_);
        std::copy_n(state.begin(), w, states_.begin() + std::ptrdiff_t(i * w));
      }
      const auto own = rows_between(next, next + n, first_row, logits);
      const status s = head_->extend(std::span(tokens_).subspan(next + 1, n),
                                     std::span(states_).first(n * w), own);
      if (s != status::ok) return s;
      next += n;
      if (next <= known) known_ = std::max(known_, next);
    }
    return status::ok;
  }

  // Reads all pairs of the context, so that a tree can begin after it.
  status read_context() {
    if (tokens_.empty()) return status::no_draft;
    if (const status s = forget_lost(); s != status::ok) return s;
    const std::size_t end = pairs();
    const status s = end > 0 ? read(known_pairs(), end, 0, {}) : status::ok;
    if (s != status::no_draft || !has_state(end)) return s;
    begin_ = known_ = end;  // the first state that the target has
    return head_->rollback(0);
  }

  // The state before a child of this node, if it is there: of the target (`known`), or the head's
  // own.
  std::span<const value_type> state_after(std::uint32_t node, bool& known) const {
    const std::size_t end = tokens_.size() - 1, i = end + (node == 0 ? 0 : nodes_[node - 1].depth);
    known = has_state(i);
    if (known) return target_->hidden(i);
    if (node > 0) return head_->node_hidden(node);
    return end > begin_ ? head_->hidden(end - 1 - begin_) : std::span<const value_type>();
  }

  // Reads the nodes after the first `before`. One call of the head reads nodes whose states are
  // there before the call.
  status read_nodes(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                    std::span<value_type> logits, std::size_t before) {
    const std::size_t w = head_->hidden_size(), first_row = tokens.size() - rows_of(logits);
    for (std::size_t next = 0, n; next < tokens.size(); next += n) {
      for (n = 0; n < together && next + n < tokens.size(); ++n) {
        const auto state = state_after(parents[next + n], nodes_[before + next + n].known);
        if (state.empty()) break;
        std::copy_n(state.begin(), w, states_.begin() + std::ptrdiff_t(n * w));
      }
      if (n == 0) return status::no_draft;
      const auto own = rows_between(next, next + n, first_row, logits);
      const status s = head_->extend_tree(tokens.subspan(next, n), parents.subspan(next, n),
                                          std::span<const value_type>(states_).first(n * w), own);
      if (s != status::ok) return s;
    }
    return status::ok;
  }

  struct read_node {
    token_id token;
    std::uint32_t depth;  // 1: a child of the context
    bool known;           // read with the target's state
  };

  H* head_;
  const M* target_;
  std::vector<token_id> tokens_;
  std::vector<read_node> nodes_;  // of a tree
  std::vector<value_type> states_;
  std::size_t begin_ = 0;  // the first pair that the head has read
  std::size_t known_ = 0;  // the pairs before it were read with the target's states
};

SPECAGG_END
