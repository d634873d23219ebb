// SPDX-License-Identifier: Apache-2.0
// Selects the first tokens of a row of logits in the order "larger logit, then lower id": the first
// token, the first k tokens, or the fewest tokens that have a given share of the mass. No memory is
// allocated. Vector code finds a lower bound, the few tokens above it are listed on the stack, and
// the selection among these is exact.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>

#include <specagg/kernel/softmax.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// The largest logit and the lowest id that has it.
template <class T>
struct top_logit {
  T logit;
  std::size_t id;
  bool valid;  // at least one logit is finite, and none is NaN or +inf
};

// One pass.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN top_logit<T> find_largest(const S* logits, std::size_t size) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  top_logit<T> top{-inf, 0, true};
  auto bad = V(0) < V(0);
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    const double largest =
        specagg::reduce_block<detail::larger>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
          const V l = detail::load_logits<V>(logits + begin + k, lanes);
          bad = bad | !(l < V(inf));
          return l;
        });
    if (T(largest) > top.logit) {
      top.logit = T(largest);
      top.id = begin;
    }
  }
  top.valid = !any(bad) && top.logit > -inf;
  while (top.id < size && !(detail::number(logits[top.id]) == top.logit)) ++top.id;
  return top;
}

namespace detail {

// Maps floats to unsigned integers in the same order. -0 and +0 map to the same integer.
template <class T>
SPECAGG_FUNCTION bits_of<T> ordered(T x) {
  const auto b = bit_cast<bits_of<T>>(x + T(0));
  constexpr auto sign = bits_of<T>(1) << (8 * sizeof(T) - 1);
  return b & sign ? bits_of<T>(~b) : bits_of<T>(b | sign);
}
template <class T>
SPECAGG_FUNCTION T unordered(bits_of<T> k) {
  constexpr auto sign = bits_of<T>(1) << (8 * sizeof(T) - 1);
  return bit_cast<T>(k & sign ? bits_of<T>(k ^ sign) : bits_of<T>(~k));
}
template <class T>
SPECAGG_FUNCTION T next_above(T x) {
  return unordered<T>(ordered(x) + 1);
}

// Every token weighs 1: prefixes of a number of tokens.
struct count_of_tokens {
  template <class T>
  SPECAGG_FUNCTION double operator()(T) const {
    return 1;
  }
};

// The last index that the sum of weight(0), weight(1), ... needs to reach `enough`. If round-off
// keeps the sum below `enough`, the last index with a weight.
template <class Weight>
SPECAGG_FUNCTION std::size_t reaching(std::size_t n, double enough, const Weight& weight) {
  std::size_t last = 0;
  double reached = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double w = weight(i);
    if (!(w > 0)) continue;
    reached += w;
    last = i;
    if (reached >= enough) break;
  }
  return last;
}
// The bucket at which the sum reaches `enough`, from the last of `n` buckets to the first, after
// tokens that weigh `above`. `above` becomes the weight before this bucket.
SPECAGG_FUNCTION inline std::uint32_t crossing_bucket(const double* mass, std::uint32_t n,
                                                      double enough, double& above) {
  double reached = above;
  std::uint32_t crossing = 0;
  for (std::uint32_t bucket = n; bucket-- > 0;) {
    if (!(mass[bucket] > 0)) continue;
    crossing = bucket;
    above = reached;
    reached += mass[bucket];
    if (reached >= enough) break;
  }
  return crossing;
}
inline constexpr int bits_at_once = 11;  // of the logits, in shortest_prefix

// The shortest prefix with a weight sum of at least `enough`. The prefix is of the tokens that
// `cut` keeps, in the order (larger logit, then lower id). Radix selection on the bits of the
// logits, bits_at_once at a time: nothing is sorted or stored. Weights must be >= 0.
// in_order(state, f) calls f(logit, id) of every token in ascending order, until it is false; all
// that f changes is in `state`, a span of doubles.
template <class T, class InOrder, class Weight>
cutoff<T> shortest_prefix(const InOrder& in_order, const cutoff<T>& cut, double enough,
                          const Weight& weight) {
  constexpr int width = 8 * sizeof(T), step = bits_at_once;
  bits_of<T> prefix = 0;
  double above = 0;  // weight of the tokens known to be in the prefix
  for (int left = width; left > 0;) {
    const int take = std::min(step, left);
    const int shift = left - take;
    double mass[1 << step] = {};
    in_order(std::span<double>(mass), [&](T l, std::size_t v) {
      const auto k = ordered(l);
      if ((left == width || (k >> left) == (prefix >> left)) && cut.keeps(l, v))
        mass[(k >> shift) & ((1u << take) - 1)] += weight(l);
      return true;
    });
    prefix |= bits_of<T>(crossing_bucket(mass, 1u << take, enough, above)) << shift;
    left = shift;
  }
  const T logit = unordered<T>(prefix);  // larger logits are all kept, and as many ties as needed
  double ties[3] = {above, 0, 0};        // weight of the ties, the last tie, whether it is found
  in_order(std::span<double>(ties), [&](T l, std::size_t v) {
    if (ties[2] == 0 && l == logit && cut.keeps(l, v)) {
      ties[0] += weight(l);
      ties[1] = double(v);
      ties[2] = ties[0] >= enough;
    }
    return ties[2] == 0;
  });
  return {logit, std::size_t(ties[1])};
}
// The same of logits in memory.
template <class S, class Weight, class T = computed<S>>
cutoff<T> shortest_prefix(const S* logits, std::size_t size, const cutoff<T>& cut, double enough,
                          const Weight& weight) {
  const auto in_order = [=](std::span<double>, const auto& f) {
    for (std::size_t v = 0; v < size; ++v)
      if (!f(number(logits[v]), v)) return;
  };
  return shortest_prefix<T>(in_order, cut, enough, weight);
}

}  // namespace detail

// Some tokens of a row, in ascending order of their ids.
template <class T>
struct shortlist {
  static constexpr std::size_t capacity = 2048;
  std::array<T, capacity> logits;
  std::array<token_id, capacity> ids;
  std::size_t size = 0;

  // Whether 16 more tokens fit.
  bool has_room() const { return size + 16 <= capacity; }
  // Appends the tokens with lowest <= logit < end among first, first + 1, ...
  template <class V>
  void append(V l, int lanes, std::size_t first, T lowest, T end) {
    T lane[16];
    l.store(lane);
    for (int i = 0; i < lanes; ++i) {
      logits[size] = lane[i];
      ids[size] = token_id(first) + i;
      size += lane[i] >= lowest && lane[i] < end;
    }
  }
  // Keeps only the shortest prefix of weight `enough`. Returns the same prefix as a cutoff of the
  // row.
  template <class Weight>
  cutoff<T> shorten(double enough, Weight weight) {
    const cutoff<T> cut = size <= few
                              ? prefix_of_few(enough, weight)
                              : detail::shortest_prefix(logits.data(), size, {}, enough, weight);
    const std::size_t last = std::size_t(ids[cut.last]);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i)
      if (cut.keeps(logits[i], i)) {
        logits[kept] = logits[i];
        ids[kept] = ids[i];
        ++kept;
      }
    size = kept;
    return {cut.logit, last};
  }

  static constexpr std::size_t few = 64;  // sorted faster than selected

 private:
  // detail::shortest_prefix of 0 < size <= few tokens, but for round-off in sums of weights.
  template <class Weight>
  cutoff<T> prefix_of_few(double enough, Weight weight) const {
    std::array<std::uint8_t, few> order = {};
    std::iota(order.begin(), order.begin() + size, std::uint8_t(0));
    std::sort(order.begin(), order.begin() + size, [this](std::uint8_t a, std::uint8_t b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    const std::size_t last = order[detail::reaching(
        size, enough, [&](std::size_t i) { return weight(logits[order[i]]); })];
    return {logits[last], last};
  }
};

namespace detail {

// A number that k of n numbers reach, and at most an eighth more of them unless some are equal; or
// the lowest finite number.
template <class T>
SPECAGG_FLATTEN T reached_by(const T* x, std::size_t n, std::size_t k) {
  using V = vec<T, 16>;
  const auto reach = [&](T bound) {
    return specagg::reduce_block<add>(n, [&](std::size_t i, int lanes) SPECAGG_INNER {
      return zero_where(load_logits<V>(x + i, lanes) < V(bound), V(1));
    });
  };
  auto low = ordered(std::numeric_limits<T>::lowest()),
       high = ordered(std::numeric_limits<T>::infinity());
  while (high - low > 1) {
    const auto middle = bits_of<T>(low + (high - low) / 2);
    const double count = reach(unordered<T>(middle));
    (count < double(k) ? high : low) = middle;
    if (count >= double(k) && count <= 1.125 * double(k)) break;
  }
  return unordered<T>(low);
}

}  // namespace detail

// Lists the first k tokens (0 < k <= capacity / 2), or all tokens that are not masked if there are
// fewer. One pass finds the largest logit of each of at most 8 k parts of the row. The lower bound
// is a number that at least k of these logits reach, and only the parts that reach it are read
// again. When the list is full, all but its first k tokens are dropped, and from then on only
// tokens larger than the last of these are listed. False if the row is invalid.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN bool list_largest(const S* logits, std::size_t size, std::size_t k,
                                  shortlist<T>& list, cutoff<T>& cut) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const detail::count_of_tokens one;
  std::array<T, shortlist<T>::capacity> largest;  // of each part
  const std::size_t vectors = (size + 15) / 16, most = std::min(8 * k, largest.size());
  const std::size_t width = 16 * std::max<std::size_t>((vectors + most - 1) / most, 1);
  const std::size_t parts = (size + width - 1) / width;
  auto bad = V(0) < V(0);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = part * width, count = std::min(width, size - begin);
    largest[part] =
        T(specagg::reduce_block<detail::larger>(count, [&](std::size_t i, int lanes) SPECAGG_INNER {
          const V l = detail::load_logits<V>(logits + begin + i, lanes);
          bad = bad | !(l < V(inf));
          return l;
        }));
  }
  if (any(bad)) return false;
  T lowest = std::numeric_limits<T>::lowest();
  if (k <= parts) lowest = detail::reached_by(largest.data(), parts, k);
  for (std::size_t part = 0; part < parts; ++part) {
    if (largest[part] < lowest) continue;
    for (std::size_t v = part * width, end = std::min(v + width, size); v < end; v += 16) {
      const int lanes = size - v < 16 ? int(size - v) : 16;
      const V l = detail::load_logits<V>(logits + v, lanes);
      if (!any(l >= V(lowest))) continue;
      if (!list.has_room()) {
        cut = list.shorten(double(k), one);
        lowest = detail::next_above(cut.logit);
      }
      list.append(l, lanes, v, lowest, inf);
    }
  }
  if (list.size >= k) cut = list.shorten(double(k), one);
  return list.size > 0;
}

// Lists all tokens with lowest <= logit < end, in one pass. False if there are too many.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN bool list_between(const S* logits, std::size_t size, T lowest, T end,
                                  shortlist<T>& list) {
  using V = vec<T, 16>;
  list.size = 0;
  for (std::size_t v = 0; v < size; v += 16) {
    const int lanes = size - v < 16 ? int(size - v) : 16;
    const V l = detail::load_logits<V>(logits + v, lanes);
    if (!any((l >= V(lowest)) & (l < V(end)))) continue;
    if (!list.has_room()) return false;
    list.append(l, lanes, v, lowest, end);
  }
  return true;
}

// A row of logits as one thread reads it. The functions below take any such row. On a device a
// thread block has one (backend/cuda/filter.hpp): the same members, and the same bits.
template <class S>
struct logits_in_memory {
  using value_type = computed<S>;
  using T = value_type;
  const S* logits;
  std::size_t count;

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
  // They call the functions of the same names above and in kernel/softmax.hpp.
  softmax_sum<T> sum_exponentials(double temperature, const cutoff<T>& cut = {}) const {
    return specagg::sum_exponentials(logits, count, temperature, cut);
  }
  bool list_largest(std::size_t k, shortlist<T>& list, cutoff<T>& cut) const {
    return specagg::list_largest(logits, count, k, list, cut);
  }
  bool list_between(T lowest, T end, shortlist<T>& list) const {
    return specagg::list_between(logits, count, lowest, end, list);
  }
  template <class Weight>
  cutoff<T> shortest_prefix(const cutoff<T>& cut, double enough, const Weight& weight) const {
    return detail::shortest_prefix(logits, count, cut, enough, weight);
  }
};
// The logits of a list, as a row.
template <class T>
logits_in_memory<T> row_of(const shortlist<T>& list) {
  return {list.logits.data(), list.size};
}

// The sum of the weights of all logits of a row.
template <class Row, class T>
SPECAGG_FUNCTION double mass_of(const Row& row, const softmax_factors<T>& weight) {
  return row.template reduce<detail::add>(
      [&](auto l) SPECAGG_INNER { return weight(l - decltype(l)(weight.max)); });
}

// The smallest logit with weight >= least. If there is none, the largest logit (its weight is 1).
template <class Row, class T>
SPECAGG_FUNCTION T smallest_with(const Row& row, const softmax_factors<T>& weight, double least) {
  const T bound = double(T(least)) < least ? detail::next_above(T(least)) : T(least);
  const double negated = row.template reduce<detail::larger>([&](auto l) SPECAGG_INNER {
    using V = decltype(l);
    return select(weight(l - V(weight.max)) >= V(bound), -l, V(-weight.max));
  });
  return T(-negated);
}

// Three sums of weights: of the tokens with logit >= a, >= b and >= c.
template <class Row, class T>
SPECAGG_FUNCTION both<double, both<double>> masses_from(const Row& row,
                                                        const softmax_factors<T>& weight, T a, T b,
                                                        T c) {
  return row.template reduce<detail::add>([&](auto l) SPECAGG_INNER {
    using V = decltype(l);
    const V e = weight(l - V(weight.max));
    return both(zero_where(l < V(a), e), both(zero_where(l < V(b), e), zero_where(l < V(c), e)));
  });
}

// Lists the tokens among which the shortest prefix of weight `enough` ends, 0 < enough < all.total.
// `above` becomes the weight of the tokens before them. False if they do not fit in the list
// (thousands of ties).
template <class Row, class List, class T>
SPECAGG_FUNCTION bool list_crossing(const Row& row, const softmax_sum<T>& all, double temperature,
                                    double enough, List& list, double& above) {
  constexpr T inf = std::numeric_limits<T>::infinity(), least = std::numeric_limits<T>::lowest();
  // A token is not needed if it weighs less than 1 / size of the weight that may be left out. (Half
  // of that is used here, which is more than any round-off.)
  const double needed =
      fma(temperature, log((all.total - enough) / double(row.size()) / 2), double(all.max));
  T lowest = needed > double(least) ? T(needed) : least, end = inf;
  const softmax_factors<T> weight(all.max, temperature, 1);
  above = 0;
  for (double from = all.total;;) {  // the weight of the tokens with logit >= `lowest`
    const T largest = end < all.max ? end : all.max;
    // of one token
    const double heaviest = double(weight(vec<T, 1>(largest) - vec<T, 1>(all.max)).v);
    if (from - above <= double(List::capacity) * heaviest && row.list_between(lowest, end, list))
      return true;
    const T step = uncontracted((vec<T, 1>(largest) - vec<T, 1>(lowest)) / vec<T, 1>(4)).v;
    const T a = lowest + step, b = a + step, c = b + step;
    if (!(lowest < a && a < b && b < c && c < end)) return false;
    const auto [from_a, from_bc] = masses_from(row, weight, a, b, c);
    const auto [from_b, from_c] = from_bc;
    if (from_c >= enough) {
      lowest = c;
      from = from_c;
    } else if (from_b >= enough) {
      lowest = b;
      from = from_b;
      end = c;
      above = from_c;
    } else if (from_a >= enough) {
      lowest = a;
      from = from_a;
      end = b;
      above = from_b;
    } else {
      end = a;
      above = from_a;
    }
  }
}

SPECAGG_END
