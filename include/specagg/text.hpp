// SPDX-License-Identifier: Apache-2.0
// The text that decoders append to, and the operations on the text, the models and the processor
// that all decoders and drafters share.
#pragma once
#include <algorithm>
#include <exception>
#include <span>

#include <specagg/logit_source.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN

// The text of one request: tokens[0..size) of a buffer that is long enough to grow in. The prompt
// comes first, with at least one token. The models may have seen any prefix of the text. Models
// with tokens() (logit_source.hpp) may have seen any text: they are rolled back to the beginning
// that their context and this text have in common. push() of the processor has been called for
// every token of it.
struct text {
  std::span<token_id> tokens;
  std::size_t size = 0;
};

// Appends a token.
void append(text& t, token_id token, auto& processor) {
  t.tokens[t.size] = token;
  (void)processor.push(token);
  ++t.size;
}

// A model or a drafter (draft/drafter.hpp): it holds a prefix of the text and can go back.
template <class M>
concept Follower = requires(M& m, std::size_t n) {
  { m.position() } -> std::convertible_to<std::size_t>;
  { m.rollback(n) } -> std::same_as<status>;
};

// Rolls the models back to n tokens. If a model refuses rollback(n), rollback(0) is called. A
// status other than ok: a model refused both calls. Its rows are of no use until it is back at
// position n or before.
template <Follower... M>
status rollback(std::size_t n, M&... models) {
  status s = status::ok;
  [[maybe_unused]] const auto cut = [n, &s](auto& model) {
    if (model.position() <= n || model.rollback(n) == status::ok) return;
    if (const status refused = model.rollback(0); refused != status::ok) s = refused;
  };
  (cut(models), ...);
  return s;
}

// How many tokens two texts have in common at their beginning. It is asked for at every scoring of
// a long text, so blocks are compared first: std::equal is an order of magnitude faster than token
// by token.
inline std::size_t common_prefix(std::span<const token_id> a, std::span<const token_id> b) {
  constexpr std::size_t block = 256;
  const std::size_t size = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (size - n >= block && std::equal(a.data() + n, a.data() + n + block, b.data() + n))
    n += block;
  while (n < size && a[n] == b[n]) ++n;
  return n;
}

// Cuts the text to n tokens, undoes the processor's later pushes, and rolls the models back (status
// as rollback()).
template <class P, Follower... M>
status truncate(text& t, std::size_t n, P& processor, M&... models) {
  for (; t.size > n; --t.size) processor.pop();
  return specagg::rollback(n, models...);
}

namespace detail {

// The largest size of the text: every model must be able to hold all of it.
template <LogitSource... M>
std::size_t room(const text& t, const M&... models) {
  return std::min({t.tokens.size(), std::size_t(models.capacity())...});
}

// Whether decoding can continue.
template <LogitSource... M>
status ready(const text& t, std::size_t vocabulary, const M&... models) {
  if (t.size == 0 || vocabulary == 0) return status::invalid_parameter;
  if (((std::size_t(models.vocab_size()) != vocabulary) || ...)) return status::vocabulary_mismatch;
  return t.size < detail::room(t, models...) ? status::ok : status::context_full;
}

// Rolls a model back to where its context is a prefix of these tokens, if it says what it holds
// (tokens(), see logit_source.hpp); else to as many tokens as there are. Status as rollback().
status keep_prefix(std::span<const token_id> tokens, LogitSource auto& model) {
  std::size_t n = tokens.size();
  if constexpr (requires { model.tokens(); }) n = specagg::common_prefix(model.tokens(), tokens);
  return specagg::rollback(n, model);
}

// Calls f if its scope is left by an exception.
template <class F>
class on_exception {
 public:
  explicit on_exception(F f) : f_(f) {}
  on_exception(const on_exception&) = delete;
  ~on_exception() {
    if (std::uncaught_exceptions() > before_) f_();
  }

 private:
  F f_;
  int before_ = std::uncaught_exceptions();
};

// The call of a model that score() makes. The model is rolled back to where the rows begin.
template <LogitSource M>
status score_call(std::span<const token_id> tokens, M& model,
                  std::span<typename M::value_type> logits, addition<M>& call) {
  const std::size_t rows = logits.size() / std::size_t(model.vocab_size());
  const status s = detail::keep_prefix(tokens.first(tokens.size() - rows), model);
  call = {&model, tokens.subspan(model.position()), logits};
  return s;
}
// Processes the rows of that call for score().
template <class T, class P>
void process_rows(std::span<const token_id> tokens, std::size_t vocabulary, P& processor,
                  std::span<T> logits) {
  std::size_t pushed = tokens.size();
  const auto push_again = [&] {
    for (; pushed < tokens.size(); ++pushed) (void)processor.push(tokens[pushed]);
  };
  const on_exception restore(push_again);
  for (std::size_t j = logits.size() / vocabulary; j-- > 0;) {
    processor.apply(logits.subspan(j * vocabulary, vocabulary));
    if (j > 0) {
      processor.pop();
      --pushed;
    }
  }
  push_again();
}

}  // namespace detail

// One call of a model. Writes the logits that follow each of the last rows = logits.size() / V
// prefixes of `tokens`, row by row. Each row is processed for its own prefix. The model may have
// seen any prefix of `tokens`, or, if it has tokens(), any text. A row is computed when the token
// before it is fed, so the model is rolled back if it has already passed that token. On entry
// and on return, all of `tokens` have been pushed to the processor.
template <LogitSource M, Processor<typename M::value_type> P>
status score(std::span<const token_id> tokens, M& model, P& processor,
             std::span<typename M::value_type> logits) {
  addition<M> call;
  status s = detail::score_call(tokens, model, logits, call);
  if (s == status::ok) s = model.extend(call.tokens, logits);
  if (s == status::ok) detail::process_rows(tokens, model.vocab_size(), processor, logits);
  return s;
}

SPECAGG_END
