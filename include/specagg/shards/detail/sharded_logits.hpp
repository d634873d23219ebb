// SPDX-License-Identifier: Apache-2.0
// A row of logits of which each rank has a shard, as filters read it: the members of
// logits_in_memory (kernel/logits_in_memory.hpp), with the same bits.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include <specagg/kernel/logits_in_memory.hpp>
#include <specagg/shards/vocabulary_shards.hpp>

SPECAGG_BEGIN
namespace detail {

// Tokens whose logits all ranks get with the first exchange.
struct expected_tokens {
  static constexpr std::size_t most = 8;
  std::array<token_id, most> tokens;
  std::size_t count = 0;
};

// sums(), sum_exponentials() and list_first() also write the logits of the expected tokens.
template <class S>
struct sharded_logits {
  using value_type = computed<S>;
  using T = value_type;
  const S* own;
  vocabulary_shards* shards;
  const expected_tokens* expected;
  std::array<T, expected_tokens::most>* expected_logits;

  const shard_layout& layout() const { return shards->layout(); }
  std::size_t size() const { return layout().vocabulary; }
  std::size_t own_size() const { return layout().end() - layout().begin(); }
  T at(std::size_t v) const { return number(own[v - layout().begin()]); }

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
  softmax_sum<T> sum_exponentials(double temperature) const {
    return sums(std::array{temperature}, {}).at[0];
  }
  // The largest logit; NaN if the row is invalid.
  T largest() const {
    const softmax_sum<T> sum = sum_exponentials(1);
    return sum.total > 0 ? sum.max : std::numeric_limits<T>::quiet_NaN();
  }
  // One exchange.
  template <class Weight>
  mass mass_from(const mass_unit<T>& unit, const Weight& weight, T lowest) const {
    return sum_mass_from(*this, unit, weight, lowest);
  }
  // Block `begin` of this rank, or a block whose logits are not read.
  softmax_block<S> block(std::size_t begin, std::size_t count, const softmax_factors<T>& factors,
                         const cutoff<T>& cut) const {
    softmax_block<S> logits(own, 0, count, factors, cut);
    static_cast<block_cutoff<T>&>(logits) = {begin, count, cut};
    if (layout().owns(begin)) logits.logits = own + (begin - layout().begin());
    return logits;
  }

  // Each rank lists its own largest logits: one exchange of 2 k + 1 doubles, and the expected
  // tokens.
  bool list_first(std::size_t k, shortlist<T>& list, cutoff<T>& cut) const {
    if (k > most_listed) return false;
    const gathered all = shards->exchange(1 + expected->count + 2 * k, [&](double* out) {
      shortlist<T> mine;
      cutoff<T> unused;
      const bool good =
          specagg::list_largest(own, own_size(), k, mine, unused) || all_below_infinity();
      give_expected(out + 1);
      out[0] = good ? double(mine.size) : -1;
      give(mine, k, out + 1 + expected->count);
    });
    take_expected(all, 1);
    bool good = true;
    for (std::size_t r = 0; r < layout().ranks; ++r) {
      good = good && all(r, 0) != -1;
      for (std::size_t i = 0; good && i < shards->told(all(r, 0), k + 1); ++i) {
        if (!list.has_room()) cut = list.keep_first(k);
        good = take(list, all, r, 1 + expected->count + i, k);
      }
    }
    if (good && list.size >= k) cut = list.keep_first(k);
    return good && list.size > 0;
  }
  // One exchange.
  template <class Op, class F>
  auto reduce(const F& f) const {
    return shards->template reduce_own<Op>(
        [&](std::size_t begin, std::size_t count) {
          const S* const of_block = own + (begin - layout().begin());
          return specagg::reduce_block<Op>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
            return f(load_logits<vec<T, 16>>(of_block + k, lanes));
          });
        },
        [](std::size_t, const auto&) {});
  }
  // One exchange of the largest logits of each rank, if the prefix may end among them. Otherwise by
  // the bits of the logits, 8 at a time: four exchanges of the masses of 256 buckets (double:
  // eight), and two of a number; the list stays empty.
  template <class Weight>
  prefix<T> shortest_prefix(mass enough, T /*lowest*/, double /*total*/, T /*lightest*/,
                            const mass_unit<T>& unit, const Weight& weight,
                            shortlist<T>& list) const {
    const std::size_t each_lists = std::min(most_of_rank, list.capacity / layout().ranks);
    // no token weighs more than 1
    if (unit.sum(enough) <= double(each_lists * layout().ranks)) {
      if (list_known(each_lists, list) &&
          sum_mass_from(row_of(list), unit, weight, std::numeric_limits<T>::lowest()) >= enough)
        return list.shorten(enough, unit, weight);
      list.size = 0;
      if (shards->lacks()) return {{}, 0, 0};
    }
    constexpr int width = 8 * sizeof(T);
    constexpr double half = 0x1p32;  // a mass has more bits than a double
    // no bucket has more
    const std::size_t most = std::size_t(mass(size()) * unit.whole(T(1)) >> 32) + 1;
    bits_of<T> found = 0;
    mass above = 0;
    for (int left = width; left > 0;) {
      const int take = std::min(bits_at_once, left), shift = left - take;
      const std::size_t buckets = std::size_t(1) << take;
      const gathered all = shards->exchange(2 * buckets, [&](double* out) {
        std::array<mass, most_buckets> of = {};
        for (std::size_t i = 0; i < own_size(); ++i) {
          const T l = number(own[i]);
          const bits_of<T> k = ordered(l);
          if (left < width && (k >> left) != (found >> left)) continue;
          of[(k >> shift) & bits_of<T>(buckets - 1)] += unit.whole(weight(vec<T, 1>(l)).v);
        }
        for (std::size_t i = 0; i < buckets; ++i) {
          out[2 * i] = double(of[i] >> 32);
          out[2 * i + 1] = double(of[i] & 0xffffffff);
        }
      });
      std::array<mass, most_buckets> of = {};
      for (std::size_t r = 0; r < layout().ranks; ++r)
        for (std::size_t i = 0; i < buckets; ++i)
          of[i] += (mass(shards->told(all(r, 2 * i), most)) << 32) +
                   mass(shards->told(all(r, 2 * i + 1), std::size_t(half)));
      found |= bits_of<T>(crossing_bucket(of.data(), std::uint32_t(buckets), enough, above))
               << shift;
      left = shift;
      if (shards->lacks()) return {{}, 0, 0};
    }
    const T logit = unordered<T>(found);
    const mass each = std::max(unit.whole(weight(vec<T, 1>(logit)).v), mass(1));
    return with_ties(logit, above, std::size_t((enough - above + each - 1) / each), each);
  }

 private:
  static constexpr std::size_t most_of_rank = 256;
  static constexpr int bits_at_once = 8;
  static constexpr std::size_t most_buckets = std::size_t(1) << bits_at_once;
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
    // 1 + N doubles for each block; after them the largest logit of this rank, the first token that
    // has it, and the expected logits
    const std::size_t largest = (1 + N) * layout().most_blocks;
    const gathered all = shards->exchange(largest + 2 + expected->count, [&](double* out) {
      shards->own_blocks([&](std::size_t begin, std::size_t count, std::size_t b) {
        const softmax_block<S> logits = block(begin, count, {}, cut);
        for (std::size_t i = 0; i < N; ++i) {
          vec<T, 16> of_lanes;
          const auto [unit_of_block, x] =
              sum_in_own_unit(logits, count, scale[i], shift[i], last[i], highest[i], of_lanes);
          highest[i].index = std::max(highest[i].index, unit_of_block.index);
          out[(1 + N) * b] = double(x.max);
          out[(1 + N) * b + 1 + i] = x.sum;
        }
      });
      first_largest(out, 1 + N, out + largest);
      give_expected(out + largest + 2);
    });
    take_expected(all, largest + 2);
    for (std::size_t b = 0; b < blocks; ++b)
      for (std::size_t i = 0; i < N; ++i) {
        const block_sum<T> x{T(shards->of_block(all, 1 + N, b, 0)),
                             shards->of_block(all, 1 + N, b, 1 + i)};
        sum[i].add(b, unit::of(weight_in_unit<T>::exponent(x.max - shift[i], scale[i])), x);
      }
    sums_found<N> found{};
    for (std::size_t i = 0; i < N; ++i) found.at[i] = sum[i].total(scale[i], shift[i]);
    for (std::size_t r = layout().ranks; r-- > 0;)
      if (T(all(r, largest)) == found.at[0].max)
        found.first = shards->told(all(r, largest + 1), size() + 1);
    return found;
  }
  // The tokens that weigh `above`, and the first n with this logit.
  prefix<T> with_ties(T logit, mass above, std::size_t n, mass each) const {
    const gathered counts = shards->exchange(1, [&](double* out) {
      out[0] =
          double(std::count_if(own, own + own_size(), [&](S l) { return number(l) == logit; }));
    });
    std::size_t left = n, owner = layout().ranks;
    for (std::size_t r = 0; r < layout().ranks; ++r) {
      const std::size_t count = shards->told(counts(r, 0), size() + 1);
      if (owner < layout().ranks) continue;
      if (count >= left) owner = r;
      else left -= count;
    }
    owner = std::min(owner, layout().ranks - 1);
    const gathered last = shards->exchange(1, [&](double* out) {
      std::size_t missing = left;
      const bool mine = owner == layout().rank && left > 0;
      out[0] = mine ? double(layout().begin() + nth_equal(own, own_size(), logit, missing)) : 0;
    });
    return {{logit, shards->told(last(owner, 0), size())}, above + mass(n) * each, n};
  }
  // The largest logit of this rank, and the first token that has it.
  void first_largest(const double* of_blocks, std::size_t n, double* out) const {
    out[0] = -std::numeric_limits<double>::infinity();
    std::size_t in = layout().begin();
    for (std::size_t b = layout().begin(); b < layout().end(); b += block_size, of_blocks += n)
      if (*of_blocks > out[0]) {
        out[0] = *of_blocks;
        in = b;
      }
    while (in < layout().end() && !(double(at(in)) == out[0])) ++in;
    out[1] = double(in);
  }
  void give_expected(double* out) const {
    for (std::size_t i = 0; i < expected->count; ++i) {
      const auto v = std::size_t(expected->tokens[i]);
      out[i] = layout().owns(v) ? double(at(v)) : 0;
    }
  }
  // at: where they stand among a rank's numbers.
  void take_expected(const gathered& all, std::size_t at) const {
    for (std::size_t i = 0; i < expected->count; ++i)
      (*expected_logits)[i] = T(all(layout().owner(std::size_t(expected->tokens[i])), at + i));
  }
  // Lists all tokens with a larger logit than any that a rank has not told: each tells its first n.
  // One exchange.
  bool list_known(std::size_t n, shortlist<T>& list) const {
    const gathered all = shards->exchange(1 + 2 * n, [&](double* out) {
      shortlist<T> mine;
      cutoff<T> unused;
      (void)specagg::list_largest(own, own_size(), n, mine, unused);
      out[0] = double(mine.size);
      give(mine, n, out + 1);
    });
    T bound = std::numeric_limits<T>::lowest();
    for (std::size_t r = 0; r < layout().ranks; ++r) {
      const std::size_t told = shards->told(all(r, 0), n + 1);
      for (std::size_t i = 0; i < told; ++i)
        if (!take(list, all, r, 1 + i, n)) return false;
      const auto* const last = list.logits.data() + list.size;
      if (told == n) bound = std::max(bound, next_above(*std::min_element(last - n, last)));
    }
    list.keep_from(bound);
    return list.size > 0;
  }
  // Whether no logit is NaN or +inf.
  bool all_below_infinity() const {
    for (std::size_t i = 0; i < own_size(); ++i)
      if (!(number(own[i]) < std::numeric_limits<T>::infinity())) return false;
    return true;
  }
  // A list in room for `most` tokens: their logits, then their ids.
  void give(const shortlist<T>& list, std::size_t most, double* out) const {
    for (std::size_t i = 0; i < most; ++i) {
      out[i] = i < list.size ? double(list.logits[i]) : 0;
      out[most + i] = i < list.size ? double(list.ids[i]) + double(layout().begin()) : 0;
    }
  }
  // at: where the logit stands among the numbers of rank r. False if no rank can have given it.
  bool take(shortlist<T>& list, const gathered& all, std::size_t r, std::size_t at,
            std::size_t most) const {
    constexpr T inf = std::numeric_limits<T>::infinity();
    const T l = T(all(r, at));
    const bool fits = list.capacity > list.size && l > -inf && l < inf;
    const std::size_t id = shards->told(fits ? all(r, at + most) : -1, size());
    if (shards->failed()) return false;
    list.logits[list.size] = l;
    list.ids[list.size++] = token_id(id);
    return true;
  }
};

}  // namespace detail
SPECAGG_END
