// SPDX-License-Identifier: Apache-2.0
// Sharded rows: each of several ranks has the logits of a shard of the vocabulary
// (shards/vocabulary_shards.hpp). Every rank calls the same verifier with the same arguments and
// gets the same verdict, with the bits of a whole row. The ranks exchange sums of blocks of 1024
// logits, single logits, drawn tokens, and tokens that filters may keep, but never rows.
//
//   own logits --(normalise: 1 exchange)--> rows --(verifier)--> the same tokens on every rank
//
// An exchange has these doubles of each rank, or fewer:
//   a row            2 for each block, 2 more, and 1 for each expected token. 3 for each block if
//                    the policy reads the view at temperature 1 and the row has another temperature
//   a drawn token    1 for each block (the sums of the weights), and then 5. (Gumbel-max coupling:
//                    1 for each block, and then 6.)
//   another logit    1
//   a policy's sum   1 for each block
// vocabulary_shards::run() joins the exchanges of many rows, or of many requests, into one.
//
// The filters of a row take further exchanges, R the number of ranks:
//   top-k   for k <= 1024 one of 2 k + 1 and the expected tokens, in place of the row's. For larger
//           k: 3 R of 2048 (double: 6 R), R of 3, and two more of the row
//   top-p   after top-k <= 1024 none. Else one of 3 for each block each time that the range of
//           logits is divided by four (at most 5 times in the test), one of 2, and one of 1 plus
//           twice the listed tokens, at most 4097. If more tokens than a list holds (2048) have
//           nearly the same logit: 3 R of 2048 (double: 6 R), R of 3, and one of the row
//   min-p   one of 1 for each block, and one of the row if it keeps fewer tokens than the other
//           filters
// In an order other than filter_order::hugging_face (rows/sampling.hpp), and of floats:
//   vllm       top-p after min-p takes what it takes alone
//   llama_cpp  one of 1 for each block more, for the kept tokens at the row's temperature, unless
//              top-k <= 1024 was first
//   joint      one of the row more, if it has top-k and top-p
#pragma once
#include <specagg/rows/process.hpp>
#include <specagg/shards/detail/sharded_logits.hpp>

SPECAGG_BEGIN

// A sharded row of logits, as a processed_row (rows/process.hpp) of all of them.
//   own        the logits of this rank's shard: float, double, bf16 or f16; -inf masks a token.
//              Not read, and may be null, if the shard is empty
//   how        temperature and filters
//   expected   one or several tokens whose probabilities will be asked for, such as the drafted
//              token or the children of a tree's node. The logits of at most 8 of them come with
//              the first exchange; any other logit takes an exchange of its own. Every rank gives
//              the same tokens
template <class S>
class sharded_row {
 public:
  using value_type = computed<S>;
  using T = value_type;
  sharded_row() = default;  // no row
  sharded_row(const S* own, vocabulary_shards& together, const sampling& how = {},
              token_id expected = no_token)
      : sharded_row(own, together, how, std::span(&expected, 1)) {}
  sharded_row(const S* own, vocabulary_shards& together, const sampling& how,
              std::span<const token_id> expected)
      : own_(own), together_(&together), how_(how) {
    for (const token_id v : expected)
      if (v >= 0 && expected_.count < expected_.most) expected_.tokens[expected_.count++] = v;
  }
  std::size_t size() const { return together_ ? together_->layout().vocabulary : 0; }
  vocabulary_shards& walker() const { return *together_; }
  // Whether another row can be read with this one: it is whole, or has the same vocabulary_shards.
  template <class R>
  bool fits(const R& other) const {
    if constexpr (Walked<R>) return !together_ || &specagg::walker_of(other) == together_;
    else return true;
  }

  // Whether one token gets all of the probability.
  bool greedy() const { return how_.valid() && !softmax_row<S>::usable(how_.temperature); }

  // For vocabulary_shards: which row this is, and the logit of a token of this rank.
  const void* id() const { return this; }
  T own_logit(std::size_t v) const { return logits(nullptr).at(v); }

  // The results of the pass over the logits.
  struct facts {
    cutoff<T> restriction;  // which tokens are kept
    softmax_factors<T> sampled, at_temperature_1;
    std::array<T, detail::expected_tokens::most> expected_logits = {};
    bool confident() const { return at_temperature_1.known(); }
    detail::weight_in_row<T> weight() const { return {sampled.max, sampled.scale}; }
  };

 protected:
  status find_facts(bool confidence, facts& found) const {
    const bool greedy = !softmax_row<S>::usable(how_.temperature);
    if (!together_->valid() || !how_.valid()) return status::invalid_parameter;
    const auto l = logits(&found.expected_logits);
    if (!greedy && how_.filters(size())) {
      shortlist<T> list;
      const status s = detail::find_kept(l, how_, how_.temperature, list, found);
      if (s != status::ok) return s;
    }
    const status s = find_sums(l, greedy, confidence, found);
    return together_->lacks() ? status::invalid_row : s;
  }

 public:
  struct block {
    const sharded_row& row;
    const facts& known;
    std::size_t begin;
    softmax_block<S> sampled, at_temperature_1;
    template <class V>
    SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      if constexpr (V::lanes == 1)
        return row.one(known, known.sampled, known.restriction, begin + k);
      else return sampled.template operator()<V>(k, lanes);
    }
    template <class V, class F>
    SPECAGG_INLINE V weight(std::size_t k, int lanes, const F& f) const {
      if constexpr (V::lanes == 1) {
        const T l = row.logit(known, begin + k);
        return known.restriction.keeps(l, begin + k) ? f(V(l)) : V(0);
      } else {
        return sampled.template weight<V>(k, lanes, f);
      }
    }
    template <class V>
    SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      if constexpr (V::lanes == 1) return row.one(known, known.at_temperature_1, {}, begin + k);
      else return at_temperature_1.template operator()<V>(k, lanes);
    }
  };
  // The block must be one that this rank owns, unless only single tokens of it are read.
  block open(const facts& known, std::size_t begin, std::size_t count) const {
    const auto l = logits(nullptr);
    return {*this, known, begin, l.block(begin, count, known.sampled, known.restriction),
            l.block(begin, count, known.at_temperature_1, {})};
  }

 private:
  using logits_of_ranks = detail::sharded_logits<S>;
  logits_of_ranks logits(std::array<T, detail::expected_tokens::most>* expected_logits) const {
    return {own_, together_, &expected_, expected_logits};
  }
  // Finds the sums that are not known yet and, at temperature 0, the only token that is kept.
  status find_sums(const logits_of_ranks& l, bool greedy, bool confidence, facts& found) const {
    const double temperature = greedy ? 1 : how_.temperature;
    const bool all = found.restriction.keeps_all(), at_1 = confidence && !found.confident();
    if (!found.sampled.known() && at_1 && temperature != 1 && all) {
      const auto sums = l.sums(std::array{temperature, 1.}, {});
      if (!(sums.at[0].total > 0 && sums.at[1].total > 0)) return status::invalid_row;
      found.sampled = {sums.at[0].max, temperature, sums.at[0].total};
      found.at_temperature_1 = {sums.at[1].max, 1, sums.at[1].total};
      return status::ok;
    }
    if (!found.sampled.known()) {
      const auto sums = l.sums(std::array{temperature}, found.restriction);
      const softmax_sum<T>& sum = sums.at[0];
      if (!(sum.total > 0)) return status::invalid_row;
      found.sampled = {sum.max, temperature, sum.total};
      if (temperature == 1 && all) found.at_temperature_1 = found.sampled;
      if (greedy) {
        found.restriction = {sum.max, sums.first};
        found.sampled = {sum.max, 1, 1};
      }
    }
    if (confidence && !found.confident()) {
      const auto sum = l.sum_exponentials(1);
      if (!(sum.total > 0)) return status::invalid_row;
      found.at_temperature_1 = {sum.max, 1, sum.total};
    }
    return status::ok;
  }
  // The probability of token v.
  T one(const facts& known, const softmax_factors<T>& factors, const cutoff<T>& cut,
        std::size_t v) const {
    const T l = logit(known, v);
    return cut.keeps(l, v) ? factors(vec<T, 1>(l - factors.max)).v : T(0);
  }
  T logit(const facts& known, std::size_t v) const {
    for (std::size_t i = 0; i < expected_.count; ++i)
      if (expected_.tokens[i] == token_id(v)) return known.expected_logits[i];
    return T(together_->logit(*this, v));
  }

  const S* own_ = nullptr;
  vocabulary_shards* together_ = nullptr;
  sampling how_;
  detail::expected_tokens expected_;
};

SPECAGG_END
