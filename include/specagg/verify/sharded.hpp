// SPDX-License-Identifier: Apache-2.0
// Sharded rows: each of several ranks (threads, processes, devices, hosts) has the logits of a
// shard of the vocabulary, as tensor parallelism leaves them. Every rank calls the same verifier
// with the same arguments and gets the same verdict, with the bits of a whole row. The ranks
// exchange what blocks of 1024 logits sum to, a token's logit, a drawn token: never rows.
//
//   own logits --(normalise: 1 exchange)--> rows --(verifier)--> the same tokens on every rank
//
// One token costs an exchange for each row, one for the weights it is drawn from, one for the token
// and one for its logit in each row that its law reads; a policy with k dependent sums k more. An
// exchange has 16 bytes for each block of a row, 8 for each block of weights, or 8.
#pragma once
#include <span>
#include <type_traits>

#include <specagg/rows/distribution.hpp>
#include <specagg/kernel/select.hpp>
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN

// exchange(own, all) of an E: an all-gather. all[r own.size() ...] becomes what rank r calls `own`,
// on every rank. False if it fails.
template <class E>
concept Exchange = requires(E& exchange, std::span<const double> own, std::span<double> all) {
  { exchange(own, all) } -> std::convertible_to<bool>;
};

// How ranks read rows together (one_thread of kernel/reduce.hpp).
//   begins   [ranks + 1] the first token of each rank's shard; V at the end. Shards begin at
//            multiples of block_size, so that a block has one owner
//   memory   memory_of(begins) doubles, written; it must outlive the rows
// All rows of a verification have the same vocabulary_shards. If an exchange has failed, what a
// verifier returns is worth nothing: ask failed() before you use it.
template <Exchange E>
class vocabulary_shards {
 public:
  vocabulary_shards(E& exchange, std::span<const std::size_t> begins, std::size_t rank,
                    std::span<double> memory)
      : exchange_(&exchange), begins_(begins), rank_(rank), memory_(memory) {}
  static std::size_t memory_of(std::span<const std::size_t> begins) {
    return begins.size() * (most_of_block * widest(begins) + 2);
  }
  // Whether an exchange has failed. Then no further one is tried.
  bool failed() const { return failed_; }
  // Whether shards and memory are as said above.
  bool valid() const {
    bool ok = begins_.size() > 1 && rank_ + 1 < begins_.size() && begins_[0] == 0 &&
              memory_.size() >= memory_of(begins_);
    for (std::size_t r = 0; ok && r + 1 < begins_.size(); ++r)
      ok = begins_[r] <= begins_[r + 1] && begins_[r] % block_size == 0;
    return ok;
  }
  // V, and the tokens [begin, end) of this rank.
  std::size_t vocabulary() const { return begins_.empty() ? 0 : begins_.back(); }
  std::size_t begin() const { return begins_[rank_]; }
  std::size_t end() const { return begins_[rank_ + 1]; }
  // Whether token v is one of them.
  bool owns(std::size_t v) const { return v >= begin() && v < end(); }

  // The members of one_thread, and of a walker (kernel/reduce.hpp): one exchange each.
  template <class Op, class Rows, class F>
  auto reduce(const Rows& rows, const F& f) const {
    return reduce_with<Op>(rows, f, [](std::size_t, const auto&) {});
  }
  // As one_thread's; all blocks are read.
  template <class Rows, class F, class Empty>
  double sum_of_filled(const Rows& rows, const F& f, const Empty&) const {
    return reduce<detail::add>(rows, f);
  }
  // weigh() and can_weigh() of kernel/sample.hpp.
  template <class Rows>
  bool can_weigh(const Rows& rows, std::span<double> block_sums) const {
    return block_sums.size() >= block_count(rows.size());
  }
  // Every rank gets the sums of all blocks.
  template <class Rows, class F>
  weights<Rows, F> weigh(const Rows& rows, F f, std::span<double> block_sums) const {
    const double total =
        reduce_with<detail::add>(rows, f, [&](std::size_t b, double sum) { block_sums[b] = sum; });
    return {rows, f, block_sums.first(block_count(rows.size())), total};
  }
  // The owner of the block looks into it.
  template <class Rows, class F>
  token_id draw(const weights<Rows, F>& w, double u) const {
    return detail::draw_by_blocks(w, u, [&](const detail::place& at) {
      const std::size_t v = at.index * block_size;
      return token_id(from_owner(v, [&] { return double(detail::draw_in_block(w, at)); }));
    });
  }
  // As one_thread's: two exchanges.
  template <class Rows, class F>
  std::size_t largest(const Rows& rows, const F& f) const {
    std::size_t in = 0;
    double top = detail::larger::identity;
    reduce_with<detail::larger>(rows, f, [&](std::size_t b, double x) {
      if (x > top) {
        top = x;
        in = b * block_size;
      }
    });
    if (!(top > detail::larger::identity)) return 0;
    return std::size_t(from_owner(in, [&] {
      using V = vec<typename Rows::value_type, 16>;
      const std::size_t count = count_from(in);
      const auto block = rows.open(in, count);
      for (std::size_t k = 0; k < count; k += 16) {
        const int lanes = count - k < 16 ? int(count - k) : 16;
        typename V::value_type x[16];
        uncontracted(f(block.template operator()<V>(k, lanes))).store(x);
        for (int i = 0; i < lanes; ++i)
          if (double(x[i]) == top) return double(in + k + std::size_t(i));
      }
      return double(in);
    }));
  }
  // race() of verify/coupled.hpp: each rank sends its best contender.
  template <class Rows, class F>
  contender race(const Rows& rows, const F& f, const coupled_noise& noise, std::uint32_t position,
                 contender last) const {
    const contender own = detail::race_in_order(rows, f, noise, position, last, begin(), end());
    const double values[2] = {double(own.token), own.score};
    contender best;
    const std::span<const double> all = gather(values);
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      const contender c{token_id(all[2 * r]), all[2 * r + 1]};
      if (c.token != no_token && (best.token == no_token || before(c, best))) best = c;
    }
    return best;
  }
  // value() of the rank that owns token v; it is called there alone.
  template <class F>
  double from_owner(std::size_t v, const F& value) const {
    const double own[1] = {owns(v) ? value() : 0};
    const std::span<const double> all = gather(own);
    std::size_t r = 0;
    while (v >= begins_[r + 1]) ++r;
    return all[r];
  }
  // use(what rank r has as `own`), for every rank in order.
  template <class Use>
  void each_rank(double own, const Use& use) const {
    const double values[1] = {own};
    for (const double x : gather(values)) use(x);
  }
  // `n` doubles of every block, and one more of every rank: one exchange. own(first token, tokens,
  // out) writes those of a block of this rank, and `more` is its further one. Then use(b, its
  // doubles) is called for every block b of the vocabulary, in order. Returns the further one of
  // token v's owner.
  template <class Own, class Use>
  double blocks(std::size_t n, std::size_t v, double more, const Own& own, const Use& use) const {
    const std::size_t wide = n * widest(begins_) + 1;
    const std::span<double> mine = memory_.first(wide);
    for (std::size_t begins = begin(), i = 0; begins < end(); begins += block_size, ++i)
      own(begins, count_from(begins), mine.data() + n * i);
    mine.back() = more;
    const std::span<const double> all = gather(mine);
    double found = 0;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      for (std::size_t b = begins_[r] / block_size, i = 0; b * block_size < begins_[r + 1];
           ++b, ++i)
        use(b, all.data() + r * wide + n * i);
      if (v >= begins_[r] && v < begins_[r + 1]) found = all[r * wide + wide - 1];
    }
    return found;
  }

 private:
  static constexpr std::size_t most_of_block = 8;  // doubles of a block
  static std::size_t widest(std::span<const std::size_t> begins) {
    std::size_t most = 0;
    for (std::size_t r = 0; r + 1 < begins.size(); ++r)
      most = std::max(most, block_count(begins[r + 1] - begins[r]));
    return most;
  }
  std::size_t count_from(std::size_t begins) const {
    return std::min(vocabulary() - begins, block_size);
  }
  std::span<const double> gather(std::span<const double> own) const {
    const std::span<double> all =
        memory_.subspan(memory_.size() / begins_.size(), own.size() * (begins_.size() - 1));
    failed_ = failed_ || !(*exchange_)(own, all);
    if (failed_) std::fill(all.begin(), all.end(), 0.);
    return all;
  }
  template <class A, class B>
  static double* put(double* at, const both<A, B>& x) {
    return put(put(at, x.first), x.second);
  }
  static double* put(double* at, double x) {
    *at = x;
    return at + 1;
  }
  template <class A, class B>
  static const double* take(const double* at, both<A, B>& x) {
    return take(take(at, x.first), x.second);
  }
  static const double* take(const double* at, double& x) {
    x = *at;
    return at + 1;
  }
  // seen(b, x): what every block is reduced to.
  template <class Op, class Rows, class F, class Seen>
  auto reduce_with(const Rows& rows, const F& f, const Seen& seen) const {
    using D = decltype(specagg::reduce_block_of<Op>(rows, 0, 0, f));
    static_assert(sizeof(D) <= most_of_block * sizeof(double));
    detail::lanes_of_blocks<Op, D> total(block_count(vocabulary()));
    blocks(
        sizeof(D) / sizeof(double), 0, 0,
        [&](std::size_t begins, std::size_t count, double* out) {
          put(out, specagg::reduce_block_of<Op>(rows, begins, count, f));
        },
        [&](std::size_t b, const double* from) {
          D x;
          take(from, x);
          total.add(b, x);
          seen(b, x);
        });
    return total.total();
  }

  E* exchange_;
  std::span<const std::size_t> begins_;
  std::size_t rank_;
  std::span<double> memory_;
  mutable bool failed_ = false;
};

// softmax(logits / temperature) of a sharded row; temperature 0: the largest logit, lowest id.
//   own        the logits of this rank's shard: float, double, bf16 or f16; -inf masks a token
//   expected   a token whose probability will be asked for, such as the drafted one: its logit
//              comes with the first exchange, any other one's with an exchange of its own
// Filters (top-k, top-p, min-p) are not for sharded rows.
template <class S, Exchange E>
class sharded_row {
 public:
  using value_type = computed<S>;
  using T = value_type;
  sharded_row(const S* own, const vocabulary_shards<E>& together, double temperature = 1,
              token_id expected = no_token)
      : own_(own), together_(&together), temperature_(temperature), expected_(expected) {}
  std::size_t size() const { return together_->vocabulary(); }
  const vocabulary_shards<E>& walker() const { return *together_; }

  // What the pass finds.
  struct facts {
    cutoff<T> restriction;  // which tokens are kept
    softmax_factors<T> sampled, at_temperature_1;
    T expected_logit = 0;
    bool confident() const { return at_temperature_1.known(); }
  };
  normalised_row<sharded_row> normalise(bool confidence = false) const {
    return normalised_row<sharded_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool confidence, facts& found) const {
    const bool greedy = !softmax_row<S>::usable(temperature_);
    if (!together_->valid() ||
        (greedy && !(temperature_ >= 0 && temperature_ < detail::least_refused_temperature<T>)))
      return status::invalid_parameter;
    const double temperature = greedy ? 1 : temperature_;
    const auto sum = total(temperature, &found.expected_logit);
    if (together_->failed() || !(sum.total > 0)) return status::invalid_row;
    found.sampled = {sum.max, temperature, sum.total};
    if (temperature == 1) found.at_temperature_1 = found.sampled;
    if (greedy) {
      found.restriction = {sum.max, first_with(sum.max)};
      found.sampled = {sum.max, 1, 1};
    } else if (confidence && temperature != 1) {
      const auto at_1 = total(1, nullptr);
      if (!(at_1.total > 0)) return status::invalid_row;
      found.at_temperature_1 = {at_1.max, 1, at_1.total};
    }
    return status::ok;
  }

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
    template <class V>
    SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      if constexpr (V::lanes == 1) return row.one(known, known.at_temperature_1, {}, begin + k);
      else return at_temperature_1.template operator()<V>(k, lanes);
    }
  };
  // Of a block that this rank owns, or of one token.
  block open(const facts& known, std::size_t begin, std::size_t count) const {
    return {*this, known, begin, part(begin, count, known.sampled, known.restriction),
            part(begin, count, known.at_temperature_1, {})};
  }

 private:
  softmax_block<S> part(std::size_t begin, std::size_t count, const softmax_factors<T>& factors,
                        const cutoff<T>& cut) const {
    softmax_block<S> logits(own_, 0, count, factors, cut);
    if (together_->owns(begin)) logits.logits = own_ + (begin - together_->begin());
    logits.last = cut.last < begin ? T(-1) : T(std::min(cut.last - begin, count));
    return logits;
  }
  double own_logit(std::size_t v) const {
    return double(detail::number(own_[v - together_->begin()]));
  }
  // The probability of token v.
  T one(const facts& known, const softmax_factors<T>& factors, const cutoff<T>& cut,
        std::size_t v) const {
    const T l = v == std::size_t(expected_)
                    ? known.expected_logit
                    : T(together_->from_owner(v, [&] { return own_logit(v); }));
    return cut.keeps(l, v) ? factors(vec<T, 1>(l - factors.max)).v : T(0);
  }
  softmax_sum<T> total(double temperature, T* expected) const {
    const T scale = exp_scale<T>::of_temperature(temperature).high;
    const auto sum = shifted(scale, 0, expected);
    return detail::needs_shift(sum.max, scale) ? shifted(scale, sum.max, nullptr) : sum;
  }
  // As detail::sum_shifted: one exchange.
  softmax_sum<T> shifted(T scale, T shift, T* expected) const {
    using unit = detail::unit_of_sum<T>;
    detail::sum_of_units<T> sum(block_count(size()));
    unit last, highest = unit::of(-std::numeric_limits<T>::infinity());  // of this rank
    const auto v = std::size_t(expected_);
    const double logit = together_->blocks(
        2, v, expected && together_->owns(v) ? own_logit(v) : 0,
        [&](std::size_t begin, std::size_t count, double* out) {
          const auto [own_unit, found] = detail::sum_in_own_unit(part(begin, count, {}, {}), count,
                                                                 scale, shift, last, highest);
          highest.index = std::max(highest.index, own_unit.index);
          out[0] = double(found.max);
          out[1] = found.sum;
        },
        [&](std::size_t b, const double* of_block) {
          const block_sum<T> x{T(of_block[0]), of_block[1]};
          sum.add(b, unit::of(detail::weight_in_unit<T>::exponent(x.max - shift, scale)), x);
        });
    if (expected) *expected = T(logit);
    return sum.total(scale, shift);
  }
  // The first token with this logit, which is the largest one.
  std::size_t first_with(T logit) const {
    double first = double(size());  // of this rank
    for (std::size_t v = together_->begin(); v < together_->end() && first == double(size()); ++v)
      if (own_logit(v) == double(logit)) first = double(v);
    std::size_t found = size();
    together_->each_rank(first, [&](double v) { found = std::min(found, std::size_t(v)); });
    return found;
  }

  const S* own_;
  const vocabulary_shards<E>* together_;
  double temperature_;
  token_id expected_;
};

SPECAGG_END
