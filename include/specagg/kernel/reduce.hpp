// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the vocabulary in one fixed order, and the loop over its blocks.
//
// The vocabulary is divided into blocks of 1024 tokens. In a block, vector i of 16 lanes goes to
// accumulator i mod 4. The four accumulators are combined as (0 + 1) + (2 + 3), then lane i with
// lane i + 8, i + 4, i + 2, i + 1. The results of the blocks are added in double: block b to lane b
// mod 32, then lane i with lane i + 16, i + 8, i + 4, i + 2, i + 1. The order is the same on every
// machine, so the bits are too.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <specagg/kernel/math.hpp>
#include <specagg/kernel/simd.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// The tokens of a block (the last one may have fewer), and the number of blocks.
inline constexpr std::size_t block_size = 1024;
SPECAGG_FUNCTION constexpr std::size_t block_count(std::size_t vocabulary) {
  return (vocabulary + block_size - 1) / block_size;
}

// Bound of the relative error of a sum of n terms of the same sign: 21 roundings for each term in a
// block, then one rounding for each block at most.
template <class T>
constexpr double sum_error(std::size_t n) {
  return 22 * double(std::numeric_limits<T>::epsilon() / 2) + double(block_count(n)) * 0x1p-53;
}

// Two values reduced in one pass: rows.sum([](auto at) { return both(at.q, at.p); }). Nest it for
// more values.
template <class A, class B = A>
struct both {
  A first;
  B second;
  both() = default;
  SPECAGG_FUNCTION SPECAGG_INLINE both(A a, B b) : first(a), second(b) {}
};

namespace detail {

struct add {
  static constexpr double identity = 0;
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static V apply(V a, V b) {
    return a + b;
  }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static double across(V a) {
    return double(reduce_add(a));
  }
};
struct larger {  // NaN is ignored
  static constexpr double identity = -std::numeric_limits<double>::infinity();
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static V apply(V a, V b) {
    return max(b, a);
  }
  SPECAGG_FUNCTION SPECAGG_INLINE static double apply(double a, double b) { return b > a ? b : a; }
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE static double across(V a) {
    return double(reduce_max(a));
  }
};

// The three operations of a reduction, for a vec and for nested pairs of vecs.
template <class Op, class V>
struct reducer {
  using result = double;
  SPECAGG_FUNCTION SPECAGG_INLINE static V identity() { return V(Op::identity); }
  SPECAGG_FUNCTION SPECAGG_INLINE static V apply(V a, V b) { return Op::apply(a, uncontracted(b)); }
  SPECAGG_FUNCTION SPECAGG_INLINE static V masked(V a, int lanes) {
    return select(V::iota(0) < V(lanes), a, V(Op::identity));
  }
  SPECAGG_FUNCTION SPECAGG_INLINE static double across(V a) { return Op::across(a); }
};
template <class Op, class A, class B>
struct reducer<Op, both<A, B>> {
  using P = both<A, B>;
  using F = reducer<Op, A>;
  using S = reducer<Op, B>;
  using result = both<typename F::result, typename S::result>;
  SPECAGG_FUNCTION SPECAGG_INLINE static P identity() { return {F::identity(), S::identity()}; }
  SPECAGG_FUNCTION SPECAGG_INLINE static P apply(P a, P b) {
    return {F::apply(a.first, b.first), S::apply(a.second, b.second)};
  }
  SPECAGG_FUNCTION SPECAGG_INLINE static P masked(P a, int n) {
    return {F::masked(a.first, n), S::masked(a.second, n)};
  }
  SPECAGG_FUNCTION SPECAGG_INLINE static result across(P a) {
    return {F::across(a.first), S::across(a.second)};
  }
};
// A term of a sum that is a product without rounding. One fma adds it, with the bits of a product
// and a sum; where that is no instruction, it is slower.
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
inline constexpr bool fma_is_fast = true;
#else
inline constexpr bool fma_is_fast = false;
#endif
template <class V>
struct exact_product {
  V a, b;
};
template <class V>
struct reducer<add, exact_product<V>> : reducer<add, V> {
  using reducer<add, V>::apply;
  SPECAGG_FUNCTION SPECAGG_INLINE static V apply(V sum, exact_product<V> x) {
    return fma(x.a, x.b, sum);
  }
  SPECAGG_FUNCTION SPECAGG_INLINE static exact_product<V> masked(exact_product<V> x, int lanes) {
    return {reducer<add, V>::masked(x.a, lanes), x.b};
  }
};
template <class Op>
struct reducer<Op, double> {  // combines the results of blocks
  using result = double;
  SPECAGG_FUNCTION SPECAGG_INLINE static double identity() { return Op::identity; }
  SPECAGG_FUNCTION SPECAGG_INLINE static double apply(double a, double b) {
    return Op::apply(a, b);
  }
};

}  // namespace detail

// Reduces one block. f(k, lanes) returns the vector of tokens k..k+15 of the block, for k = 0, 16,
// ... below count (at most block_size where sums round). Only the first `lanes` elements count;
// others are ignored. Returns a double, or pairs of doubles if f returns both(...). Unrolled: takes
// whole vectors two at a time. Without it the code is shorter, as SPECAGG_COMPILE_FAST wants it.
template <class Op, bool Unrolled = SPECAGG_UNROLLS, class F>
SPECAGG_INLINE auto reduce_block(std::size_t count, F&& f) {
  using V = decltype(f(std::size_t(0), 16));
  using R = detail::reducer<Op, V>;
  // The four accumulators rotate, so f is inlined three times instead of five. f may be a hundred
  // instructions, and compilation takes less than half the time.
  auto a0 = R::identity(), a1 = a0, a2 = a0, a3 = a0;
  std::size_t k = 0;
  for (; Unrolled && k + 32 <= count; k += 32) {
    const auto b0 = R::apply(a0, f(k, 16)), b1 = R::apply(a1, f(k + 16, 16));
    a0 = a2;
    a1 = a3;
    a2 = b0;
    a3 = b1;
  }
  for (; k % 64 != 0 || k < count; k += 16) {
    auto next = a0;
    if (k < count) {
      const int lanes = count - k < 16 ? int(count - k) : 16;
      V x = f(k, lanes);
      if (lanes < 16) x = R::masked(x, lanes);
      next = R::apply(a0, x);
    }
    a0 = a1;
    a1 = a2;
    a2 = a3;
    a3 = next;
  }
  return R::across(R::apply(R::apply(a0, a1), R::apply(a2, a3)));
}

namespace detail {

// Combines the results of blocks, which come in ascending order.
template <class Op, class D>
class lanes_of_blocks {
 public:
  static constexpr std::size_t most = 32;
  explicit lanes_of_blocks(std::size_t blocks) : used_(blocks < most ? blocks : most) {
    for (std::size_t i = 0; i < used_; ++i) lane_[i] = R::identity();
  }
  SPECAGG_INLINE void add(std::size_t block, const D& x) {
    lane_[block % most] = R::apply(lane_[block % most], x);
  }
  // The last call: it overwrites the lanes.
  D total() {
    if (used_ == 0) return R::identity();
    for (std::size_t n = most / 2; n > 0; n /= 2)
      for (std::size_t i = 0; i < n && i + n < used_; ++i)
        lane_[i] = R::apply(lane_[i], lane_[i + n]);
    return lane_[0];
  }

 private:
  using R = reducer<Op, D>;
  std::size_t used_;
  D lane_[most];
};

}  // namespace detail

// Reduces all blocks: calls per_block(begin, count) in order, and combines the results in double.
template <class Op, class F>
SPECAGG_INLINE auto reduce_blocks(std::size_t vocabulary, F&& per_block) {
  using D = decltype(per_block(std::size_t(0), std::size_t(0)));
  detail::lanes_of_blocks<Op, D> lanes(block_count(vocabulary));
  for (std::size_t begin = 0; begin < vocabulary; begin += block_size)
    lanes.add(begin / block_size,
              per_block(begin, vocabulary - begin < block_size ? vocabulary - begin : block_size));
  return lanes.total();
}

// ---- over rows ----------------------------------------------------------------------------------
// `rows` is anything with value_type, size() and open(begin, count). open() returns a block, and
// block<V>(k, lanes) returns the tokens k, k + 1, ... of the block as one V or as a struct of V. f
// takes this and returns a V or both(...).

// One block. Engines have rows of floats; for them all of f is inlined. Rows of doubles are for
// audits, which compile many policies; for them the compiler decides what to inline, which saves
// compile time.
template <class Op, class Rows, class F>
SPECAGG_FLATTEN auto reduce_block_of_floats(const Rows& rows, std::size_t begin, std::size_t count,
                                            const F& f) {
  const auto block = rows.open(begin, count);
  return specagg::reduce_block<Op>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
    return f(block.template operator()<vec<float, 16>>(k, lanes));
  });
}
// The tokens begin .. begin + count - 1 of the rows, at most one block: what f sums to, or its
// maximum.
template <class Op, class Rows, class F>
auto reduce_block_of(const Rows& rows, std::size_t begin, std::size_t count, const F& f) {
  if constexpr (sizeof(typename Rows::value_type) == 4) {
    return reduce_block_of_floats<Op>(rows, begin, count, f);
  } else {
    const auto block = rows.open(begin, count);
    return specagg::reduce_block<Op, false>(count, [&](std::size_t k, int lanes) {
      return f(block.template operator()<vec<double, 16>>(k, lanes));
    });
  }
}

namespace detail {

// The sum of f over a block, and its values in out[begin .. begin + count).
template <class Rows, class F, class T>
SPECAGG_FLATTEN double sum_stored_block(const Rows& rows, const F& f, std::size_t begin,
                                        std::size_t count, T* out) {
  using V = vec<T, 16>;
  constexpr bool unrolled = SPECAGG_UNROLLS && sizeof(T) == 4;
  const auto block = rows.open(begin, count);
  return specagg::reduce_block<add, unrolled>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
    const V x = uncontracted(V(f(block.template operator()<V>(k, lanes))));
    T last[16];
    x.store(lanes == 16 ? out + begin + k : last);
    for (int i = 0; i < lanes && lanes < 16; ++i) out[begin + k + std::size_t(i)] = last[i];
    return x;
  });
}
// The first token of a block where f is `top`, which it is somewhere.
template <class Rows, class F>
std::size_t first_in_block(const Rows& rows, const F& f, std::size_t begin, std::size_t count,
                           double top) {
  using V = vec<typename Rows::value_type, 16>;
  const auto block = rows.open(begin, count);
  for (std::size_t k = 0; k < count; k += 16) {
    const int lanes = count - k < 16 ? int(count - k) : 16;
    typename V::value_type x[16];
    uncontracted(f(block.template operator()<V>(k, lanes))).store(x);
    for (int i = 0; i < lanes; ++i)
      if (double(x[i]) == top) return begin + k + std::size_t(i);
  }
  return begin;
}

}  // namespace detail

// How rows are read: by one thread, as here, or by all threads of a CUDA block or cluster together
// (backend/cuda). Rows of the second kind have a member walker(), which returns an object with the
// same members as one_thread, and with weigh, can_weigh and draw (kernel/sample.hpp) and race
// (verify/coupled.hpp); or a member read_with(), which returns the rows whose walker reads them.
// All give the same bits.
struct one_thread {
  // Reduces f over all tokens, in the order above. Not inlined: g++ would inline less of what is
  // inside the loops.
  template <class Op, class Rows, class F>
  static SPECAGG_OUTLINE auto reduce(const Rows& rows, const F& f) {
    return reduce_blocks<Op>(rows.size(), [&](std::size_t begin, std::size_t count) {
      return specagg::reduce_block_of<Op>(rows, begin, count, f);
    });
  }
  // The sum of an f that is 0 in every block where empty(begin, count) is true. These blocks are
  // not read.
  template <class Rows, class F, class Empty>
  static double sum_of_filled(const Rows& rows, const F& f, const Empty& empty) {
    using detail::add;
    return reduce_blocks<add>(rows.size(), [&](std::size_t begin, std::size_t count) {
      return empty(begin, count) ? 0. : specagg::reduce_block_of<add>(rows, begin, count, f);
    });
  }
  // The sum of f, as reduce() adds it, and its values in out[0 .. rows.size()). `out` may be what
  // the rows are read from.
  template <class Rows, class F, class T>
  static double sum_stored(const Rows& rows, const F& f, T* out) {
    return reduce_blocks<detail::add>(rows.size(), [&](std::size_t begin, std::size_t count) {
      return detail::sum_stored_block(rows, f, begin, count, out);
    });
  }
  // The first token with the largest f. NaN is ignored. The result is 0 if f is nowhere above -inf.
  // Reads the rows once, and one block a second time.
  template <class Rows, class F>
  static std::size_t largest(const Rows& rows, const F& f) {
    const std::size_t size = rows.size();
    const auto count_from = [&](std::size_t begin) {
      return size - begin < block_size ? size - begin : block_size;
    };
    std::size_t in = 0;
    using detail::larger;
    double top = larger::identity;
    for (std::size_t begin = 0; begin < size; begin += block_size)
      if (const double x = specagg::reduce_block_of<larger>(rows, begin, count_from(begin), f);
          x > top) {
        top = x;
        in = begin;
      }
    return top > larger::identity ? detail::first_in_block(rows, f, in, count_from(in), top) : 0;
  }
};
// The reader of these rows: their walker(), or that of the row which read_with() names, or one
// thread.
template <class Rows>
SPECAGG_FUNCTION decltype(auto) walker_of(const Rows& rows) {
  if constexpr (requires { rows.walker(); }) return rows.walker();
  else if constexpr (requires { rows.read_with(); }) return specagg::walker_of(rows.read_with());
  else return one_thread();
}
// Rows with a walker of their own.
template <class Rows>
concept Walked =
    !std::same_as<decltype(specagg::walker_of(std::declval<const Rows&>())), one_thread>;
// log x, as an emission reports it; or x itself, where the rows' walker takes these logarithms when
// all emissions are known.
template <class Rows>
SPECAGG_FUNCTION double log_to_report(const Rows& rows, double x) {
  if constexpr (requires { specagg::walker_of(rows).takes_logs_at_the_end; }) return x;
  else return log(x);
}

// The reductions that rows offer to policies. f(at) returns a vec, or both(a, b) for two results.
// argmax takes an f that returns one vec; it is the token with the largest f, the lowest id among
// equals.
template <class Rows>
struct reductions {
  template <class F>
  SPECAGG_FUNCTION auto sum(F f) const {
    return specagg::walker_of(self()).template reduce<detail::add>(self(), f);
  }
  template <class F>
  SPECAGG_FUNCTION auto max(F f) const {
    return specagg::walker_of(self()).template reduce<detail::larger>(self(), f);
  }
  template <class F>
  SPECAGG_FUNCTION std::size_t argmax(F f) const {
    return specagg::walker_of(self()).largest(self(), f);
  }

 private:
  SPECAGG_FUNCTION const Rows& self() const { return static_cast<const Rows&>(*this); }
};
// The view of one token of the rows, as f receives it.
template <class Rows>
SPECAGG_FUNCTION SPECAGG_INLINE auto at(const Rows& rows, std::size_t v) {
  return rows.open(v, 1).template operator()<vec<typename Rows::value_type, 1>>(0, 1);
}
// The value of a vec of one lane: as_double(pi(at(rows, v))) is pi at token v.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE double as_double(V x) {
  return double(uncontracted(x).v);
}

SPECAGG_END
