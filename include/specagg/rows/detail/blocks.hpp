// SPDX-License-Identifier: Apache-2.0
// Blocks of rows, and code that rows share to find their sums.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/kernel/softmax.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace detail {

// At lower temperatures the exponential of a difference of logits that is beyond the numbers is 0,
// and is computed as 0.
template <class T>
inline constexpr double least_refused_temperature = double(std::numeric_limits<T>::max()) / 1024;

// A temporary container. A view of it would dangle.
template <class R>
concept short_lived = requires(R& r) { std::begin(r); } && !Lasting<R>;

// Checks probabilities by their sum and whether one is negative. Sets `scale` to 1 / sum if they
// are valid.
template <class T>
SPECAGG_FUNCTION status normaliser(double sum, bool negative, T& scale) {
  if (!(sum > 0) || !(sum < std::numeric_limits<double>::infinity()) || negative)
    return status::invalid_row;
  if (sum < 1 - normalisation_tolerance || sum > 1 + normalisation_tolerance)
    return status::not_normalised;
  scale = T(1 / sum);
  return status::ok;
}
// A row with the facts found so far, while the others are being found.
template <class R>
struct row_with {
  using value_type = typename R::value_type;
  const R& row;
  const typename R::facts& known;
  SPECAGG_FUNCTION std::size_t size() const { return row.size(); }
  SPECAGG_FUNCTION const R& read_with() const { return row; }
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return row.open(known, begin, count);
  }
};
// The factor of stored probabilities.
template <class T>
struct stored_facts {
  T scale = 1;
};
// Finds the factor for a row that stores its probabilities. One pass.
template <class R, class T>
SPECAGG_FLATTEN status normalise_stored(const R& row, stored_facts<T>& found) {
  using V = vec<T, 16>;
  const row_with<R> plain{row, found};
  V lowest(0);
  const double sum =
      reduce_blocks<add>(row.size(), [&](std::size_t begin, std::size_t count) SPECAGG_INNER {
        const auto block = plain.open(begin, count);
        return specagg::reduce_block<add>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
          const V x = block.template operator()<V>(k, lanes);
          lowest = min(x, lowest);
          return x;
        });
      });
  return normaliser(sum, any(lowest < V(0)), found.scale);
}

// Probabilities in memory, scaled. The view at temperature 1 of stored probabilities is the row
// itself.
template <class T>
struct scaled_block {
  const T* x;
  T scale;
  template <class V>
  SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
    return uncontracted((lanes == V::lanes ? V::load(x + k) : V::load_partial(x + k, lanes, 0)) *
                        V(scale));
  }
  template <class V>
  SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
    return operator()<V>(k, lanes);
  }
};

// A block of a row that is not an array. Its elements are copied to the stack first, unless the
// block has no mass.
template <class T>
struct gathered_block {
  alignas(64) T x[block_size];
  bool empty;
  template <class Fill>
  gathered_block(std::size_t count, bool nothing, Fill&& fill) : empty(nothing) {
    if (empty) return;
    std::fill_n(x, std::min((count + 15) / 16 * 16, block_size), T(0));
    fill(x);
  }
  template <class V>
  SPECAGG_INLINE V operator()(std::size_t k, int) const {
    return empty ? V(0) : uncontracted(V::load(x + k));
  }
  template <class V>
  SPECAGG_INLINE V confidence(std::size_t k, int) const {
    return operator()<V>(k, 0);
  }
};

// A block, and the same block of the view at temperature 1.
template <class A, class B = A>
struct two_blocks {
  A sampled;
  B at_temperature_1;
  template <class V>
  SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
    return sampled.template operator()<V>(k, lanes);
  }
  template <class V>
  SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
    return at_temperature_1.template operator()<V>(k, lanes);
  }
  template <class V, class F>
  SPECAGG_INLINE V weight(std::size_t k, int lanes, const F& f) const {
    return sampled.template weight<V>(k, lanes, f);
  }
};
template <class A, class B>
two_blocks(A, B) -> two_blocks<A, B>;

// Probability 1 on one token of the block, or on none (token = -1).
template <class T>
struct one_hot_block {
  int token;
  bool empty;
  explicit one_hot_block(int t) : token(t), empty(t < 0) {}
  template <class V>
  SPECAGG_INLINE V operator()(std::size_t k, int) const {
    return select(V::iota(0) == V(token - int(k)), V(1), V(0));
  }
  template <class V>
  SPECAGG_INLINE V confidence(std::size_t k, int) const {
    return operator()<V>(k, 0);
  }
};

}  // namespace detail

SPECAGG_END
