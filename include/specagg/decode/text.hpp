// SPDX-License-Identifier: Apache-2.0
// The text that decoders append to, and what all of them do with it, their models and the processor.
#pragma once
#include <algorithm>
#include <exception>
#include <span>

#include <specagg/logit_source.hpp>
#include <specagg/process.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// The text of one request: tokens[0..size) of a buffer that has room to grow, prompt first, at least one token. The
// models may have seen any prefix of it; the processor has been pushed all of it.
struct text {
  std::span<token_id> tokens;
  std::size_t size = 0;
};

// The size it can grow to: every model must be able to see all of it.
template <LogitSource... M>
std::size_t room(const text& t, const M&... models) {
  return std::min({t.tokens.size(), std::size_t(models.capacity())...});
}

// Whether decoding can go on.
template <LogitSource... M>
status ready(const text& t, std::size_t vocabulary, const M&... models) {
  if (t.size == 0) return status::invalid_parameter;
  if (((std::size_t(models.vocab_size()) != vocabulary) || ...)) return status::vocabulary_mismatch;
  return t.size < room(t, models...) ? status::ok : status::context_full;
}

// Appends a token.
template <class P>
void append(text& t, token_id token, P& processor) {
  t.tokens[t.size] = token;
  processor.push(token);
  ++t.size;
}

// Takes back what models know beyond n tokens. A model that refuses to go back to n is asked to forget everything. Not
// ok: one refused that, too; its rows are of no use until it is back at n or before.
template <LogitSource... M>
status keep(std::size_t n, M&... models) {
  status s = status::ok;
  [[maybe_unused]] const auto cut = [n, &s](auto& model) {
    if (model.position() <= n || model.rollback(n) == status::ok) return;
    if (const status refused = model.rollback(0); refused != status::ok) s = refused;
  };
  (cut(models), ...);
  return s;
}

// Cuts the text to n tokens and takes back what the processor and the models know beyond (status: as keep).
template <class P, LogitSource... M>
status truncate(text& t, std::size_t n, P& processor, M&... models) {
  for (; t.size > n; --t.size) processor.pop();
  return keep(n, models...);
}

// Calls f when its scope is left by an exception that a model or a processor threw.
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

// One call of a model: the logits that follow each of the last rows = logits.size() / V prefixes of `tokens`, row by
// row, each processed as its prefix demands. The model may have seen any prefix of `tokens`; a row comes from feeding
// the token before it, so what stands in the way of that is rolled back. The processor has been pushed all of `tokens`,
// and is so again when this returns.
template <LogitSource M, class P>
status score(std::span<const token_id> tokens, M& model, P& processor, std::span<typename M::value_type> logits) {
  const std::size_t vocabulary = model.vocab_size(), rows = logits.size() / vocabulary, first = tokens.size() - rows;
  if (const status s = keep(first, model); s != status::ok) return s;
  if (const status s = model.extend(tokens.subspan(model.position()), logits); s != status::ok) return s;
  std::size_t pushed = tokens.size();
  const auto push_again = [&] {
    for (; pushed < tokens.size(); ++pushed) processor.push(tokens[pushed]);
  };
  const on_exception restore(push_again);
  for (std::size_t j = rows; j-- > 0;) {
    processor.apply(logits.subspan(j * vocabulary, vocabulary));
    if (j > 0) processor.pop(), --pushed;
  }
  push_again();
  return status::ok;
}

// Rounds until `most` tokens were appended, the text ended, accept(emission) said false (that token is the last one
// kept; whatever the round emitted behind it is taken back), or a round could not go on.
//   round(left)  appends at most `left` tokens, writes their emissions, and returns {emitted, why}
//   cut(n)       takes the text and everybody who follows it back to n tokens; the status of truncate
template <class Round, class Cut, class Accept>
status decode_rounds(text& t, std::size_t most, const end_tokens& end_of_text, std::span<const emission> emissions,
                     Round&& round, Cut&& cut, Accept&& accept) {
  for (std::size_t left = most; left > 0;) {
    const std::size_t before = t.size;
    const auto result = round(left);
    for (std::size_t i = 0; i < result.emitted; ++i) {
      if (accept(emissions[i]) && !end_of_text.contains(emissions[i].token)) continue;
      return cut(before + i + 1);
    }
    if (result.why != status::ok) return result.why;
    left -= result.emitted;
  }
  return status::ok;
}

SPECAGG_END
