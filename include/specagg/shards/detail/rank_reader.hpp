// SPDX-License-Identifier: Apache-2.0
// How a rank reads rows of which other ranks have parts: on the CPU (shards/vocabulary_shards.hpp)
// and with the threads of a device (backend/cuda/shard_log.hpp).
#pragma once
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN
namespace detail {

// The numbers that all ranks gave to one exchange. Or none, if the exchange has still to be made or
// has failed: then every number is 0, and results of it are worthless.
struct gathered {
  const double* first = nullptr;
  std::size_t stride = 0;
  SPECAGG_FUNCTION explicit operator bool() const { return first != nullptr; }
  // Number k of rank r.
  SPECAGG_FUNCTION double operator()(std::size_t r, std::size_t k) const {
    return first ? first[r * stride + k] : 0;
  }
};

// Calls f for every row in shards that `rows` consist of, in the same order on every rank.
template <class Rows, class F>
SPECAGG_FUNCTION void each_in_shards(const Rows& rows, const F& f) {
  if constexpr (requires { rows.own_logit(std::size_t()); }) f(rows);
  else if constexpr (requires { rows.each_row(f); })
    rows.each_row([&](const auto& row) { detail::each_in_shards(row, f); });
}

// Reads that need numbers of other ranks. Each is one exchange. A token comes with its logits, so
// that reading it needs no other exchange. Log, which derives from this class, has
//   next(n, own)   the next exchange, of n doubles of each rank. If the log has it, it is replayed.
//                  Else own(out) records the doubles of this rank, and they are sent, now or later
//   layout()       the tokens of each rank: vocabulary, ranks, begin(), end(), owns(v), owner(v),
//                  first_block(r)
//   writes()       whether this is the thread that writes what own() records
//   refuse()       called if no rank can have given a number
// A row in shards has own_logit(v), for the tokens of this rank, and id(), a RowId that no other
// row of the position has.
template <class Log, class RowId>
class rank_reader {
 public:
  // The next exchange of the log.
  template <class Own>
  SPECAGG_FUNCTION gathered exchange(std::size_t n, const Own& own) {
    forget_logits();
    return self().next(n, own);
  }
  // No token has come.
  SPECAGG_FUNCTION void forget_logits() { told_count_ = 0; }
  // value() of the rank that owns token v. No other rank calls it.
  template <class F>
  SPECAGG_FUNCTION double from_owner(std::size_t v, const F& value) {
    const gathered all = exchange(1, [&](double* out) {
      if (self().layout().owns(v) && self().writes()) *out = value();
    });
    return all(self().layout().owner(v), 0);
  }
  // The logit of token v in a row. No exchange if it has come with the token.
  template <class Row>
  SPECAGG_FUNCTION double logit(const Row& row, std::size_t v) {
    for (unsigned i = 0; i < told_count_ && token_id(v) == told_token_; ++i)
      if (told_rows_[i] == row.id()) return told_logits_[i];
    return from_owner(v, [&] { return double(row.own_logit(v)); });
  }
  // The token that choose() finds on the rank that owns token `of`.
  template <class Rows, class Choose>
  SPECAGG_FUNCTION token_id token_of_owner(const Rows& rows, std::size_t of, const Choose& choose) {
    const gathered all = exchange(1 + most_told, [&](double* out) {
      if (self().layout().owns(of)) record_token(rows, choose(), out);
    });
    const std::size_t owner = self().layout().owner(of);
    const token_id v = token_told(all(owner, 0));
    note_logits(rows, all, owner, v);
    return v;
  }
  // The best contender: among(begin, end) finds that of one rank's tokens.
  template <class Rows, class Among>
  SPECAGG_FUNCTION contender best_contender(const Rows& rows, const Among& among) {
    const gathered all = exchange(2 + most_told, [&](double* out) {
      const contender own = among(self().layout().begin(), self().layout().end());
      record_token(rows, own.token, out);
      if (self().writes()) out[1 + most_told] = own.score;
    });
    contender best;
    std::size_t from = 0;
    for (std::size_t r = 0; r < self().layout().ranks; ++r) {
      const contender c{token_told(all(r, 0)), all(r, 1 + most_told)};
      if (c.token == no_token || (best.token != no_token && !specagg::before(c, best))) continue;
      best = c;
      from = r;
    }
    note_logits(rows, all, from, best.token);
    return best;
  }
  // Number i of the n that the owner of block b gave of it.
  SPECAGG_FUNCTION double of_block(const gathered& all, std::size_t n, std::size_t b,
                                   std::size_t i) const {
    const std::size_t r = self().layout().owner(b * block_size);
    return all(r, n * (b - self().layout().first_block(r)) + i);
  }

  static constexpr unsigned most_told = 4;  // logits that come with a token

 private:
  SPECAGG_FUNCTION Log& self() { return static_cast<Log&>(*this); }
  SPECAGG_FUNCTION const Log& self() const { return static_cast<const Log&>(*this); }
  // no_token also for a number that is no token of the vocabulary.
  SPECAGG_FUNCTION token_id token_told(double x) {
    if (x >= 0 && x < double(self().layout().vocabulary)) return token_id(x);
    if (x != no_token) self().refuse();
    return no_token;
  }
  // Writes token v, which is this rank's, and its logits.
  template <class Rows>
  SPECAGG_FUNCTION void record_token(const Rows& rows, token_id v, double* out) {
    if (!self().writes()) return;
    out[0] = double(v);
    if (v == no_token) return;
    unsigned count = 0;
    detail::each_in_shards(rows, [&](const auto& row) {
      if (count < most_told) out[++count] = double(row.own_logit(std::size_t(v)));
    });
  }
  // Notes the logits of token v, with which rank r gave it, until the next exchange.
  template <class Rows>
  SPECAGG_FUNCTION void note_logits(const Rows& rows, const gathered& all, std::size_t r,
                                    token_id v) {
    if (!all || v == no_token) return;
    told_token_ = v;
    told_logits_ = all.first + r * all.stride + 1;
    detail::each_in_shards(rows, [&](const auto& row) {
      if (told_count_ < most_told) told_rows_[told_count_++] = row.id();
    });
  }

  token_id told_token_ = no_token;
  const double* told_logits_ = nullptr;
  RowId told_rows_[most_told] = {};
  unsigned told_count_ = 0;
};

}  // namespace detail
SPECAGG_END
