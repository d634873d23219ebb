// SPDX-License-Identifier: Apache-2.0
// The shortest prefix of a row of logits with a given mass, in the order "larger logit, then lower
// id". Nothing is sorted. If the largest logits of the row's parts have that mass, the prefix ends
// above the least of them that is needed, and the tokens from there on are listed. Otherwise a
// sample of the row says between which two logits the prefix ends. One sweep over the row adds up
// the mass above them, and lists the tokens between them. The prefix ends among these tokens, or
// else the exact mass above them is where the next sweep begins. Masses are whole numbers
// (kernel/mass.hpp), so the result does not depend on the sample.
#pragma once
#include <algorithm>
#include <array>
#include <bit>

#include <specagg/kernel/select.hpp>

SPECAGG_BEGIN
namespace detail {

// A prefix ends at a token with lowest <= logit < end.
template <class T>
struct bracket {
  T lowest = std::numeric_limits<T>::lowest(), end = std::numeric_limits<T>::infinity();
  double from = 0;  // the mass of the tokens with logit >= lowest, in weights; nearly
  mass above = 0;   // the mass of the tokens with logit >= end
};

// 16 tokens of every block of a row, or of every second, third, ... block of a long one.
template <class T>
struct row_sample {
  static constexpr std::size_t most = 2048;
  std::array<T, most> logits, weights;
  std::size_t size = 0;
  double tokens_for_each = 1;

  // `turn`: another number is another sample.
  template <class S, class Weight>
  SPECAGG_FLATTEN void take(const S* row, std::size_t V, std::size_t turn, const Weight& weight) {
    using L = vec<T, 16>;
    const std::size_t step = (block_count(V) * 16 + most - 1) / most;
    size = 0;
    for (std::size_t b = turn % step; b < V / block_size; b += step, size += 16) {
      const L l = load_logits<L>(row + b * block_size + (37 * b + 29 * turn) % 64 * 16, 16);
      l.store(logits.data() + size);
      L(weight(l)).store(weights.data() + size);
    }
    tokens_for_each = double(V) / double(size > 0 ? size : 1);
  }
};

// A narrower bracket of a prefix, as a sample of the row suggests it. It may be wrong.
template <class T>
class narrower_bracket {
 public:
  T lowest, end;
  // lightest: tokens below this logit have too little mass to matter
  template <class Weight>
  SPECAGG_OUTLINE narrower_bracket(const row_sample<T>& sample, const bracket<T>& in, T lightest,
                                   double enough, double above, const Weight& weight)
      : lowest(lightest > in.lowest && lightest < in.end ? lightest : in.lowest),
        end(in.end),
        each_(sample.tokens_for_each) {
    take(sample, in);
    // Standard deviations on either side: fewer when too many tokens would be listed.
    for (const double within : {2.5, 2.5, 2., 1.5, 1., 0.4, 0.}) {
      if (fits(size_ + higher_)) {  // the list has room for all tokens of the prefix
        end = in.end;
        return;
      }
      if (fits(size_)) return;
      if (low_ == high_ || within == 0) break;
      divide(in, within * within, enough, above, weight);
      drop();
    }
    lowest = high_;  // many tokens with few logits: the largest of these logits
    end = next_above(high_);
  }

 private:
  using V = vec<T, 16>;
  static constexpr T inf = std::numeric_limits<T>::infinity();
  // The sampled tokens with lowest <= logit < end: their logits and weights, followed by 16 of
  // logit -inf and weight 0, and the least and the largest logit.
  std::array<T, row_sample<T>::most + 16> logits_, weights_;
  std::size_t size_ = 0, higher_ = 0;  // higher_: how many have a logit >= end
  T low_, high_;
  const double each_;
  // Sums of the weights and of their squares: of all in the bracket, and of those with logit >= end
  struct sums {
    double mass = 0, squares = 0;
  } all_, head_;

  // Whether the list probably has room for the tokens that n sampled ones stand for.
  bool fits(std::size_t n) const {
    return double(n) * each_ < 0.85 * double(shortlist<T>::capacity);
  }
  SPECAGG_FLATTEN void take(const row_sample<T>& sample, const bracket<T>& in) {
    V mass(0), squares(0);
    for (std::size_t i = 0; i < sample.size; i += 16) {
      const V l = V::load(sample.logits.data() + i), w = V::load(sample.weights.data() + i);
      const auto counted = (l >= V(in.lowest)) & (l < V(in.end));
      const V weight = select(counted, w, V(0));
      mass = mass + weight;
      squares = fma(weight, weight, squares);
      select(counted, l, V(-inf)).store(logits_.data() + i);
      weight.store(weights_.data() + i);
    }
    all_ = {double(reduce_add(mass)), double(reduce_add(squares))};
    size_ = sample.size;
    drop();
  }
  // Drops the tokens that are not in the bracket any more.
  SPECAGG_FLATTEN void drop() {
    V least(inf), largest(-inf), mass(0), squares(0), higher(0);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; i += 16) {
      const V l = V::load(logits_.data() + i), w = V::load(weights_.data() + i);
      const auto above = l >= V(end), in = (l >= V(lowest)) & (l < V(end));
      const V above_end = select(above, w, V(0));
      mass = mass + above_end;
      squares = fma(above_end, above_end, squares);
      higher = higher + select(above, V(1), V(0));
      least = min(least, select(in, l, V(inf)));
      largest = max(largest, select(in, l, V(-inf)));
      store_some(w, in, weights_.data() + kept);
      kept += store_some(l, in, logits_.data() + kept);
    }
    V(-inf).store(logits_.data() + kept);
    V(0).store(weights_.data() + kept);
    size_ = kept;
    higher_ += std::size_t(reduce_add(higher));
    head_.mass += double(reduce_add(mass));
    head_.squares += double(reduce_add(squares));
    low_ = -T(reduce_max(-least));
    high_ = T(reduce_max(largest));
  }
  template <class Weight>
  SPECAGG_FLATTEN void divide(const bracket<T>& in, double variances, double enough, double above,
                              const Weight& weight) {
    constexpr int buckets = 256;
    // logits so close that their differences are subnormal are enlarged
    const bool close = high_ - low_ < std::numeric_limits<T>::min() * T(1 << 20);
    const T up = close ? T(std::uint64_t(1) << 60) : T(1);
    const T low = low_, after = next_above(high_);
    const T step = (after / 2 * up - low / 2 * up) / T(buckets / 2), scale = 1 / step;
    if (!(step > 0) || !(scale > 0 && scale < inf)) return;
    sums of[buckets] = {};
    for (std::size_t i = 0; i < size_; i += 16) {
      T bucket[16];
      const V x = (V::load(logits_.data() + i) - V(low)) * V(up) * V(scale);
      min(max(x, V(0)), V(buckets - 1)).store(bucket);
      for (std::size_t k = 0; k < 16; ++k) {  // behind the last token: weights of 0
        const double w = double(weights_[i + k]);
        sums& here = of[int(bucket[k])];
        here = {here.mass + w, here.squares + w * w};
      }
    }
    T heaviest[buckets];  // the weight at the lower edge of each bucket
    for (int i = 0; i < buckets; i += 16)
      V(weight(fma(V::iota(T(i)), V(step / up), V(low)))).store(heaviest + i);
    const double top = as_double(weight(vec<T, 1>(in.end < after ? in.end : after)));
    // From the last bucket down: the mass from its lower edge on, by what was sampled above it or
    // by what was sampled below it. The error: standard deviations, and a token that was not seen.
    sums head = head_;
    for (int i = buckets; i-- > 0;) {
      head = {head.mass + of[i].mass, head.squares + of[i].squares};
      const double by_head = above + each_ * head.mass,
                   by_tail = in.from - each_ * (all_.mass - head.mass),
                   unseen_above = each_ * (top < 1 ? top : 1),
                   unseen_below = each_ * double(heaviest[i]),
                   error_above =
                       variances * each_ * each_ * head.squares + unseen_above * unseen_above,
                   error_below = variances * each_ * each_ * (all_.squares - head.squares) +
                                 unseen_below * unseen_below;
      const bool use_head = error_above < error_below;
      const double off = (use_head ? by_head : by_tail) - enough;
      if (off * off <= (use_head ? error_above : error_below)) continue;
      const T edge = low + T(i) * step / up;
      if (!(edge < inf)) continue;  // the ends are far apart
      if (off < 0) {
        if (edge < end && edge > in.lowest) end = edge;
      } else {
        if (edge > lowest) lowest = edge;
        return;
      }
    }
  }
};

// The n-th token (n > 0) with this logit; or `size` if there are fewer, and n becomes the number
// that is missing.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN std::size_t nth_equal(const S* logits, std::size_t size, T logit, std::size_t& n) {
  using V = vec<T, 16>;
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    const auto equal =
        std::size_t(specagg::reduce_block<add>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
          return select(load_logits<V>(logits + begin + k, lanes) == V(logit), V(1), V(0));
        }));
    if (equal < n) {
      n -= equal;
      continue;
    }
    for (std::size_t v = begin;; ++v)
      if (number(logits[v]) == logit && --n == 0) return v;
  }
  return size;
}

// The tokens from a logit on: their mass, and how many they are.
struct swept {
  mass above;
  std::size_t count;
};
// One pass. Returns the mass of the tokens with logit >= end, of which those with logit >= in.end
// have in.above, and counts those below in.end. Lists the tokens with lowest <= logit < end; if
// they are too many, list->size is above `capacity`. lowest = end: no list is needed.
template <class S, class Weight, class T = computed<S>>
SPECAGG_FLATTEN swept sweep(const S* logits, std::size_t size, const part_maxima<T>& maxima,
                            const bracket<T>& in, T lowest, T end, const mass_unit<T>& unit,
                            const Weight& weight, shortlist<T>* list) {
  using V = vec<T, 16>;
  constexpr bool counts = std::is_same_v<Weight, count_of_tokens>;
  std::array<T, block_size> high;  // logits >= end, which are weighed together
  std::size_t size_of_high = 0;
  mass above = in.above;
  std::size_t count = 0;
  const bool to_the_end = !(in.end < std::numeric_limits<T>::infinity());
  const auto weigh = [&]() SPECAGG_INNER {
    above += unit.whole(
        specagg::reduce_block<add>(size_of_high, [&](std::size_t k, int lanes) SPECAGG_INNER {
          return unit.divide(V(weight(load_logits<V>(high.data() + k, lanes))));
        }));
    size_of_high = 0;
  };
  if (list) list->size = 0;
  for (std::size_t first = 0; first < size; first += 64) {  // 64 tokens for a branch
    if (first % block_size == 0 && !maxima.may_reach(first / block_size, lowest)) {
      first += block_size - 64;
      continue;
    }
    const group_of_logits<S> group(logits, first, size);
    if (!group.any_from(lowest)) continue;
    std::uint64_t from_end = 0;
    if (group.any_from(end)) {
      from_end = group.from(end);
      count += std::size_t(std::popcount(to_the_end ? from_end : from_end & ~group.from(in.end)));
      if constexpr (!counts) {
        const auto store = [&](const V& l) SPECAGG_INNER {
          size_of_high +=
              store_some(l, (l >= V(end)) & (l < V(in.end)), high.data() + size_of_high);
        };
        store(group.a);
        store(group.b);
        store(group.c);
        store(group.d);
        if (size_of_high > block_size - 64) weigh();
      }
    }
    if (!(lowest < end) || list->size > list->capacity) continue;
    const std::uint64_t between = group.from(lowest) & ~from_end;
    if (list->has_room()) list->append(logits, first, between);
    else if (between != 0) list->size = list->capacity + 1;
  }
  if constexpr (counts) above += mass(count) * unit.whole(T(1));
  else weigh();
  return {above, count};
}

// A logit that tokens with a mass of at least `enough` have, by the largest logits of the parts of
// a row; in.lowest if that is not known, or if tokens from it on may be too many for a list.
template <class T, class Weight>
T bound_by_maxima(const part_maxima<T>& maxima, const bracket<T>& in, T lightest, mass enough,
                  const mass_unit<T>& unit, const Weight& weight, shortlist<T>& list) {
  const T from = lightest > in.lowest ? lightest : in.lowest;
  using V = vec<T, 16>;
  V mass_of_parts(0);  // nearly: that of a flat row is far from enough
  for (std::size_t i = 0; i < maxima.size; i += 16) {
    const V l = V::load(maxima.of.data() + i);
    mass_of_parts = mass_of_parts + zero_where(l < V(from), V(weight(l)));
  }
  if (double(reduce_add(mass_of_parts)) < 0.99 * unit.sum(enough)) return in.lowest;
  const part_maxima<T> none;
  const auto pass = [&](T end, shortlist<T>* listed) {
    return sweep(maxima.of.data(), maxima.size, none, {}, from, end, unit, weight, listed);
  };
  if (pass(from, nullptr).above < enough) return in.lowest;
  pass(in.end, &list);
  if (list.size > list.capacity) return in.lowest;
  const T bound = list.shorten(enough, unit, weight).cut.logit;
  // n of m parts reach the bound: some -m log(1 - n / m) tokens
  const double parts = double(maxima.size), tokens = -parts * log(1 - double(list.size) / parts);
  return tokens < 0.85 * double(list.capacity) ? bound : in.lowest;
}

// The shortest prefix of a row with a mass of at least `enough`, 0 < enough <= the mass of all.
// in: the row's largest bracket. `list` gets all tokens of the prefix, or is emptied.
template <class S, class Weight, class T = computed<S>>
prefix<T> shortest_prefix(const S* logits, std::size_t size, const part_maxima<T>& maxima,
                          bracket<T> in, T lightest, mass enough, const mass_unit<T>& unit,
                          const Weight& weight, shortlist<T>& list) {
  const T bound = bound_by_maxima(maxima, in, lightest, enough, unit, weight, list);
  if (bound > in.lowest) {
    sweep(logits, size, maxima, in, bound, in.end, unit, weight, &list);
    if (list.size <= list.capacity) return list.shorten(enough, unit, weight);
  }
  row_sample<T> sample;
  bool fits = true;  // whether the last list had room
  for (std::size_t turn = 0;; ++turn) {
    T lowest = in.lowest, end = in.end;
    if (turn % 2 == 0 && size > shortlist<T>::capacity) sample.take(logits, size, turn, weight);
    if (sample.size > 0 && turn < 8) {
      const narrower_bracket<T> guess(sample, in, lightest, unit.sum(enough), unit.sum(in.above),
                                      weight);
      lowest = guess.lowest;
      end = guess.end;
    }
    const bool bisect = !fits && lowest == in.lowest && end == in.end;  // the sample did not help
    if (bisect) {
      const auto a = ordered(in.lowest), b = ordered(in.end);
      const T middle = unordered<T>(bits_of<T>(a + (b - a + 1) / 2));
      lowest = end = middle > in.lowest ? middle : next_above(in.lowest);
    }
    const mass above = sweep(logits, size, maxima, in, lowest, end, unit, weight, &list).above;
    fits = bisect ? turn % 4 == 0 : list.size <= list.capacity;  // every fourth turn lists again
    if (above >= enough) {                                       // it ends above
      in.lowest = end;
      in.from = unit.sum(above);
      continue;
    }
    in.end = end;
    in.above = above;
    if (bisect) continue;
    if (fits) {
      const bool all = in.lowest == lowest;
      mass listed = 0;
      if (list.size > 0) {
        // tokens above `end` are not in the list: then it is not the prefix
        std::size_t last;
        prefix<T> found = above > 0 ? list.shortest(enough - above, unit, weight, last)
                                    : list.shorten(enough, unit, weight);
        listed = found.kept;
        if (above + listed >= enough || all) {
          found.kept += above;
          if (above > 0) list.size = 0;
          return found;
        }
      }
      in.end = lowest;  // it ends below
      in.above = above + listed;
    } else if (!(next_above(lowest) < end)) {  // thousands of tokens with one logit
      const mass each = unit.whole(weight(vec<T, 1>(lowest)).v);
      const std::size_t ties = each > 0 ? std::size_t((enough - above + each - 1) / each) : 0;
      std::size_t missing = ties;
      const std::size_t last = ties > 0 ? nth_equal(logits, size, lowest, missing) : 0;
      if (ties > 0 && missing == 0) {
        list.size = 0;
        return {{lowest, last}, above + mass(ties) * each, ties};
      }
      in.end = lowest;
      in.above = above + mass(ties - missing) * each;
    }
  }
}

}  // namespace detail
SPECAGG_END
