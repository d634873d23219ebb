// SPDX-License-Identifier: Apache-2.0
// How often each token followed each short history of a text: the counts of an n-gram model.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <specagg/token.hpp>

SPECAGG_BEGIN

// A history is the last k tokens before a token, k = 0 .. order - 1. Tokens are appended one by
// one, to one text or to several documents. Each token is counted after each of its histories, and
// no history crosses the end of a document. A node stands for a string of at most `order` tokens
// that occurs: a history and the token after it. A token costs O(order) and adds at most `order`
// nodes of 28 bytes, each with 8 to 16 bytes to find it: at most 220 bytes at order 5, and less if
// strings repeat. reserve(n) allocates for n tokens, and then push() allocates nothing for the
// first n.
class ngram_counts {
 public:
  using index = std::uint32_t;
  static constexpr index none = 0xffffffffu;
  static constexpr std::size_t usual_order = 5, most_order = 8;  // the default, and the largest

  // The node of the last k tokens of a text, for k = 0 .. order - 1; none if they do not occur, or
  // the text is shorter.
  using histories = std::array<index, most_order>;
  // The histories at the beginning of a text: the empty one alone.
  static constexpr histories beginning() {
    histories h{};
    for (std::size_t k = 1; k < h.size(); ++k) h[k] = none;
    return h;
  }

  // order: 2 to most_order; a number outside counts as the nearest of them.
  explicit ngram_counts(std::size_t order = usual_order, std::size_t capacity = 0)
      : order_(std::clamp<std::size_t>(order, 2, most_order)) {
    reserve(capacity);
    clear();
  }
  void reserve(std::size_t tokens) {
    nodes_.reserve(order_ * tokens + 1);
    std::size_t slots = 16;
    while (slots < 2 * (order_ * tokens + 1)) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }
  // Forgets all tokens, and keeps the memory.
  void clear() {
    nodes_.assign(1, node{});
    size_ = 0;
    std::fill(slots_.begin(), slots_.end(), none);
    end_document();
  }
  std::size_t order() const { return order_; }
  std::size_t size() const { return size_; }  // tokens

  // The next tokens belong to another document.
  void end_document() { suffix_ = beginning(); }
  void push(token_id t) {
    histories longer = beginning();
    for (std::size_t k = 0; k < order_ && suffix_[k] != none; ++k) {
      const index n = counted(suffix_[k], t);
      if (k + 1 < order_) longer[k + 1] = n;
    }
    suffix_ = longer;
    ++size_;
  }

  // The histories of the token that follows the document so far.
  const histories& suffix() const { return suffix_; }
  // The histories after one more token t, which is not counted.
  histories step(const histories& h, token_id t) const {
    histories longer = beginning();
    for (std::size_t k = 0; k + 1 < order_; ++k)
      longer[k + 1] = h[k] == none ? none : find(h[k], t);
    return longer;
  }

  // followed(): c(h), how many tokens followed the history h. kinds(): N1+(h), how many different
  // tokens did. count(): c(h t), how often t did. All are 0 if h is none.
  std::size_t followed(index h) const { return h == none ? 0 : nodes_[h].followed; }
  std::size_t kinds(index h) const { return h == none ? 0 : nodes_[h].kinds; }
  std::size_t count(index h, token_id t) const {
    const index n = h == none ? none : find(h, t);
    return n == none ? 0 : nodes_[n].count;
  }
  // Calls f(t, c(h t)) for each token t that followed h.
  void for_each(index h, auto&& f) const {
    for (index n = h == none ? none : nodes_[h].first; n != none; n = nodes_[n].next)
      f(nodes_[n].token, nodes_[n].count);
  }

 private:
  struct node {
    index history = none;  // that `token` followed,
    token_id token = no_token;
    index count = 0;                // so many times
    index followed = 0, kinds = 0;  // the tokens that followed this string
    // a list of the strings one token longer; the next in the list that this is in
    index first = none, next = none;
  };

  index counted(index h, token_id t) {
    index n = find(h, t);
    if (n == none) {
      if (2 * (nodes_.size() + 1) > slots_.size()) rehash(2 * slots_.size());
      n = index(nodes_.size());
      nodes_.push_back({h, t, 0, 0, 0, none, nodes_[h].first});
      nodes_[h].first = n;
      ++nodes_[h].kinds;
      slots_[slot(h, t)] = n;
    }
    ++nodes_[n].count;
    ++nodes_[h].followed;
    return n;
  }

  // Strings are found by hashing: the slot of a string, or the empty one where it belongs.
  std::size_t slot(index h, token_id t) const {
    std::uint64_t x = (std::uint64_t(h) << 32 | std::uint32_t(t)) * 0x9E3779B97F4A7C15u;
    for (x ^= x >> 32;; ++x) {
      const index n = slots_[x & (slots_.size() - 1)];
      if (n == none || (nodes_[n].history == h && nodes_[n].token == t))
        return x & (slots_.size() - 1);
    }
  }
  index find(index h, token_id t) const { return slots_[slot(h, t)]; }
  void rehash(std::size_t slots) {
    slots_.assign(slots, none);
    for (index n = 1; n < nodes_.size(); ++n) slots_[slot(nodes_[n].history, nodes_[n].token)] = n;
  }

  std::size_t order_, size_ = 0;
  std::vector<node> nodes_;   // the first is the empty string
  std::vector<index> slots_;  // a power of two
  histories suffix_;
};

SPECAGG_END
