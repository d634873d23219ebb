// SPDX-License-Identifier: Apache-2.0
// The part of a LogitSource (logit_source.hpp) that adapters of engines share. An adapter says how
// the engine is called once; this keeps the tokens, checks them, and divides them into calls.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <specagg/half.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// An engine with one text in its context. Neither function may throw.
//   vocab_size()            V
//   capacity()              the number of tokens that its context can hold
//   most()                  the number of tokens that a call takes, at least 1
//   rows_of_all()           whether a call gives the row of each of its tokens. False: that of the
//                           last one alone
//   call(text, from, rows)  appends the tokens text[from], text[from + 1], ...; the context holds
//                           those before. Writes the logits after each of the last rows.size() / V
//                           tokens, V each
//   cut(position)           removes the tokens from there on. Any status but ok: nothing was
//                           removed. Position 0 is never refused
template <class E>
concept Engine = requires(E& e, const E& c, std::span<const token_id> text, std::span<float> rows,
                          std::size_t n) {
  { c.vocab_size() } -> std::convertible_to<std::size_t>;
  { c.capacity() } -> std::convertible_to<std::size_t>;
  { c.most() } -> std::convertible_to<std::size_t>;
  { c.rows_of_all() } -> std::convertible_to<bool>;
  { e.call(text, n, rows) } -> std::same_as<status>;
  { e.cut(n) } -> std::same_as<status>;
};

namespace detail {

// Why a source cannot append these tokens, with the rows of the last `rows` of them. room: how many
// it can.
inline status refusal(std::span<const token_id> tokens, std::size_t rows, std::size_t vocab,
                      std::size_t room) {
  if (rows > tokens.size()) return status::invalid_parameter;
  if (tokens.size() > room) return status::context_full;
  const auto known = [&](token_id t) { return t >= 0 && std::size_t(t) < vocab; };
  return std::all_of(tokens.begin(), tokens.end(), known) ? status::ok : status::token_out_of_range;
}

// Copies stored logits (float, f16, bf16), which a float holds without error.
template <class S>
void copy_logits(const void* from, std::span<float> to) {
  std::transform(static_cast<const S*>(from), static_cast<const S*>(from) + to.size(), to.data(),
                 [](S x) { return number(x); });
}

}  // namespace detail

// A LogitSource. It makes its engine of the constructor's arguments.
template <Engine E>
class engine_source {
 public:
  using value_type = float;

  template <class... Arguments>
    requires std::constructible_from<E, Arguments...>
  explicit engine_source(Arguments&&... arguments)
      : engine_(std::forward<Arguments>(arguments)...) {
    text_.reserve(capacity());
  }

  std::size_t vocab_size() const { return engine_.vocab_size(); }
  std::size_t capacity() const { return engine_.capacity(); }
  std::size_t position() const { return text_.size(); }
  std::span<const token_id> tokens() const { return text_; }

  // If a call fails in the middle, and the engine cannot remove the tokens of the calls before, all
  // tokens are forgotten: position() is 0.
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    const std::size_t V = vocab_size(), rows = logits.size() / V, before = text_.size();
    if (rows * V != logits.size()) return status::invalid_parameter;
    if (const status s = detail::refusal(tokens, rows, V, capacity() - before); s != status::ok)
      return s;
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    const std::size_t first_row = text_.size() - rows;  // the first token with a row
    for (std::size_t at = before; at < text_.size();) {
      std::size_t end = std::min(text_.size(), at + engine_.most());
      if (!engine_.rows_of_all()) end = std::min(end, std::max(at, first_row) + 1);
      const std::size_t from = std::max(at, first_row), given = end - std::min(end, from);
      const auto to =
          given == 0 ? std::span<float>() : logits.subspan((from - first_row) * V, given * V);
      if (const status s = engine_.call(std::span(text_).first(end), at, to); s != status::ok) {
        text_.resize(engine_.cut(before) == status::ok ? before : 0);
        if (text_.empty()) (void)engine_.cut(0);
        return s;
      }
      at = end;
    }
    return status::ok;
  }

  // The status of a refusal is the engine's. Position 0 is never refused.
  status rollback(std::size_t position) {
    if (position >= text_.size()) return status::ok;
    const status s = engine_.cut(position);
    if (s == status::ok) text_.resize(position);
    return s;
  }

 private:
  E engine_;
  std::vector<token_id> text_;
};

SPECAGG_END
