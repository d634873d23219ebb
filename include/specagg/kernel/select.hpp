// SPDX-License-Identifier: Apache-2.0
// Selects the first tokens of a row of logits in the order "larger logit, then lower id": the first
// token, the first k tokens, or the fewest tokens that have a given share of the mass. No memory is
// allocated. Vector code finds a lower bound, the few tokens above it are listed on the stack, and
// the selection among these is exact.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <numeric>

#include <specagg/kernel/mass.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// The largest logit and the lowest id that has it.
template <class T>
struct top_logit {
  T logit;
  std::size_t id;
  bool valid;  // at least one logit is finite, and none is NaN or +inf
};

// One pass. maxima, unless it is null: is set.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN top_logit<T> find_largest(const S* logits, std::size_t size,
                                          part_maxima<T>* maxima = nullptr) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  top_logit<T> top{-inf, 0, true};
  auto bad = V(0) < V(0);
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = size - begin < block_size ? size - begin : block_size;
    V largest(-inf);
    for (std::size_t k = 0; k < count; k += 64) {
      const detail::group_of_logits<S> group(logits, begin + k, size);
      bad = bad | group.bad();
      largest = max(group.largest(), largest);
    }
    if (maxima) maxima->add(begin / block_size, largest);
    if (const T l = T(reduce_max(largest)); l > top.logit) {
      top.logit = l;
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
  const T up = unordered<T>(ordered(x) + 1);
  // a host that reads subnormal numbers as 0 has none between 0 and the least normal one
  return up > x ? up : std::numeric_limits<T>::min();
}

// The bucket at which the sum reaches `enough`, from the last of `n` buckets to the first, after
// tokens of the mass `above`. `above` becomes the mass before this bucket. If the sum stays below
// `enough`, the first bucket with a mass.
SPECAGG_FUNCTION inline std::uint32_t crossing_bucket(const mass* of, std::uint32_t n, mass enough,
                                                      mass& above) {
  mass reached = above;
  std::uint32_t crossing = 0;
  for (std::uint32_t bucket = n; bucket-- > 0 && reached < enough;) {
    if (of[bucket] == 0) continue;
    crossing = bucket;
    above = reached;
    reached += of[bucket];
  }
  return crossing;
}

// How many of n numbers a test is true for; it takes a vec, and is false for -inf.
template <class T, class Test>
SPECAGG_FLATTEN std::size_t how_many(const T* x, std::size_t n, const Test& test) {
  using V = vec<T, 16>;
  int count = 0;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) count += std::popcount(bits(test(V::load(x + i))));
  if (i < n) count += std::popcount(bits(test(load_logits<V>(x + i, int(n - i)))));
  return std::size_t(count);
}

// The least of n > 0 numbers.
template <class T>
SPECAGG_FLATTEN T least_of(const T* x, std::size_t n) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  V least(inf);
  for (std::size_t i = 0; i < n; i += 16) {
    const int lanes = n - i < 16 ? int(n - i) : 16;
    least = min(least, V::load_partial(x + i, lanes, inf));
  }
  return -T(reduce_max(-least));
}

// A number that at least k of n numbers reach, and at most `most` of them unless some are equal; or
// the lowest finite number.
template <class T>
SPECAGG_FLATTEN T reached_by(const T* x, std::size_t n, std::size_t k, std::size_t most) {
  constexpr T lowest = std::numeric_limits<T>::lowest(), inf = std::numeric_limits<T>::infinity();
  using V = vec<T, 16>;
  // The ends become the least number >= low and the number after the largest one < high.
  auto low = ordered(lowest), high = ordered(inf);
  std::size_t from_low = n, from_high = 0;  // how many numbers reach them
  const auto narrow = [&]() SPECAGG_INNER {
    const V from(unordered<T>(low)), to(unordered<T>(high));
    V least(inf), largest(lowest);
    for (std::size_t i = 0; i < n; i += 16) {
      const V l = load_logits<V>(x + i, n - i < 16 ? int(n - i) : 16);
      least = min(least, select(l >= from, l, V(inf)));
      largest = max(largest, select(l < to, l, V(lowest)));
    }
    // never wider: a host that reads subnormal numbers as 0 takes some for equal
    low = std::max(low, ordered(-T(reduce_max(-least))));
    high = std::min(high, ordered(next_above(T(reduce_max(largest)))));
  };
  const auto reach = [&](bits_of<T> bound) {
    return how_many(
        x, n, [at = unordered<T>(bound)](auto l) SPECAGG_INNER { return l >= decltype(l)(at); });
  };
  narrow();
  if (!(low < high) || (from_low = reach(low)) < k) return lowest;
  for (int step = 1; low + 1 < high && from_low > most; ++step) {
    if (step % 6 == 0) {  // there may be few different numbers
      narrow();
      continue;
    }
    auto middle = bits_of<T>(low + (high - low) / 2);
    if (step % 3 != 0) {  // as if the counts fell like an exponential: those of logits often do
      // the bits of a float are nearly linear in its logarithm
      const auto log_of = [](std::size_t count) { return T(ordered(T(count) + T(0.5))); };
      const T all = log_of(from_low), from = unordered<T>(low), to = unordered<T>(high),
              part = (all - log_of((k + most) / 2)) / (all - log_of(from_high));
      const auto guess = ordered(from + (to - from) * part);
      if (guess > low && guess < high) middle = guess;
    }
    const std::size_t count = reach(middle);
    (count < k ? high : low) = middle;
    (count < k ? from_high : from_low) = count;
  }
  return unordered<T>(low) + T(0);  // a subnormal number that is read as 0 becomes 0
}
// A number that at least k of n numbers reach, and not many more; or the lowest finite number. When
// k is a small part of n, it is found among the larger ones of two, four, ... numbers.
template <class T>
SPECAGG_FLATTEN T reached_by_about(const T* x, std::size_t n, std::size_t k) {
  std::array<T, 2048> larger_ones;
  while (n % 32 == 0 && n <= 2 * larger_ones.size() && 64 * k <= n) {
    n /= 2;
    for (std::size_t i = 0; i < n; i += 16)
      max(vec<T, 16>::load(x + i), vec<T, 16>::load(x + n + i)).store(larger_ones.data() + i);
    x = larger_ones.data();
  }
  return reached_by(x, n, k, k + k / 8);
}

}  // namespace detail

// The first tokens of a row: the cutoff that keeps them, their mass, and how many of them have the
// cutoff's logit.
template <class T>
struct prefix {
  cutoff<T> cut;
  mass kept;
  std::size_t ties;
};

// Some tokens of a row, in ascending order of their ids.
template <class T>
struct shortlist {
  static constexpr std::size_t capacity = sizeof(T) == 4 ? 4096 : 2048;
  std::array<T, capacity> logits;
  std::array<token_id, capacity> ids;
  std::size_t size = 0;

  // Whether 64 more tokens fit.
  bool has_room() const { return size + 64 <= capacity; }
  // Appends the tokens first + i of a row, i the bits of `which` that are 1. There must be room.
  template <class S>
  SPECAGG_INLINE void append(const S* row, std::size_t first, std::uint64_t which) {
    std::size_t n = size;
    do {
      for (int i = 0; i < 2; ++i) {  // two at a time, appended or not: no branch for each
        const std::size_t v = first + std::size_t(std::countr_zero(which) & 63);
        logits[n] = detail::number(row[v]);
        ids[n] = token_id(v);
        n += which != 0;
        which &= which - 1;
      }
    } while (which != 0);
    size = n;
  }
  // The shortest prefix with a mass of at least `enough`, of a list that is not empty: all tokens
  // with a mass, if all have less. `at` becomes the place of its last token.
  template <class Weight>
  prefix<T> shortest(mass enough, const mass_unit<T>& unit, const Weight& weight,
                     std::size_t& at) const;
  // Keeps only that prefix, and returns it.
  template <class Weight>
  prefix<T> shorten(mass enough, const mass_unit<T>& unit, const Weight& weight) {
    std::size_t last;
    const prefix<T> found = shortest(enough, unit, weight, last);
    keep([cut = cutoff<T>{logits[last], last}](T l, std::size_t i) { return cut.keeps(l, i); });
    return found;
  }
  // Keeps only the first k tokens, 0 < k <= size. Returns the row's cutoff that keeps them.
  cutoff<T> keep_first(std::size_t k) {
    const T bound = detail::reached_by(logits.data(), size, k, k);
    const auto count = [&](auto test) { return detail::how_many(logits.data(), size, test); };
    if (count([=](auto l) SPECAGG_INNER { return l >= decltype(l)(bound); }) <= k) {
      keep_from(bound);
      const T least = detail::least_of(logits.data(), size);
      std::size_t last = size - 1;
      while (logits[last] != least) --last;
      return {least, std::size_t(ids[last])};
    }
    // not all that have the last logit are kept
    std::size_t ties = k - count([=](auto l) SPECAGG_INNER { return l > decltype(l)(bound); });
    std::size_t last = 0;
    while ((ties -= logits[last] == bound) > 0) ++last;
    const cutoff<T> cut{bound, std::size_t(ids[last])};
    keep([=](T l, std::size_t i) { return (l > bound) | ((l == bound) & (i <= last)); });
    return cut;
  }
  // Keeps only the tokens with logit >= lowest.
  void keep_from(T lowest) {
    keep([=](T l, std::size_t) { return l >= lowest; });
  }

 private:
  template <class Keep>
  void keep(const Keep& keep_token) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const bool stays = keep_token(logits[i], i);
      logits[kept] = logits[i];
      ids[kept] = ids[i];
      kept += stays;
    }
    size = kept;
  }
};

namespace detail {

// Stores the lanes of the mask, one after the other, and returns their number. Writes x[0 .. N).
template <class T, int N>
SPECAGG_INLINE std::size_t store_some(const vec<T, N>& a, const lane_mask<T, N>& mask, T* x) {
  if constexpr (requires { a.lo; }) {
    const std::size_t n = store_some(a.lo, mask.lo, x);
    return n + store_some(a.hi, mask.hi, x + n);
  } else {
    const std::uint32_t which = bits(mask);
    // its type is asked for: clang++ converts a register of doubles to one of floats
    if constexpr (requires(typename vec<T, N>::reg r) {
                    { packed(r, which) } -> std::same_as<decltype(r)>;
                  }) {
      vec<T, N>(typename vec<T, N>::batch(packed(typename vec<T, N>::reg(a.v), which))).store(x);
    } else {
      T lane[std::size_t(N)];
      a.store(lane);
      std::size_t n = 0;
      for (int i = 0; i < N; ++i) {
        x[n] = lane[i];
        n += which >> i & 1;
      }
    }
    return std::size_t(std::popcount(which));
  }
}

inline constexpr std::size_t few_tokens = 64;  // sorted faster than divided

// A search for the shortest prefix of a list: it ends among the tokens `at[0 .. size)`, in
// ascending order. needed, kept, ties: the mass that the prefix needs of them, the mass that it
// has, and its tokens with its last logit.
template <class T>
struct prefix_search {
  static constexpr std::size_t capacity = shortlist<T>::capacity;
  const mass_unit<T>& unit;
  const shortlist<T>& list;
  mass needed, kept = 0;
  std::array<T, capacity> weights;
  std::array<std::uint16_t, capacity> at;
  std::size_t size, ties = 0;
  bool close = false;  // logits so close that they are sorted, not divided

  // Divides n tokens by their logits into 256 buckets, and keeps the one in which the prefix ends.
  // token(i), i < n: their places in the list, whose logits are from low to high, low < high.
  template <class Token>
  void divide(std::size_t n, T low, T high, const Token& token) {
    constexpr std::uint32_t last = 255;
    // high - low may be infinite
    const double from = double(low) / 2, scale = last / (double(high) / 2 - from);
    close = !(scale > 0 && scale < std::numeric_limits<double>::infinity());
    if (close) {
      for (std::size_t i = 0; i < n; ++i) at[i] = std::uint16_t(token(i));
      size = n;
      return;
    }
    mass of[last + 1] = {}, above = 0;
    std::array<std::uint8_t, capacity> bucket;
    for (std::size_t i = 0; i < n; ++i) {
      const T l = list.logits[token(i)];
      const double x = (double(l) / 2 - from) * scale;
      const std::uint32_t b = x < last && l != high ? std::uint32_t(x) : last;
      bucket[i] = std::uint8_t(b);
      of[b] += unit.whole(weights[token(i)]);
    }
    const std::uint32_t crossing = crossing_bucket(of, last + 1, needed, above);
    needed -= above;
    kept += above;
    size = 0;
    for (std::size_t i = 0; i < n; ++i) {
      at[size] = std::uint16_t(token(i));
      size += bucket[i] == crossing;
    }
  }
  // The last token of the prefix of a list that is not empty.
  template <class Weight>
  SPECAGG_FLATTEN std::size_t last(const Weight& weight) {
    using V = vec<T, 16>;
    constexpr T inf = std::numeric_limits<T>::infinity();
    V low(inf), high(-inf);
    for (std::size_t i = 0; i < list.size; i += 16) {
      const int lanes = list.size - i < 16 ? int(list.size - i) : 16;
      const V l = load_logits<V>(list.logits.data() + i, lanes);
      V(weight(l)).store(weights.data() + i);
      low = min(low, select(V::iota(0) < V(lanes), l, V(inf)));
      high = max(high, l);
    }
    T least = -T(reduce_max(-low)), most = T(reduce_max(high));
    if (list.size > few_tokens && least < most) {
      divide(list.size, least, most, [](std::size_t i) { return i; });
    } else {
      size = list.size;
      std::iota(at.begin(), at.begin() + std::ptrdiff_t(size), std::uint16_t(0));
    }
    const auto less = [this](auto a, auto b) { return list.logits[a] < list.logits[b]; };
    while (size > few_tokens && !close) {
      const auto [a, b] = std::minmax_element(at.begin(), at.begin() + std::ptrdiff_t(size), less);
      least = list.logits[*a];
      most = list.logits[*b];
      if (least == most) break;
      divide(size, least, most, [this](std::size_t i) { return std::size_t(at[i]); });
    }
    if (size <= few_tokens || close)
      std::sort(at.begin(), at.begin() + std::ptrdiff_t(size),
                [&](auto a, auto b) { return less(b, a) || (!less(a, b) && a < b); });
    std::size_t found = at[0];
    for (std::size_t i = 0; i < size && needed > 0; ++i) {
      const mass m = unit.whole(weights[at[i]]);
      if (m == 0) continue;
      ties = list.logits[at[i]] == list.logits[found] ? ties + 1 : 1;
      found = at[i];
      needed -= m;
      kept += m;
    }
    return found;
  }
};

}  // namespace detail

template <class T>
template <class Weight>
prefix<T> shortlist<T>::shortest(mass enough, const mass_unit<T>& unit, const Weight& weight,
                                 std::size_t& at) const {
  detail::prefix_search<T> search{unit, *this, enough, 0, {}, {}, 0, 0};
  at = search.last(weight);
  return {{logits[at], std::size_t(ids[at])}, search.kept, search.ties};
}

namespace detail {

// Lists the first k tokens of a row (k < the list's capacity - 64), or all with logit >= `lowest`
// if these are fewer. One pass over the blocks that may reach this logit. False if a logit there is
// NaN or +inf, or if the list was full more than `times` times.
template <class S, class T = computed<S>>
SPECAGG_FLATTEN bool list_from(T lowest, const S* logits, std::size_t size, std::size_t k,
                               const part_maxima<T>& maxima, int times, shortlist<T>& list,
                               cutoff<T>& cut) {
  constexpr std::size_t full = shortlist<T>::capacity - 63;
  auto bad = vec<T, 16>(0) < vec<T, 16>(0);
  std::size_t most = k;
  list.size = 0;
  for (std::size_t first = 0; first < size; first += 64) {
    if (first % block_size == 0 && !maxima.may_reach(first / block_size, lowest)) {
      first += block_size - 64;
      continue;
    }
    if (list.size >= most) {  // k tokens are before any later one with the logit `lowest`
      if (most == full) {
        if (any(bad) || times-- == 0) return false;
        lowest = list.keep_first(k).logit;
      }
      lowest = next_above(lowest);
      most = full;
    }
    const group_of_logits<S> group(logits, first, size);
    bad = bad | group.bad();
    list.append(logits, first, group.from(lowest));
  }
  if (any(bad)) return false;
  if (list.size >= k) cut = list.keep_first(k);
  return true;
}

}  // namespace detail

// The most tokens that list_largest() finds faster than a search by mass (kernel/prefix.hpp).
inline constexpr std::size_t most_listed = 1024;

// Lists the first k tokens (0 < k <= most_listed), or all tokens that are not masked if there are
// fewer. The lower bound is a number that the largest logits of at least k parts of the row reach,
// and only blocks that reach it are read again. False if the row is invalid. maxima, unless it is
// null: is set.
template <class S, class T = computed<S>>
bool list_largest(const S* logits, std::size_t size, std::size_t k, shortlist<T>& list,
                  cutoff<T>& cut, part_maxima<T>* maxima = nullptr) {
  part_maxima<T> here;
  if (!maxima) maxima = &here;
  if (!find_largest(logits, size, maxima).valid) return false;
  T lowest = std::numeric_limits<T>::lowest();
  if (k <= maxima->size) lowest = detail::reached_by_about(maxima->of.data(), maxima->size, k);
  constexpr int often = std::numeric_limits<int>::max();
  static_assert(most_listed < shortlist<T>::capacity - 64);
  return detail::list_from(lowest, logits, size, k, *maxima, often, list, cut);
}

SPECAGG_END
