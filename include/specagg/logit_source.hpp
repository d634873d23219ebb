// SPDX-License-Identifier: Apache-2.0
// A model, as the decoders see it: it appends tokens to its context and can remove them again.
#pragma once
#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <specagg/token.hpp>

SPECAGG_BEGIN

//   vocab_size()            V
//   capacity()              the number of tokens that the context can hold
//   position()              the number of tokens that it holds now
//   extend(tokens, logits)  appends the tokens. Writes the logits that follow each of the last
//                           logits.size() / V of them, row by row (V each), into the caller's
//                           memory. On any status but ok nothing is appended. `logits` may be empty
//                           (prefill).
//   rollback(position)      removes all tokens from that position on, and returns ok. Cheap for a
//                           model with a KV cache. A model that cannot do it (a recurrent state
//                           that was not kept) returns another status and removes nothing. The
//                           decoders then call rollback(0) and feed the whole text again. If that
//                           is refused too, the decoder ends with that status. Must not throw.
// A source may also say what its context is:
//   tokens()                the tokens of its context, in order; without the nodes of a tree that
//                           has not ended
// Then the decoders roll it back to the beginning that its context and their text have in common.
// If a source has no tokens(), the decoders know its position alone. Before such a source gets
// another text, or a text that was changed before its position, the caller must roll it back.
// Otherwise its rows follow the text before, and no status says so.
//
// If extend() throws, the exception reaches the decoder's caller. The text and the processor then
// hold the verified tokens, and the models hold no more than these. Speculative decoding equals the
// target exactly only if a row does not depend on how the tokens were grouped into calls.
template <class S>
concept LogitSource = requires(S& s, const S& c, std::span<const token_id> tokens,
                               std::span<typename S::value_type> logits, std::size_t n) {
  { c.vocab_size() } -> std::convertible_to<std::size_t>;
  { c.capacity() } -> std::convertible_to<std::size_t>;
  { c.position() } -> std::convertible_to<std::size_t>;
  { s.extend(tokens, logits) } -> std::same_as<status>;
  { s.rollback(n) } -> std::same_as<status>;
};

// A model that can score a tree of tokens in one call (verify/tree.hpp): every node attends to the
// context and its own ancestors, so the node's row is the same as after its path alone.
//   extend_tree(tokens, parents, logits)  appends nodes to a tree after the context, which begins
//                           with the first call. Nodes count from 1 in the order in which they were
//                           appended; node i follows node parents[i] before it, 0: the context.
//                           Writes the logits that follow each of the last logits.size() / V nodes
//                           of this call. position() counts all nodes. On any status but ok nothing
//                           is appended
//   keep_path(nodes)        ends the tree: keeps these nodes, each a child of the node before, the
//                           first a child of the context, and removes the others. On any status but
//                           ok the tree is as it was
// rollback() to where the tree began, or before, removes all of it. Other calls in between are not
// allowed.
template <class S>
concept TreeSource = LogitSource<S> && requires(S& s, std::span<const token_id> tokens,
                                                std::span<const std::uint32_t> nodes,
                                                std::span<typename S::value_type> logits) {
  { s.extend_tree(tokens, nodes, logits) } -> std::same_as<status>;
  { s.keep_path(nodes) } -> std::same_as<status>;
};

// A model that also gives its hidden states, for a draft head (draft/head.hpp).
//   hidden_size()  the width of a hidden state
//   hidden(i)      the hidden state after token i of the context, as hidden_size() numbers: after
//                  the model's final norm, so the output matrix times it is the row that extend()
//                  gives there. It is a function of the tokens up to i. Empty if the model does not
//                  have it: it was not asked to keep it, it has it of its last call alone, or the
//                  token is a node of a tree that has not ended. The memory is the model's, and
//                  stays as it is until the next call of a member that is not const
template <class S>
concept HiddenSource = LogitSource<S> && requires(const S& c, std::size_t i) {
  { c.hidden_size() } -> std::convertible_to<std::size_t>;
  { c.hidden(i) } -> std::convertible_to<std::span<const typename S::value_type>>;
};

// The part of one text in a call for several texts: extend(tokens, logits), or with parents
// extend_tree(tokens, parents, logits).
template <class S>
struct addition {
  S* to = nullptr;
  std::span<const token_id> tokens = {};
  std::span<typename S::value_type> logits = {};
  std::span<const std::uint32_t> parents = {};
  status why = status::ok;  // written by the call
};
// A model that appends to several texts, each of them a source, in one call: it reads its weights
// once for all.
//   S::extend(all)  does what each addition says, as if in turn. Writes the status of each into its
//                   `why`, and returns the first that is not ok. If one is refused, the others are
//                   appended all the same. invalid_parameter, too: a source that stands in `all`
//                   before, or shares too little with the first to be in a call with it
template <class S>
concept BatchLogitSource = LogitSource<S> && requires(std::span<addition<S>> all) {
  { S::extend(all) } -> std::same_as<status>;
};

namespace detail {

// Whether the source of an addition stands in `all` before.
template <class S>
bool again(std::span<addition<S>> all, addition<S>& a) {
  return std::any_of(all.data(), &a, [&](const addition<S>& before) { return before.to == a.to; });
}
template <class S>
status first_failure(std::span<addition<S>> all) {
  for (const addition<S>& a : all)
    if (a.why != status::ok) return a.why;
  return status::ok;
}

}  // namespace detail

// Makes the additions of any sources: in one call if S has one (BatchLogitSource), else in turn.
// The additions have no parents.
template <LogitSource S>
status extend_all(std::span<addition<S>> all) {
  if constexpr (BatchLogitSource<S>) return S::extend(all);
  for (addition<S>& a : all) a.why = a.to->extend(a.tokens, a.logits);
  return detail::first_failure(all);
}

// Wraps a model, which must outlive it; counts its calls and the tokens in them, and measures their
// time in seconds. calls_of[n], seconds_of[n], fastest_of[n]: number, time and shortest time of the
// calls that appended n tokens (n >= `most` = 63 together).
template <LogitSource S>
class metered {
 public:
  using value_type = typename S::value_type;
  explicit metered(S& source) : source_(&source) {}
  std::size_t vocab_size() const { return source_->vocab_size(); }
  std::size_t capacity() const { return source_->capacity(); }
  std::size_t position() const { return source_->position(); }
  std::span<const token_id> tokens() const
    requires requires(const S& s) { s.tokens(); }
  {
    return source_->tokens();
  }
  status rollback(std::size_t position) { return source_->rollback(position); }
  status extend(std::span<const token_id> tokens, std::span<value_type> logits) {
    return measured(tokens, [&] { return source_->extend(tokens, logits); });
  }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<value_type> logits)
    requires TreeSource<S>
  {
    return measured(tokens, [&] { return source_->extend_tree(tokens, parents, logits); });
  }
  status keep_path(std::span<const std::uint32_t> nodes)
    requires TreeSource<S>
  {
    return source_->keep_path(nodes);
  }

  static constexpr std::size_t most = 63;
  std::size_t calls = 0, tokens_in = 0;  // tokens_in: in all calls
  double seconds = 0;
  std::size_t calls_of[most + 1] = {};
  double seconds_of[most + 1] = {}, fastest_of[most + 1] = {};

 private:
  status measured(std::span<const token_id> tokens, auto&& call) {
    const auto start = std::chrono::steady_clock::now();
    const status s = call();
    const double t =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::size_t n = tokens.size() < most ? tokens.size() : most;
    ++calls;
    tokens_in += tokens.size();
    seconds += t;
    ++calls_of[n];
    seconds_of[n] += t;
    if (t < fastest_of[n] || calls_of[n] == 1) fastest_of[n] = t;
    return s;
  }

  S* source_;
};

SPECAGG_END
