// SPDX-License-Identifier: Apache-2.0
// The vocabulary in shards, one for each rank (thread, process, device, host), as tensor
// parallelism leaves logits. The ranks read rows together by the members of one_thread
// (kernel/reduce.hpp). Each member takes one exchange, unless its comment names more, and returns
// the bits of one_thread.
#pragma once
#include <algorithm>
#include <span>
#include <type_traits>

#include <specagg/verify/coupled.hpp>
#include <specagg/verify/detail/exchange_log.hpp>

SPECAGG_BEGIN

// exchange(own, all) is an all-gather: on every rank, all[r own.size() ...] becomes the `own` of
// rank r. It returns false if it fails. The two spans do not overlap.
template <class E>
concept Exchange = requires(E& exchange, std::span<const double> own, std::span<double> all) {
  { exchange(own, all) } -> std::convertible_to<bool>;
};

// One rank's part in reading rows together with the other ranks.
//   begins   [ranks + 1] the first token of each rank's shard; V at the end. Shards begin at
//            multiples of block_size, so that a block has one owner. A shard may be empty, and then
//            begin at V
//   memory   at least memory_of(begins) doubles, equally many on every rank, which are written
// The exchange and both spans must outlive the object, and the object must outlive the rows. All
// rows of a verification have the same object. If an exchange has failed, a verifier's result is
// worthless: ask failed() before you use it. Wrong numbers from an exchange may make wrong tokens.
// But whatever the numbers are, only memory of rows and arguments is touched, and every token is in
// the vocabulary unless failed().
template <Exchange E>
class vocabulary_shards {
  using gathered = detail::gathered;

 public:
  vocabulary_shards(E& exchange, std::span<const std::size_t> begins, std::size_t rank,
                    std::span<double> memory)
      : exchange_(&exchange), begins_(begins), rank_(rank), memory_(memory) {}
  // Doubles of memory for a run() of so many tasks that are rows without filters, or verifications
  // by policies that make no sums of their own. With less memory, or with longer tasks, run() needs
  // more exchanges.
  static std::size_t memory_of(std::span<const std::size_t> begins, std::size_t tasks = 1) {
    const std::size_t fixed = std::max(most_of_block * widest(begins) + 32, most_doubles);
    return begins.size() * (fixed + tasks * (6 * widest(begins) + 64));
  }
  // Whether an exchange has failed, or gave a count or a token that no rank can have given. No
  // further exchange is tried then.
  bool failed() const { return failed_; }
  // Whether shards and memory are as the class requires.
  bool valid() const {
    bool ok = begins_.size() > 1 && rank_ + 1 < begins_.size() && begins_[0] == 0 &&
              memory_.size() >= memory_of(begins_, 0);
    for (std::size_t r = 0; ok && r + 1 < begins_.size(); ++r)
      ok = begins_[r] <= begins_[r + 1] &&
           (begins_[r] % block_size == 0 || begins_[r] == vocabulary());
    return ok;
  }
  // V, and the tokens [begin, end) of this rank.
  std::size_t vocabulary() const { return begins_.empty() ? 0 : begins_.back(); }
  std::size_t begin() const { return begins_[rank_]; }
  std::size_t end() const { return begins_[rank_ + 1]; }
  std::size_t ranks() const { return begins_.size() - 1; }
  std::size_t rank() const { return rank_; }
  // Whether token v is one of this rank's.
  bool owns(std::size_t v) const { return v >= begin() && v < end(); }

  // The rank that owns token v.
  std::size_t owner(std::size_t v) const {
    std::size_t r = 0;
    while (r + 1 < ranks() && v >= begins_[r + 1]) ++r;
    return r;
  }

  // Calls task(i) for every i below `tasks`, so that the tasks share their exchanges: there are as
  // many as the longest task needs. A task normalises a row, or verifies a request. It is called
  // again from its start after every exchange, and must do the same each time: it takes a chooser
  // without state (random_streams), and writes only memory of its own. Its results are valid when
  // run() has returned true. False: an exchange has failed. If a task throws, so does run(). It may
  // be called again, then on all ranks.
  template <class Task>
  bool run(std::size_t tasks, const Task& task) const {
    run_range(0, tasks, task);
    return !failed_;
  }
  // Whether the numbers that were read last are missing: an exchange has failed, or run() has still
  // to make it.
  bool lacks() const { return failed_ || lacking_; }

  // ---- the members of one_thread, and of a walker (kernel/reduce.hpp) ---------------------------

  // As one_thread's.
  template <class Op, class Rows, class F>
  auto reduce(const Rows& rows, const F& f) const {
    return reduce_own<Op>(of_rows<Op>(rows, f), [](std::size_t, const auto&) {});
  }
  // As one_thread's; all blocks are read.
  template <class Rows, class F, class Empty>
  double sum_of_filled(const Rows& rows, const F& f, const Empty&) const {
    return reduce<detail::add>(rows, f);
  }
  // As one_thread's; out[v] is written if this rank owns token v, and in every round of run().
  template <class Rows, class F, class T>
  double sum_stored(const Rows& rows, const F& f, T* out) const {
    const auto sum_block = [&](std::size_t from, std::size_t count) {
      return detail::sum_stored_block(rows, f, from, count, out);
    };
    if (running_ && !lacking_ && log_.has_next())
      for (std::size_t b = begin(); b < end(); b += block_size) (void)sum_block(b, count_from(b));
    return reduce_own<detail::add>(sum_block, [](std::size_t, double) {});
  }
  // weigh() and can_weigh() of kernel/sample.hpp. Every rank gets the sums of all blocks.
  template <class Rows>
  bool can_weigh(const Rows& rows, std::span<double> block_sums) const {
    return block_sums.size() >= block_count(rows.size());
  }
  template <class Rows, class F>
  weights<Rows, F> weigh(const Rows& rows, F f, std::span<double> block_sums) const {
    const double total = reduce_own<detail::add>(
        of_rows<detail::add>(rows, f), [&](std::size_t b, double sum) { block_sums[b] = sum; });
    return {rows, f, block_sums.first(block_count(rows.size())), total};
  }
  // The owner of the block finds the token in it, and gives the token and its logits to all ranks.
  template <class Rows, class F>
  token_id draw(const weights<Rows, F>& w, double u) const {
    return detail::draw_by_blocks(w, u, [&](const detail::place& at) {
      return told_by_owner(w.rows, at.index * block_size,
                           [&] { return detail::draw_in_block(w, at); });
    });
  }
  // As one_thread's: two exchanges.
  template <class Rows, class F>
  std::size_t largest(const Rows& rows, const F& f) const {
    std::size_t in = 0;
    double top = detail::larger::identity;
    reduce_own<detail::larger>(of_rows<detail::larger>(rows, f), [&](std::size_t b, double x) {
      if (x > top) {
        top = x;
        in = b * block_size;
      }
    });
    if (!(top > detail::larger::identity)) return 0;
    const token_id v = told_by_owner(rows, in, [&] {
      using V = vec<typename Rows::value_type, 16>;
      const std::size_t count = count_from(in);
      const auto block = rows.open(in, count);
      for (std::size_t k = 0; k < count; k += 16) {
        const int lanes = count - k < 16 ? int(count - k) : 16;
        typename V::value_type x[16];
        uncontracted(f(block.template operator()<V>(k, lanes))).store(x);
        for (int i = 0; i < lanes; ++i)
          if (double(x[i]) == top) return token_id(in + k + std::size_t(i));
      }
      return token_id(in);
    });
    return told(double(v), vocabulary());
  }
  // race() of verify/coupled.hpp: each rank gives its best contender.
  template <class Rows, class F>
  contender race(const Rows& rows, const F& f, const coupled_noise& noise, std::uint32_t position,
                 contender last) const {
    const gathered all = gather(2 + most_told, [&](double* out) {
      std::fill_n(out, 2 + most_told, 0.);
      const contender own = detail::race_in_order(rows, f, noise, position, last, begin(), end());
      out[0] = double(own.token);
      out[1] = own.score;
      if (own.token != no_token) tell(rows, own.token, out + 2);
    });
    contender best;
    std::size_t from = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const contender c{token_told(all.of(r)[0]), all.of(r)[1]};
      if (c.token == no_token || (best.token != no_token && !before(c, best))) continue;
      best = c;
      from = r;
    }
    if (best.token != no_token) hear(rows, best.token, all.of(from) + 2);
    return best;
  }

  // ---- single numbers ---------------------------------------------------------------------------
  // Returns value() of the rank that owns token v. No other rank calls it.
  template <class F>
  double from_owner(std::size_t v, const F& value) const {
    const gathered all = gather(1, [&](double* out) { *out = owns(v) ? value() : 0; });
    return *all.of(owner(v));
  }
  // Likewise for a logit of a row. It takes no exchange if the logit has come with a drawn token.
  // row: the row's address.
  template <class F>
  double logit_from_owner(std::size_t v, const void* row, const F& value) const {
    if (telling_) {
      if (told_count_ < most_told) telling_[told_count_++] = value();
      return 0;
    }
    if (hearing_) {
      if (told_count_ < most_told) {
        told_[told_count_] = {row, hearing_[told_count_]};
        ++told_count_;
      }
      return 0;
    }
    for (std::size_t i = 0; i < told_count_ && token_id(v) == told_token_; ++i)
      if (told_[i].row == row) return told_[i].logit;
    return from_owner(v, value);
  }
  // Gathers n doubles of every rank. own(out) writes those of this rank.
  template <class Own>
  gathered each_rank(std::size_t n, const Own& own) const {
    return gather(n, own);
  }
  // Whether 0 <= x < end, as it must be for an x from any rank. If not, the exchange has failed.
  bool told_below(double x, std::size_t end) const {
    const bool good = x >= 0 && x < double(end);
    failed_ = failed_ || !good;
    return good;
  }
  // Such an x as a whole number; 0 if the exchange has failed.
  std::size_t told(double x, std::size_t end) const {
    return told_below(x, end) ? std::size_t(x) : 0;
  }

  // ---- blocks -----------------------------------------------------------------------------------
  // One exchange of n doubles for every block and `more` doubles for every rank. own(first token,
  // number of tokens, out) writes the n doubles of one block of this rank. Then own_more(the
  // doubles of all its blocks, out) writes the `more` doubles. use(b, doubles) is called for every
  // block b of the vocabulary, in order. Returns the `more` doubles of all ranks. n b + more <=
  // most_doubles, b the most blocks of a rank; or n <= most_of_block and more <= 32.
  template <class Own, class More, class Use>
  gathered blocks(std::size_t n, std::size_t more, const Own& own, const More& own_more,
                  const Use& use) const {
    const std::size_t wide = n * widest(begins_);
    const gathered all = gather(wide + more, [&](double* out) {
      std::fill_n(out, wide + more, 0.);
      std::size_t i = 0;
      for (std::size_t begins = begin(); begins < end(); begins += block_size, ++i)
        own(begins, count_from(begins), out + n * i);
      own_more(out, out + wide);
    });
    for (std::size_t r = 0; r < ranks(); ++r) {
      const double* of_block = all.of(r);
      for (std::size_t v = begins_[r]; v < begins_[r + 1]; v += block_size, of_block += n)
        use(v / block_size, of_block);
    }
    return {all.first + wide, all.stride};
  }
  // Reduces all blocks, as reduce_blocks (kernel/reduce.hpp): per_block(first token, number of
  // tokens) is called for this rank's blocks, and seen(b, result) for all blocks.
  template <class Op, class F, class Seen>
  auto reduce_own(const F& per_block, const Seen& seen) const {
    using D = decltype(per_block(std::size_t(), std::size_t()));
    static_assert(sizeof(D) <= most_of_block * sizeof(double));
    detail::lanes_of_blocks<Op, D> total(block_count(vocabulary()));
    blocks(
        sizeof(D) / sizeof(double), 0,
        [&](std::size_t begins, std::size_t count, double* out) {
          put(out, per_block(begins, count));
        },
        [](const double*, double*) {},
        [&](std::size_t b, const double* from) {
          D x;
          take(from, x);
          total.add(b, x);
          seen(b, x);
        });
    return total.total();
  }

  // Upper bounds: doubles sent per block; doubles sent per rank when nothing is per block.
  static constexpr std::size_t most_of_block = 8, most_doubles = 4100;

 private:
  static constexpr std::size_t most_told = 4;  // logits of a drawn token
  static std::size_t widest(std::span<const std::size_t> begins) {
    std::size_t most = 0;
    for (std::size_t r = 0; r + 1 < begins.size(); ++r)
      most = std::max(most, block_count(begins[r + 1] - begins[r]));
    return most;
  }
  std::size_t count_from(std::size_t begins) const {
    return std::min(vocabulary() - begins, block_size);
  }

  // One exchange: own(out) writes the n doubles of this rank, unless run() has them already.
  // Returns zeros if the numbers are missing.
  template <class Own>
  gathered gather(std::size_t n, const Own& own) const {
    told_count_ = 0;
    gathered found{memory_.data(), 0};
    if (lacks()) return zeros(n);
    if (running_) {
      if (log_.next(n, found)) return found;
      lacking_ = true;
      double* const out = log_.ask(n);
      if (out) own(out);
      else full_ = true;
      return zeros(n);
    }
    const std::span<double> mine = memory_.first(n), all = memory_.subspan(n, n * ranks());
    own(mine.data());
    failed_ = !(*exchange_)(std::span<const double>(mine), all);
    return failed_ ? zeros(n) : gathered{all.data(), n};
  }
  gathered zeros(std::size_t n) const {
    std::fill_n(memory_.begin(), n, 0.);
    return {memory_.data(), 0};
  }

  // Runs the tasks first .. first + count - 1 in step, or in two halves if there is too little
  // memory.
  template <class Task>
  void run_range(std::size_t first, std::size_t count, const Task& task) const {
    if (count <= 1 || running_ || !valid()) {
      for (std::size_t i = 0; i < count; ++i) task(first + i);
      return;
    }
    log_ = {count, ranks(), memory_.subspan(memory_of(begins_, 0))};
    full_ = false;
    while (!full_ && !failed_ && run_round(first, count, task) && !log_.nothing_asked())
      failed_ = !log_.exchange(*exchange_);
    if (!full_) return;
    run_range(first, count / 2, task);
    run_range(first + count / 2, count - count / 2, task);
  }
  template <class Task>
  bool run_round(std::size_t first, std::size_t count, const Task& task) const {
    const struct round {
      const vocabulary_shards& of;
      ~round() { of.running_ = of.lacking_ = false; }  // also if a task throws
    } now{*this};
    full_ = !log_.begin_round();
    running_ = true;
    for (std::size_t i = 0; i < count && !full_; ++i) {
      if (log_.waits(i)) {
        log_.begin_task(i);
        task(first + i);
        lacking_ = false;
      }
      log_.end_task(i);
    }
    return !full_;
  }

  token_id token_told(double x) const {
    return x == no_token ? no_token : token_id(told(x, vocabulary()));
  }
  // The token that choose() finds on the rank that owns token `of`, with its logits in the rows.
  template <class Rows, class Choose>
  token_id told_by_owner(const Rows& rows, std::size_t of, const Choose& choose) const {
    const gathered all = gather(1 + most_told, [&](double* out) {
      std::fill_n(out, 1 + most_told, 0.);
      if (!owns(of)) return;
      const token_id v = choose();
      out[0] = double(v);
      if (v != no_token) tell(rows, v, out + 1);
    });
    const double* const told = all.of(owner(of));
    const token_id v = token_told(told[0]);
    if (v != no_token) hear(rows, v, told + 1);
    return v;
  }
  // tell(): the owner of token v writes the logits that reading v in the rows asks for
  // (logit_from_owner), in this order. hear(): after the exchange all ranks note the row of each of
  // these logits. The notes last until the next exchange.
  template <class Rows>
  void tell(const Rows& rows, token_id v, double* out) const {
    told_count_ = 0;
    telling_ = out;
    (void)specagg::at(rows, std::size_t(v));
    telling_ = nullptr;
  }
  template <class Rows>
  void hear(const Rows& rows, token_id v, const double* told) const {
    told_count_ = 0;
    if (lacks()) return;
    hearing_ = told;
    (void)specagg::at(rows, std::size_t(v));
    hearing_ = nullptr;
    told_token_ = v;
  }

  template <class Op, class Rows, class F>
  auto of_rows(const Rows& rows, const F& f) const {
    return [&](std::size_t begins, std::size_t count) {
      return specagg::reduce_block_of<Op>(rows, begins, count, f);
    };
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

  E* exchange_;
  std::span<const std::size_t> begins_;
  std::size_t rank_;
  std::span<double> memory_;
  mutable bool failed_ = false;
  // of run()
  mutable bool running_ = false, lacking_ = false, full_ = false;
  mutable detail::exchange_log log_;
  // of tell() and hear()
  struct told_logit {
    const void* row;
    double logit;
  };
  mutable told_logit told_[most_told] = {};
  mutable std::size_t told_count_ = 0;
  mutable token_id told_token_ = no_token;
  mutable double* telling_ = nullptr;
  mutable const double* hearing_ = nullptr;
};

SPECAGG_END
