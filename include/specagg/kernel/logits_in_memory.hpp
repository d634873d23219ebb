// SPDX-License-Identifier: Apache-2.0
// A row of logits in the memory of one thread, as filters read it: its largest logit, its sum, its
// first k tokens, and the shortest prefix with a given mass. The first k of few tokens are listed
// in one pass, those of many are found by a pass for the largest logit and one sweep.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <specagg/kernel/prefix.hpp>

SPECAGG_BEGIN
namespace detail {

// Lists the first k tokens of a row, or all that are not masked if there are fewer. One pass: it
// lists the tokens from a bound on that a sample suggests. False if they are too many for a list,
// if the bound was too high, or if the row is invalid.
template <class S, class T = computed<S>>
bool list_probable(const S* logits, std::size_t size, std::size_t k, shortlist<T>& list,
                   cutoff<T>& cut) {
  if (k > list.capacity * 3 / 4) return false;
  T lowest = std::numeric_limits<T>::lowest();
  if (size > list.capacity) {
    row_sample<T> sample;
    sample.take(logits, size, 0, count_of_tokens());
    const double due = double(k) / sample.tokens_for_each;
    const auto enough = std::size_t(due + 2.5 * std::sqrt(due) + 2);
    lowest = reached_by_about(sample.logits.data(), sample.size, enough);
  }
  const bool all = lowest == std::numeric_limits<T>::lowest();
  const part_maxima<T> none;
  return list_from(lowest, logits, size, k, none, 3, list, cut) && list.size > 0 &&
         (list.size >= k || all);
}

// Finds the first k of many tokens by sweeps between two logits that a sample suggests, of rank k
// nearly: one sweep, seldom two. Writes their cutoff and ties. `list` gets the last of them, and
// found.kept the mass of the others. False if it did not find them: shortest_prefix() will.
template <class S, class Weight, class T = computed<S>>
bool first_of_many(const S* logits, std::size_t size, const part_maxima<T>& maxima, std::size_t k,
                   const mass_unit<T>& unit, const Weight& weight, shortlist<T>& list,
                   prefix<T>& found) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  row_sample<T> sample;
  sample.take(logits, size, 0, count_of_tokens());
  const T* const x = sample.logits.data();
  const double n = double(sample.size), each = sample.tokens_for_each;
  double most = 0.4 * double(list.capacity) / each;  // of the sample, on either side
  // so many tokens have a logit that so many of the sample have
  double tokens = 0, sampled = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const double ahead = (double(k) - tokens) / each, due = sampled + ahead,
                 spread = 2.5 * std::sqrt(std::abs(ahead) * (1 - std::min(1., due / n))) + 2,
                 off = spread < most ? spread : most;
    const auto of_rank = [&](double rank) {
      const auto r = rank < 1 ? std::size_t(1) : std::size_t(rank);
      return reached_by(x, sample.size, r, r);
    };
    if (!(due + off < n)) return false;
    T lowest = of_rank(due + off), end = due - off < 1 ? inf : next_above(of_rank(due - off));
    if (lowest == std::numeric_limits<T>::lowest()) return false;  // perhaps fewer are not masked
    const auto rank_of = [&](T logit) {
      return double(
          how_many(x, sample.size, [=](auto l) SPECAGG_INNER { return l >= decltype(l)(logit); }));
    };
    const bool tied = rank_of(lowest) - rank_of(end) > 2.2 * most;  // thousands with one logit
    if (tied) {
      lowest = of_rank(due);
      end = next_above(lowest);
    }
    const swept above =
        sweep(logits, size, maxima, {}, tied ? end : lowest, end, unit, weight, &list);
    std::size_t missing = k - above.count;
    tokens = double(above.count);
    if (above.count >= k || list.size > list.capacity) {  // it ends above, or too many were listed
      lowest = end;
      most *= 0.7;
    } else if (tied) {
      const std::size_t last = nth_equal(logits, size, lowest, missing);
      found = {{lowest, last}, above.above, k - above.count};
      found.kept += mass(found.ties) * unit.whole(weight(vec<T, 1>(lowest)).v);
      if (missing == 0) return true;
      tokens = double(k - missing);
    } else if (list.size >= missing) {
      found = {list.keep_first(missing), above.above, 0};
      found.ties = how_many(list.logits.data(), list.size, [&](auto l) SPECAGG_INNER {
        return l == decltype(l)(found.cut.logit);
      });
      return true;
    } else {
      tokens += double(list.size);
    }
    sampled = rank_of(lowest);
  }
  return false;
}

}  // namespace detail

// A row of logits as one thread reads it. The filters (rows/process.hpp) take any such row. On a
// device a thread block has one (backend/cuda/filter.hpp): the same members, and the same results.
template <class S>
struct logits_in_memory {
  using value_type = computed<S>;
  using T = value_type;
  const S* logits;
  std::size_t count;
  part_maxima<T> maxima;  // of the first pass

  logits_in_memory(const S* row, std::size_t size) : logits(row), count(size) {}
  std::size_t size() const { return count; }
  // Sums f(logits), or takes the largest, in the order of kernel/reduce.hpp; f takes a vec.
  template <class Op, class F>
  SPECAGG_FLATTEN auto reduce(const F& f) const {
    return reduce_blocks<Op>(count, [&](std::size_t begin, std::size_t n) SPECAGG_INNER {
      return specagg::reduce_block<Op>(n, [&](std::size_t k, int lanes) SPECAGG_INNER {
        return f(detail::load_logits<vec<T, 16>>(logits + begin + k, lanes));
      });
    });
  }
  // The largest logit; NaN if the row is invalid.
  T largest() {
    const auto top = find_largest(logits, count, &maxima);
    return top.valid ? top.logit : std::numeric_limits<T>::quiet_NaN();
  }
  // The mass of the tokens with logit >= lowest.
  template <class Weight>
  mass mass_from(const mass_unit<T>& unit, const Weight& weight, T lowest) const {
    int reach = 0, seen = 0;
    for (std::size_t v = 0; v + 16 <= count; v += 4 * block_size, seen += 16)
      reach += std::popcount(
          bits(vec<T, 16>(detail::load_logits<vec<T, 16>>(logits + v, 16)) >= vec<T, 16>(lowest)));
    if (2 * reach > seen) return sum_mass_from(*this, unit, weight, lowest);
    return detail::sweep(logits, count, maxima, {}, lowest, lowest, unit, weight,
                         static_cast<shortlist<T>*>(nullptr))
        .above;
  }
  // They call the functions of the same names above and in kernel/softmax.hpp.
  softmax_sum<T> sum_exponentials(double temperature) {
    row_sums none;
    return specagg::sum_exponentials(logits, count, temperature, {}, none, &maxima);
  }
  // Lists the first k tokens, if that is a way to find them.
  bool list_first(std::size_t k, shortlist<T>& list, cutoff<T>& cut) {
    return detail::list_probable(logits, count, k, list, cut) ||
           (k <= 256 && count > list.capacity &&
            specagg::list_largest(logits, count, k, list, cut, &maxima));
  }
  // Finds the first k tokens where list_first() does not: they are too many. Writes their cutoff,
  // mass and ties. False if it does not find them; `list` is of no use then.
  template <class Weight>
  bool find_first(std::size_t k, const mass_unit<T>& unit, const Weight& weight, shortlist<T>& list,
                  prefix<T>& found) const {
    if (!(count > list.capacity &&
          detail::first_of_many(logits, count, maxima, k, unit, weight, list, found)))
      return false;
    const logits_in_memory<T> last(list.logits.data(), list.size);
    found.kept += sum_mass_from(last, unit, weight, std::numeric_limits<T>::lowest());
    list.size = 0;
    return true;
  }
  // The shortest prefix with a mass of at least `enough` > 0, which the tokens with logit >= lowest
  // have. total: the sum of their weights, nearly. lightest: a hint; tokens below this logit have
  // too little mass to matter. `list` gets all tokens of the prefix, or is emptied.
  template <class Weight>
  prefix<T> shortest_prefix(mass enough, T lowest, double total, T lightest,
                            const mass_unit<T>& unit, const Weight& weight,
                            shortlist<T>& list) const {
    detail::bracket<T> all;
    all.lowest = lowest;
    all.from = total;
    return detail::shortest_prefix(logits, count, maxima, all, lightest, enough, unit, weight,
                                   list);
  }
};
// The logits of a list, as a row.
template <class T>
logits_in_memory<T> row_of(const shortlist<T>& list) {
  return {list.logits.data(), list.size};
}

SPECAGG_END
