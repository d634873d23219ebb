// SPDX-License-Identifier: Apache-2.0
// The vocabulary in shards, one for each rank (thread, process, device, host), as tensor
// parallelism leaves logits. The ranks read rows together by the members of one_thread
// (kernel/reduce.hpp). Each member takes one exchange, unless its comment names more, and returns
// the bits of one_thread.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <span>
#include <type_traits>

#include <specagg/shards/detail/exchange_log.hpp>

SPECAGG_BEGIN

namespace detail {

// Which tokens each rank has: rank r those from begins[r] on.
struct shard_layout {
  std::span<const std::size_t> begins;
  std::size_t rank, ranks, vocabulary;
  std::size_t most_blocks = 0;  // of a rank

  shard_layout(std::span<const std::size_t> each, std::size_t own)
      : begins(each),
        rank(own),
        ranks(each.empty() ? 0 : each.size() - 1),
        vocabulary(each.empty() ? 0 : each.back()) {
    for (std::size_t r = 0; r < ranks; ++r)
      most_blocks = std::max(most_blocks, block_count(begins[r + 1] - begins[r]));
  }
  bool valid() const {
    bool ok = rank < ranks && begins[0] == 0;
    for (std::size_t r = 0; ok && r < ranks; ++r)
      ok = begins[r] <= begins[r + 1] && (begins[r] % block_size == 0 || begins[r] == vocabulary);
    return ok;
  }
  std::size_t begin() const { return begins[rank]; }
  std::size_t end() const { return begins[rank + 1]; }
  bool owns(std::size_t v) const { return v >= begin() && v < end(); }
  std::size_t owner(std::size_t v) const {
    std::size_t r = 0;
    while (r + 1 < ranks && v >= begins[r + 1]) ++r;
    return r;
  }
  std::size_t first_block(std::size_t r) const { return begins[r] / block_size; }
  std::size_t count_from(std::size_t begins_at) const {
    return std::min(vocabulary - begins_at, block_size);
  }
};

}  // namespace detail

// One rank's part in reading rows together with the other ranks.
//   exchange exchange(own, all) is an all-gather: on every rank, all[r own.size() ...] becomes the
//            `own` of rank r. It returns false if it fails. The two spans do not overlap
//   begins   [ranks + 1] the first token of each rank's shard; V at the end. Shards begin at
//            multiples of block_size, so that a block has one owner. A shard may be empty, and then
//            begin at V
//   memory   at least memory_of(begins) doubles, equally many on every rank, which are written
// The exchange and both spans must outlive the object, and the object must outlive the rows. All
// rows of a verification have the same object. If an exchange has failed, a verifier's result is
// worthless: ask failed() before you use it. Wrong numbers from an exchange may make wrong tokens.
// No number makes a verifier touch other memory than that of rows and arguments, and every token is
// in the vocabulary unless failed().
class vocabulary_shards : public detail::rank_reader<vocabulary_shards, const void*> {
  using reader = rank_reader;
  using gathered = detail::gathered;
  using shard_layout = detail::shard_layout;
  using exchange_log = detail::exchange_log;
  using add = detail::add;
  using larger = detail::larger;

 public:
  template <class E>
    requires std::predicate<E&, std::span<const double>, std::span<double>>
  vocabulary_shards(E& exchange, std::span<const std::size_t> begins, std::size_t rank,
                    std::span<double> memory)
      : object_(&exchange),
        call_([](const void* object, std::span<const double> own, std::span<double> all) {
          return bool((*static_cast<E*>(const_cast<void*>(object)))(own, all));
        }),
        layout_(begins, rank),
        memory_(memory) {}
  // Doubles of memory for a run() of so many tasks that are rows without filters, or verifications
  // by policies that make no sums of their own. With less memory, or with longer tasks, run() needs
  // more exchanges.
  static std::size_t memory_of(std::span<const std::size_t> begins, std::size_t tasks = 1) {
    const std::size_t blocks = shard_layout(begins, 0).most_blocks;
    const std::size_t fixed = std::max(most_of_block * blocks + 32, most_doubles);
    return begins.size() * (fixed + tasks * (6 * blocks + 64));
  }
  // Whether an exchange has failed, or gave a count or a token that no rank can have given. No
  // further exchange is tried then.
  bool failed() const { return failed_; }
  // Whether shards and memory are as the class requires.
  bool valid() const { return layout_.valid() && memory_.size() >= memory_of(layout_.begins, 0); }
  // The tokens of each rank.
  const shard_layout& layout() const { return layout_; }

  // Calls task(i) for every i below `tasks`, so that the tasks share their exchanges: there are as
  // many as the longest task needs. A task normalises a row, or verifies a request. It is called
  // again from its start after every exchange, and must do the same each time: it takes a chooser
  // without state (random_streams), and writes only memory of its own. Its results are valid when
  // run() has returned true. False: an exchange has failed. If a task throws, so does run(). It may
  // be called again, then on all ranks.
  template <class Task>
  bool run(std::size_t tasks, const Task& task) {
    run_range(0, tasks, task);
    return !failed_;
  }
  // Whether the numbers that were read last are missing: an exchange has failed, or run() has still
  // to make it.
  bool lacks() const { return failed_ || (log_ && log_->lacks()); }

  // ---- the members of one_thread, and of a walker (kernel/reduce.hpp) ---------------------------

  // As one_thread's.
  template <class Op, class Rows, class F>
  auto reduce(const Rows& rows, const F& f) {
    return reduce_own<Op>(of_rows<Op>(rows, f), [](std::size_t, const auto&) {});
  }
  // As one_thread's; all blocks are read.
  template <class Rows, class F, class Empty>
  double sum_of_filled(const Rows& rows, const F& f, const Empty&) {
    return reduce<add>(rows, f);
  }
  // As one_thread's; out[v] is written if this rank owns token v, also where the sum is replayed.
  template <class Rows, class F, class T>
  double sum_stored(const Rows& rows, const F& f, T* out) {
    bool recorded = false;
    const auto store = [&](std::size_t from, std::size_t count) {
      recorded = true;
      return detail::sum_stored_block(rows, f, from, count, out);
    };
    const double sum = reduce_own<add>(store, [](std::size_t, double) {});
    if (!recorded && !lacks())
      own_blocks([&](std::size_t from, std::size_t count, std::size_t) { store(from, count); });
    return sum;
  }
  // weigh() and can_weigh() of kernel/sample.hpp. Every rank gets the sums of all blocks.
  template <class Rows>
  bool can_weigh(const Rows& rows, std::span<double> block_sums) {
    return block_sums.size() >= block_count(rows.size());
  }
  template <class Rows, class F>
  weights<Rows, F> weigh(const Rows& rows, F f, std::span<double> block_sums) {
    const double total = reduce_own<add>(of_rows<add>(rows, f),
                                         [&](std::size_t b, double sum) { block_sums[b] = sum; });
    return {rows, f, block_sums.first(block_count(rows.size())), total};
  }
  // The owner of the block finds the token in it, and gives the token and its logits to all ranks.
  template <class Rows, class F>
  token_id draw(const weights<Rows, F>& w, double u) {
    return detail::draw_by_blocks(w, u, [&](const detail::place& at) {
      return token_of_owner(w.rows, at.index * block_size,
                            [&] { return detail::draw_in_block(w, at); });
    });
  }
  // As one_thread's: two exchanges.
  template <class Rows, class F>
  std::size_t largest(const Rows& rows, const F& f) {
    std::size_t in = 0;
    double top = larger::identity;
    reduce_own<larger>(of_rows<larger>(rows, f), [&](std::size_t b, double x) {
      if (x > top) {
        top = x;
        in = b * block_size;
      }
    });
    if (!(top > larger::identity)) return 0;
    const token_id v = token_of_owner(rows, in, [&] {
      return token_id(detail::first_in_block(rows, f, in, layout_.count_from(in), top));
    });
    return told(double(v), layout_.vocabulary);
  }
  // race() of verify/coupled.hpp: each rank gives its best contender.
  template <class Rows, class F>
  contender race(const Rows& rows, const F& f, const coupled_noise& noise, std::uint32_t position,
                 contender last) {
    return best_contender(rows, [&](std::size_t begin, std::size_t end) {
      return detail::race_in_order(rows, f, noise, position, last, begin, end);
    });
  }

  // ---- numbers of other ranks -------------------------------------------------------------------

  // Whether 0 <= x < end, as it must be for an x from any rank. If not, the exchange has failed.
  bool told_below(double x, std::size_t end) {
    const bool good = x >= 0 && x < double(end);
    failed_ = failed_ || !good;
    return good;
  }
  // Such an x as a whole number; 0 if the exchange has failed.
  std::size_t told(double x, std::size_t end) { return told_below(x, end) ? std::size_t(x) : 0; }

  // f(first token, number of tokens, i) for every block i of this rank.
  template <class F>
  void own_blocks(const F& f) const {
    std::size_t i = 0;
    for (std::size_t begin = layout_.begin(); begin < layout_.end(); begin += block_size)
      f(begin, layout_.count_from(begin), i++);
  }
  // Reduces all blocks, as reduce_blocks (kernel/reduce.hpp): per_block(first token, number of
  // tokens) is called for this rank's blocks, and seen(b, result) for all blocks.
  template <class Op, class F, class Seen>
  auto reduce_own(const F& per_block, const Seen& seen) {
    using D = decltype(per_block(std::size_t(), std::size_t()));
    constexpr std::size_t n = sizeof(D) / sizeof(double);
    static_assert(n <= most_of_block);
    using numbers = std::array<double, n>;
    const gathered all = exchange(n * layout_.most_blocks, [&](double* out) {
      own_blocks([&](std::size_t begin, std::size_t count, std::size_t i) {
        const auto x = std::bit_cast<numbers>(per_block(begin, count));
        std::copy(x.begin(), x.end(), out + n * i);
      });
    });
    const std::size_t blocks = block_count(layout_.vocabulary);
    detail::lanes_of_blocks<Op, D> total(blocks);
    for (std::size_t b = 0; b < blocks; ++b) {
      numbers x;
      for (std::size_t i = 0; i < n; ++i) x[i] = of_block(all, n, b, i);
      total.add(b, std::bit_cast<D>(x));
      seen(b, std::bit_cast<D>(x));
    }
    return total.total();
  }

  // A tree that is verified with this walker has rows in shards (verify/draft_tree.hpp).
  static constexpr bool is_rank = true;
  // Upper bounds: doubles sent per block; doubles sent per rank when nothing is per block.
  static constexpr std::size_t most_of_block = 8, most_doubles = 4100;

 private:
  friend reader;
  bool writes() const { return true; }
  void refuse() { failed_ = true; }
  // The next exchange: in a run() that of its log; else one that is sent at once.
  template <class Own>
  gathered next(std::size_t n, const Own& own) {
    if (lacks()) return {};
    if (log_) {
      if (const gathered all = log_->replay(n)) return all;
      if (double* const out = log_->record(n)) own(zeros(out, n));
      return {};
    }
    const std::span<double> mine = memory_.first(n), all = memory_.subspan(n, n * layout_.ranks);
    own(zeros(mine.data(), n));
    failed_ = !send(mine, all);
    return failed_ ? gathered() : gathered{all.data(), n};
  }
  static double* zeros(double* out, std::size_t n) {
    std::fill_n(out, n, 0.);
    return out;
  }
  bool send(std::span<const double> own, std::span<double> all) const {
    return call_(object_, own, all);
  }

  // Runs the tasks first .. first + count - 1 in step, or in two halves if there is too little
  // memory.
  template <class Task>
  void run_range(std::size_t first, std::size_t count, const Task& task) {
    if (count <= 1 || log_ || !valid()) {
      for (std::size_t i = 0; i < count; ++i) task(first + i);
      return;
    }
    exchange_log log(count, layout_.ranks, memory_.subspan(memory_of(layout_.begins, 0)));
    while (run_round(log, first, count, task) && !log.nothing_recorded() && !failed_)
      failed_ = !log.send([this](auto own, auto all) { return send(own, all); });
    if (!log.full()) return;
    run_range(first, count / 2, task);
    run_range(first + count / 2, count - count / 2, task);
  }
  // One round: the tasks that are not done run with the log. False: there is too little memory.
  template <class Task>
  bool run_round(exchange_log& log, std::size_t first, std::size_t count, const Task& task) {
    const struct reading {
      exchange_log*& log;
      ~reading() { log = nullptr; }  // also if a task throws
    } until_the_end{log_};
    log_ = &log;
    if (!log.begin_round()) return false;
    for (std::size_t i = 0; i < count && !log.full(); ++i) {
      this->forget_logits();
      if (log.begin_task(i)) task(first + i);
      log.end_task();
    }
    return !log.full();
  }
  template <class Op, class Rows, class F>
  auto of_rows(const Rows& rows, const F& f) {
    return [&](std::size_t begin, std::size_t count) {
      return specagg::reduce_block_of<Op>(rows, begin, count, f);
    };
  }

  const void* object_;
  bool (*call_)(const void*, std::span<const double>, std::span<double>);
  shard_layout layout_;
  std::span<double> memory_;
  bool failed_ = false;
  exchange_log* log_ = nullptr;  // while run() runs a task
};

SPECAGG_END
