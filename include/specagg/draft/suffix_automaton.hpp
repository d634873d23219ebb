// SPDX-License-Identifier: Apache-2.0
// A suffix automaton over token ids: which strings occur in a text, and what followed each of them
// most recently.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/token.hpp>

SPECAGG_BEGIN

// Tokens are appended one by one (Blumer et al. 1985), to one text or to several documents; no
// string crosses the end of a document. A state stands for all strings that end at the same
// positions. Only strings of at most `longest` tokens have a known continuation, so a token costs
// O(longest) at worst, and amortised O(1) but for marking what it continues. A text of n tokens has
// at most 2 n states and 3 n transitions: reserve(n) allocates for them, and then push() allocates
// nothing for the first n tokens. 120 to 150 bytes a token.
class suffix_automaton {
 public:
  using index = std::uint32_t;
  static constexpr index none = 0xffffffffu;

  // A string that occurs: its state and its length. The empty string is in state 0.
  struct match {
    index state = 0, length = 0;
  };
  // The token that followed the most recent occurrence of a string: its position among the tokens.
  // length: the string's.
  struct continuation {
    index position = none, length = 0;
  };

  explicit suffix_automaton(std::size_t capacity = 0, index longest_match = 32)
      : longest_(std::max(longest_match, 1u)) {
    reserve(capacity);
    clear();
  }
  // Allocates for so many tokens: push() then allocates nothing for them.
  void reserve(std::size_t tokens) {
    tokens_.reserve(tokens);
    states_.reserve(2 * tokens + 1);
    edges_.reserve(3 * tokens + 1);
    std::size_t slots = 16;
    while (slots < 6 * tokens) slots *= 2;
    if (slots > slots_.size()) rehash(slots);
  }
  // Forgets all tokens, and keeps the memory.
  void clear() {
    tokens_.clear();
    edges_.clear();
    states_.assign(1, state{});
    std::fill(slots_.begin(), slots_.end(), none);
    whole_ = 0;
    suffix_ = {};
  }
  std::size_t size() const { return tokens_.size(); }
  index longest() const { return longest_; }
  token_id operator[](std::size_t position) const { return tokens_[position]; }

  // The next tokens belong to another document.
  void end_document() {
    whole_ = 0;
    suffix_ = {};
  }
  void push(token_id t) {
    for (index v = suffix_.state; v != 0; v = states_[v].link)
      states_[v].next = index(tokens_.size());
    tokens_.push_back(t);
    whole_ = extended(whole_, t);
    for (index v = suffix_.state; v != 0; v = states_[v].link) ++edges_[find(v, t)].count;
    suffix_ = step(suffix_, t);
  }

  // The longest suffix, of at most `longest` tokens, of the document so far.
  match suffix() const { return suffix_; }
  // The longest suffix of m's string and t, of at most `longest` tokens, that occurs.
  match step(match m, token_id t) const {
    m = shortened(m, longest_ - 1);
    for (;;) {
      if (const index e = find(m.state, t); e != none) return {edges_[e].target, m.length + 1};
      if (m.state == 0) return {};
      m.state = states_[m.state].link;
      m.length = states_[m.state].length;
    }
  }
  // The continuation of the longest suffix of m's string that some token follows; {none, 0} if that
  // is the empty string.
  continuation follows(match m) const {
    m = followed(m);
    return m.state == 0 ? continuation{} : continuation{states_[m.state].next, m.length};
  }
  // All tokens that followed this suffix: writes as many as there is room for, and returns how
  // many. The most frequent one stands first. Among equally frequent tokens, the one that followed
  // last stands first, then the lower ids.
  std::size_t all_that_follow(match m, std::span<token_id> out) const {
    m = followed(m);
    if (m.state == 0) return 0;
    const token_id last = tokens_[states_[m.state].next];
    const auto before = [&](const edge& a, const edge& b) {
      if (a.count != b.count) return a.count > b.count;
      return (a.token == last) != (b.token == last) ? a.token == last : a.token < b.token;
    };
    std::size_t n = 0;
    // the first one that stands after those found
    for (const edge* after = nullptr; n < out.size(); ++n) {
      const edge* best = nullptr;
      for (index e = states_[m.state].edges; e != none; e = edges_[e].more)
        if (const edge& one = edges_[e]; one.count > 0 && (!after || before(*after, one)))
          if (!best || before(one, *best)) best = &one;
      if (!best) break;
      out[n] = best->token;
      after = best;
    }
    return n;
  }

 private:
  struct state {
    // next: where a token followed last; edges: a list
    index length = 0, link = none, next = none, edges = none;
  };
  struct edge {
    index from;
    token_id token;
    index target, more;
    index count = 0;  // how often the token followed strings of the state
  };

  // The longest suffix of m's string that some token follows.
  match followed(match m) const {
    while (m.state != 0 && states_[m.state].next == none) {
      m.state = states_[m.state].link;
      m.length = states_[m.state].length;
    }
    return m;
  }

  // A suffix of m's string, of at most `length` tokens, in its own state (a state may have been
  // split meanwhile).
  match shortened(match m, index length) const {
    m.length = std::min(m.length, length);
    while (m.state != 0 && states_[states_[m.state].link].length >= m.length)
      m.state = states_[m.state].link;
    return m;
  }

  // The state of a document and t, where `last` is that of the document.
  index extended(index last, token_id t) {
    // as in a document before
    if (const index e = find(last, t); e != none) return exact(last, t, edges_[e].target);
    const index added = add({states_[last].length + 1, 0, none, none});
    index v = last;
    for (; v != none; v = states_[v].link) {
      if (const index e = find(v, t); e != none) {
        const index link = exact(v, t, edges_[e].target);
        states_[added].link = link;
        break;
      }
      connect(v, t, added);
    }
    return added;
  }
  // q, which v's strings lead to by t, if it ends with v's longest string and t; else what is split
  // off for it.
  index exact(index v, token_id t, index q) {
    if (states_[q].length == states_[v].length + 1) return q;
    const index split = add({states_[v].length + 1, states_[q].link, states_[q].next, none});
    for (index e = states_[q].edges; e != none; e = edges_[e].more)
      connect(split, edges_[e].token, edges_[e].target, edges_[e].count);
    states_[q].link = split;
    for (index e; v != none && edges_[e = find(v, t)].target == q; v = states_[v].link)
      edges_[e].target = split;
    return split;
  }
  index add(state s) {
    states_.push_back(s);
    return index(states_.size() - 1);
  }
  void connect(index from, token_id t, index target, index count = 0) {
    if (2 * (edges_.size() + 1) > slots_.size()) rehash(2 * slots_.size());
    edges_.push_back({from, t, target, states_[from].edges, count});
    states_[from].edges = index(edges_.size() - 1);
    slots_[slot(from, t)] = states_[from].edges;
  }

  // Transitions are found by hashing: the slot of an edge, or the empty one where it belongs.
  std::size_t slot(index from, token_id t) const {
    std::uint64_t h = (std::uint64_t(from) << 32 | std::uint32_t(t)) * 0x9E3779B97F4A7C15u;
    for (h ^= h >> 32;; ++h) {
      const index e = slots_[h & (slots_.size() - 1)];
      if (e == none || (edges_[e].from == from && edges_[e].token == t))
        return h & (slots_.size() - 1);
    }
  }
  index find(index from, token_id t) const { return slots_[slot(from, t)]; }
  void rehash(std::size_t slots) {
    slots_.assign(slots, none);
    for (index e = 0; e < edges_.size(); ++e) slots_[slot(edges_[e].from, edges_[e].token)] = e;
  }

  index longest_;
  std::vector<token_id> tokens_;
  std::vector<state> states_;
  std::vector<edge> edges_;
  std::vector<index> slots_;  // a power of two
  index whole_ = 0;           // the state of the document so far
  match suffix_;
};

SPECAGG_END
