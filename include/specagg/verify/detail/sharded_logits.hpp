// SPDX-License-Identifier: Apache-2.0
// A row of logits of which each rank has a shard, as filters read it: the members of
// logits_in_memory (kernel/select.hpp), with the same bits.
#pragma once
#include <array>
#include <cmath>

#include <specagg/kernel/select.hpp>
#include <specagg/verify/vocabulary_shards.hpp>

SPECAGG_BEGIN
namespace detail {

// Tokens whose logits all ranks get with the first exchange.
struct expected_tokens {
  static constexpr std::size_t most = 8;
  std::array<token_id, most> tokens;
  std::size_t count = 0;
};

// sums(), sum_exponentials() and list_largest() also write the logits of the expected tokens.
template <class S, class Shards>
struct sharded_logits {
  using value_type = computed<S>;
  using T = value_type;
  const S* own;
  const Shards* shards;
  const expected_tokens* expected;
  std::array<T, expected_tokens::most>* expected_logits;

  std::size_t size() const { return shards->vocabulary(); }
  std::size_t own_size() const { return shards->end() - shards->begin(); }
  T at(std::size_t v) const { return number(own[v - shards->begin()]); }

  // One exchange, and another one for rows that are summed relative to their largest logit (few:
  // sum_exponentials, kernel/softmax.hpp).
  template <std::size_t N>
  struct sums_found {
    std::array<softmax_sum<T>, N> at;  // the sums at N temperatures
    std::size_t first;                 // the first token with the largest logit
  };
  template <std::size_t N>
  sums_found<N> sums(const std::array<double, N>& temperatures, const cutoff<T>& cut) const {
    std::array<T, N> scale;
    for (std::size_t i = 0; i < N; ++i)
      scale[i] = exp_scale<T>::of_temperature(temperatures[i]).high;
    auto found = shifted(scale, std::array<T, N>{}, cut);
    std::array<T, N> shift{};
    for (std::size_t i = 0; i < N; ++i)
      if (needs_shift(found.at[i].max, scale[i])) shift[i] = found.at[i].max;
    if (shift == std::array<T, N>{}) return found;
    const auto again = shifted(scale, shift, cut);
    for (std::size_t i = 0; i < N; ++i)
      if (needs_shift(found.at[i].max, scale[i])) found.at[i] = again.at[i];
    return found;
  }
  softmax_sum<T> sum_exponentials(double temperature, const cutoff<T>& cut = {}) const {
    return sums(std::array{temperature}, cut).at[0];
  }
  // Block `begin` of this rank, or a block whose logits are not read.
  softmax_block<S> block(std::size_t begin, std::size_t count, const softmax_factors<T>& factors,
                         const cutoff<T>& cut) const {
    softmax_block<S> logits(own, 0, count, factors, cut);
    static_cast<block_cutoff<T>&>(logits) = {begin, count, cut};
    if (shards->owns(begin)) logits.logits = own + (begin - shards->begin());
    return logits;
  }

  // Each rank lists its own largest logits: one exchange of 2 k + 1 doubles, and the expected
  // tokens.
  bool list_largest(std::size_t k, shortlist<T>& list, cutoff<T>& cut) const {
    const gathered all = shards->each_rank(1 + expected->count + 2 * k, [&](double* out) {
      shortlist<T> mine;
      cutoff<T> unused;
      const bool good =
          specagg::list_largest(own, own_size(), k, mine, unused) || all_below_infinity();
      give_expected(out + 1);
      out[0] = good ? double(mine.size) : -1;
      give(mine, k, out + 1 + expected->count);
    });
    take_expected({all.first + 1, all.stride});
    const count_of_tokens one;
    bool good = true;
    for (std::size_t r = 0; r < shards->ranks(); ++r) {
      const double* const from = all.of(r);
      good = good && from[0] != -1;
      for (std::size_t i = 0; good && i < shards->told(from[0], k + 1); ++i) {
        if (!list.has_room()) cut = list.shorten(double(k), one);
        good = take(list, from + 1 + expected->count, k, i);
      }
    }
    if (good && list.size >= k) cut = list.shorten(double(k), one);
    return good && list.size > 0;
  }
  // Two exchanges: the lengths of the ranks' lists, and the lists, each in the room of the longest.
  bool list_between(T lowest, T end, shortlist<T>& list) const {
    const gathered counts = shards->each_rank(2, [&](double* out) {
      shortlist<T> mine;
      const bool fits = specagg::list_between(own, own_size(), lowest, end, mine);
      out[0] = fits ? double(mine.size) : double(list.capacity + 1);
      out[1] = double(before_last(mine));
    });
    std::size_t most = 0, total = 0;
    bool fits = true;  // as list_between says of the whole row: it looks at 16 tokens at a time
    for (std::size_t r = 0; r < shards->ranks(); ++r) {
      const std::size_t count = shards->told(counts.of(r)[0], list.capacity + 2);
      if (count == 0) continue;
      fits = fits && count <= list.capacity &&
             total + shards->told(counts.of(r)[1], count + 1) + 16 <= list.capacity;
      total += count;
      most = std::max(most, count);
    }
    list.size = 0;
    if (!fits || most == 0) return fits;
    const gathered all = shards->each_rank(1 + 2 * most, [&](double* out) {
      shortlist<T> mine;
      (void)specagg::list_between(own, own_size(), lowest, end, mine);
      out[0] = double(mine.size);
      give(mine, most, out + 1);
    });
    for (std::size_t r = 0; r < shards->ranks(); ++r)
      for (std::size_t i = 0; i < shards->told(all.of(r)[0], most + 1); ++i)
        if (!take(list, all.of(r) + 1, most, i)) return false;
    return true;
  }
  // One exchange.
  template <class Op, class F>
  auto reduce(const F& f) const {
    return shards->template reduce_own<Op>(
        [&](std::size_t begin, std::size_t count) {
          const S* const of_block = own + (begin - shards->begin());
          return specagg::reduce_block<Op>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
            return f(load_logits<vec<T, 16>>(of_block + k, lanes));
          });
        },
        [](std::size_t, const auto&) {});
  }
  // One rank after the other: for each an exchange of 2048, in 3 rounds (double: 6), and of 3.
  template <class Weight>
  cutoff<T> shortest_prefix(const cutoff<T>& cut, double enough, const Weight& weight) const {
    const auto in_order = [&](std::span<double> state, const auto& f) {
      for (std::size_t r = 0; r < shards->ranks(); ++r) {
        const gathered all = shards->each_rank(state.size(), [&](double* out) {
          for (std::size_t v = shards->begin(); r == shards->rank() && v < shards->end(); ++v)
            if (!f(at(v), v)) break;
          std::copy(state.begin(), state.end(), out);
        });
        // each is a weight, of at most 1 a token but for round-off, or an id
        for (std::size_t i = 0; i < state.size(); ++i)
          if (const double x = all.of(r)[i]; shards->told_below(x, 2 * size())) state[i] = x;
      }
    };
    return detail::shortest_prefix<T>(in_order, cut, enough, weight);
  }

 private:
  template <std::size_t N>
  sums_found<N> shifted(const std::array<T, N>& scale, const std::array<T, N>& shift,
                        const cutoff<T>& cut) const {
    using unit = unit_of_sum<T>;
    std::array<unit, N> last{}, highest;  // of this rank
    highest.fill(unit::of(-std::numeric_limits<T>::infinity()));
    const std::size_t blocks = block_count(size());
    auto sum = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<sum_of_units<T>, N>{((void)I, sum_of_units<T>(blocks))...};
    }(std::make_index_sequence<N>());
    const gathered more = shards->blocks(
        1 + N, 2 + expected->count,
        [&](std::size_t begin, std::size_t count, double* out) {
          const softmax_block<S> logits = block(begin, count, {}, cut);
          for (std::size_t i = 0; i < N; ++i) {
            const auto [unit_of_block, x] =
                sum_in_own_unit(logits, count, scale[i], shift[i], last[i], highest[i]);
            highest[i].index = std::max(highest[i].index, unit_of_block.index);
            out[0] = double(x.max);
            out[1 + i] = x.sum;
          }
        },
        [&](const double* of_blocks, double* out) {
          first_largest(of_blocks, 1 + N, out);
          give_expected(out + 2);
        },
        [&](std::size_t b, const double* from) {
          for (std::size_t i = 0; i < N; ++i) {
            const block_sum<T> x{T(from[0]), from[1 + i]};
            sum[i].add(b, unit::of(weight_in_unit<T>::exponent(x.max - shift[i], scale[i])), x);
          }
        });
    take_expected({more.first + 2, more.stride});
    sums_found<N> found{};
    for (std::size_t i = 0; i < N; ++i) found.at[i] = sum[i].total(scale[i], shift[i]);
    for (std::size_t r = shards->ranks(); r-- > 0;)
      if (T(more.of(r)[0]) == found.at[0].max)
        found.first = shards->told(more.of(r)[1], size() + 1);
    return found;
  }
  // The largest logit of this rank, and the first token that has it.
  void first_largest(const double* of_blocks, std::size_t n, double* out) const {
    out[0] = -std::numeric_limits<double>::infinity();
    std::size_t in = shards->begin();
    for (std::size_t b = shards->begin(); b < shards->end(); b += block_size, of_blocks += n)
      if (*of_blocks > out[0]) {
        out[0] = *of_blocks;
        in = b;
      }
    while (in < shards->end() && !(double(at(in)) == out[0])) ++in;
    out[1] = double(in);
  }
  void give_expected(double* out) const {
    for (std::size_t i = 0; i < expected->count; ++i) {
      const auto v = std::size_t(expected->tokens[i]);
      out[i] = shards->owns(v) ? double(at(v)) : 0;
    }
  }
  void take_expected(const gathered& all) const {
    for (std::size_t i = 0; i < expected->count; ++i)
      (*expected_logits)[i] = T(all.of(shards->owner(std::size_t(expected->tokens[i])))[i]);
  }
  // Whether no logit is NaN or +inf.
  bool all_below_infinity() const {
    for (std::size_t i = 0; i < own_size(); ++i)
      if (!(number(own[i]) < std::numeric_limits<T>::infinity())) return false;
    return true;
  }
  // How many tokens are listed before the last 16 that were looked at.
  static std::size_t before_last(const shortlist<T>& list) {
    std::size_t n = list.size;
    while (n > 0 && list.ids[n - 1] / 16 == list.ids[list.size - 1] / 16) --n;
    return n;
  }
  // A list in room for `most` tokens: their logits, then their ids.
  void give(const shortlist<T>& list, std::size_t most, double* out) const {
    for (std::size_t i = 0; i < most; ++i) {
      out[i] = i < list.size ? double(list.logits[i]) : 0;
      out[most + i] = i < list.size ? double(list.ids[i]) + double(shards->begin()) : 0;
    }
  }
  // False if no rank can have given it.
  bool take(shortlist<T>& list, const double* from, std::size_t most, std::size_t i) const {
    constexpr T inf = std::numeric_limits<T>::infinity();
    const T l = T(from[i]);
    const bool fits = list.capacity > list.size && l > -inf && l < inf;
    const std::size_t id = shards->told(fits ? from[most + i] : -1, size());
    if (shards->failed()) return false;
    list.logits[list.size] = l;
    list.ids[list.size++] = token_id(id);
    return true;
  }
};

}  // namespace detail
SPECAGG_END
