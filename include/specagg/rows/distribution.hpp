// SPDX-License-Identifier: Apache-2.0
// Rows: the probabilities of all tokens at one position. q is the draft's row, p is the target's
// row. pi is the law: the probability distribution that the emitted token must have (other texts
// say target distribution).
//
// Anything with size() and row[v] is a Distribution: std::vector, std::span, an Eigen vector or a
// row of a matrix. The row classes below compute their elements: softmax of logits, sparse and
// one-hot rows. Rows are views. Copying a row copies a pointer, and the memory it points to must
// outlive the call.
#pragma once
#include <algorithm>
#include <cassert>
#include <concepts>
#include <span>

#include <specagg/compiled_once.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/kernel/softmax.hpp>
#include <specagg/random.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// d[v] is the probability of token v, 0 <= v < d.size() = V, as a number that converts to double.
template <class D>
concept Distribution = requires(const std::remove_cvref_t<D>& d, std::size_t v) {
  { d.size() } -> std::convertible_to<std::size_t>;
  { d[v] } -> std::convertible_to<double>;
};

// How far a sum of probabilities may be from 1 and still be scaled to 1.
inline constexpr double normalisation_tolerance = 1e-3;

// A Row is a Distribution that the kernels can read block by block.
//   normalise(confidence)      makes the row usable in one pass: scales it to sum 1, and returns
//                              what is wrong with it. confidence = true: the view at temperature 1
//                              will be read too
//   open(begin, count)         a block of the row
//   block<V>(k, lanes)         the tokens k, k + 1, ... of a block, as a vec
//   block.confidence<V>(...)   the same of the view at temperature 1, without a filter
template <class R>
concept Row = Distribution<R> && requires(R& r, const R& c, std::size_t v) {
  typename R::value_type;
  { r.normalise(true) } -> std::same_as<status>;
  c.open(v, v);
};

namespace detail {

// At lower temperatures, exp of a difference of logits that is beyond the numbers is 0, as it is
// computed.
template <class T>
inline constexpr double least_refused_temperature = double(std::numeric_limits<T>::max()) / 1024;

// A temporary container. A view of it would dangle.
template <class R>
concept short_lived = requires(R& r) { std::begin(r); } && !Lasting<R>;

// Checks probabilities by their sum and whether one is negative. Sets `scale` to 1 / sum if they
// are valid.
template <class T>
status normaliser(double sum, bool negative, T& scale) {
  if (!(sum > 0) || !(sum < std::numeric_limits<double>::infinity()) || negative)
    return status::invalid_row;
  if (sum < 1 - normalisation_tolerance || sum > 1 + normalisation_tolerance)
    return status::not_normalised;
  scale = T(1 / sum);
  return status::ok;
}
// The same for a row that stores its probabilities; `scale` is a member of that row. One pass.
template <class R, class T>
SPECAGG_FLATTEN status normalise_stored(const R& row, T& scale) {
  using V = vec<T, 16>;
  scale = 1;
  V lowest(0);
  const double sum =
      reduce_blocks<add>(row.size(), [&](std::size_t begin, std::size_t count) SPECAGG_INNER {
        const auto block = row.open(begin, count);
        return specagg::reduce_block<add>(count, [&](std::size_t k, int lanes) SPECAGG_INNER {
          const V x = block.template operator()<V>(k, lanes);
          lowest = min(x, lowest);
          return x;
        });
      });
  return normaliser(sum, any(lowest < V(0)), scale);
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

// Whether a block is known to hold no mass.
template <class Block>
SPECAGG_INLINE bool known_empty(const Block& block) {
  if constexpr (requires { block.empty; }) return block.empty;
  else return false;
}

}  // namespace detail

// Probabilities as an array of V floats or doubles.
template <class T>
class dense_row {
 public:
  using value_type = T;
  dense_row() = default;
  dense_row(const T* probabilities, std::size_t size) : x_(probabilities), size_(size) {}
  template <class R>
    requires detail::short_lived<R>
  dense_row(R&&) = delete;  // the row would outlive its memory
  dense_row(std::span<const T> probabilities)
      : dense_row(probabilities.data(), probabilities.size()) {}

  std::size_t size() const { return size_; }
  T operator[](std::size_t v) const { return open(v, 1).template operator()<vec<T, 1>>(0, 1).v; }
  status normalise(bool /*confidence*/ = false) { return detail::normalise_stored(*this, scale_); }
  detail::scaled_block<T> open(std::size_t begin, std::size_t) const {
    return {x_ + begin, scale_};
  }

 private:
  const T* x_ = nullptr;
  std::size_t size_ = 0;
  T scale_ = 1;
};

// Any other Distribution (a strided Eigen row, a table in a test), read through operator[]. Holds D
// by value, or by reference if it was made from an lvalue.
template <class D>
class indexed_row {
 public:
  using element = std::remove_cvref_t<decltype(std::declval<const std::remove_cvref_t<D>&>()[0])>;
  using value_type = std::conditional_t<std::is_same_v<element, float>, float, double>;
  using T = value_type;
  explicit indexed_row(D d) : d_(static_cast<D&&>(d)) {}

  std::size_t size() const { return std::size_t(d_.size()); }
  T operator[](std::size_t v) const { return open(v, 1).template operator()<vec<T, 1>>(0, 1).v; }
  status normalise(bool /*confidence*/ = false) { return detail::normalise_stored(*this, scale_); }
  detail::gathered_block<T> open(std::size_t begin, std::size_t count) const {
    return {count, false, [&](T* x) {
              using index = decltype(d_.size());
              for (std::size_t k = 0; k < count; ++k)
                x[k] = static_cast<T>(d_[static_cast<index>(begin + k)]) * scale_;
            }};
  }

 private:
  D d_;
  T scale_ = 1;
};

// The n tokens with probability above 0, and their probabilities. The ids ascend strictly. All
// other tokens have probability 0.
template <class T>
class sparse_row {
 public:
  using value_type = T;
  sparse_row() = default;
  sparse_row(std::span<const token_id> ids, std::span<const T> probabilities,
             std::size_t vocabulary)
      : ids_(ids), x_(probabilities), size_(vocabulary) {}

  std::size_t size() const { return size_; }
  T operator[](std::size_t v) const { return open(v, 1).template operator()<vec<T, 1>>(0, 1).v; }
  status normalise(bool /*confidence*/ = false) {
    if (ids_.size() != x_.size()) return status::invalid_row;
    double sum = 0;
    bool negative = false;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] < 0 || std::size_t(ids_[i]) >= size_ || (i > 0 && ids_[i] <= ids_[i - 1]))
        return status::invalid_row;
      sum += double(x_[i]);
      negative = negative || x_[i] < 0;
    }
    return detail::normaliser(sum, negative, scale_);
  }
  detail::gathered_block<T> open(std::size_t begin, std::size_t count) const {
    auto i =
        std::size_t(std::lower_bound(ids_.begin(), ids_.end(), token_id(begin)) - ids_.begin());
    const bool nothing =
        i >= x_.size() || i >= ids_.size() || std::size_t(ids_[i]) - begin >= count;
    return {count, nothing, [&](T* x) {
              for (; i < x_.size() && i < ids_.size() && std::size_t(ids_[i]) - begin < count; ++i)
                x[std::size_t(ids_[i]) - begin] = x_[i] * scale_;
            }};
  }

 private:
  std::span<const token_id> ids_;
  std::span<const T> x_;
  std::size_t size_ = 0;
  T scale_ = 1;
};

// Probability 1 on one token: an n-gram draft or a greedy draft.
template <class T>
class one_hot_row {
 public:
  using value_type = T;
  one_hot_row() = default;
  one_hot_row(token_id token, std::size_t vocabulary) : token_(token), size_(vocabulary) {}
  std::size_t size() const { return size_; }
  token_id token() const { return token_; }
  T operator[](std::size_t v) const { return T(token_ >= 0 && v == std::size_t(token_)); }
  status normalise(bool /*confidence*/ = false) {
    return token_ >= 0 && std::size_t(token_) < size_ ? status::ok : status::invalid_row;
  }
  detail::one_hot_block<T> open(std::size_t begin, std::size_t count) const {
    const auto t = std::size_t(token_);  // a negative id becomes a large number
    return detail::one_hot_block<T>(t >= begin && t - begin < count ? int(t - begin) : -1);
  }

 private:
  token_id token_ = no_token;
  std::size_t size_ = 0;
};

// softmax(logits / temperature), restricted to the tokens that `cut` keeps. The probabilities are
// never stored: normalise() reads the logits once for the normaliser, and then each element costs
// one exponential. The view at temperature 1, where nothing is cut, is what deferral rules call
// confidence. It costs a second pass only if the caller asks for it and it differs from the row. S
// is the type that stores the logits: float, double, bf16 or f16 (the last two are computed in
// float).
template <class S>
class softmax_row {
 public:
  using value_type = computed<S>;
  using T = value_type;
  softmax_row() = default;
  softmax_row(const S* logits, std::size_t size, double temperature = 1)
      : logits_(logits), size_(size), temperature_(temperature) {}
  template <class R>
    requires detail::short_lived<R>
  softmax_row(R&&, double = 1) = delete;  // the row would outlive its memory
  softmax_row(std::span<const S> logits, double temperature = 1)
      : softmax_row(logits.data(), logits.size(), temperature) {}

  std::size_t size() const { return size_; }
  T operator[](std::size_t v) const { return open(v, 1).template operator()<vec<T, 1>>(0, 1).v; }
  const S* logits() const { return logits_; }
  // the largest probability; valid after normalise()
  T largest() const { return sampled_(vec<T, 1>(0)).v; }
  // at temperature 1; valid after normalise(true)
  T largest_confidence() const { return confidence_(vec<T, 1>(0)).v; }
  double temperature() const { return temperature_; }
  // Keeps only the tokens of `c`. Call before normalise().
  void restrict_to(const cutoff<T>& c) { cut_ = c; }
  const cutoff<T>& restriction() const { return cut_; }

  status normalise(bool confidence = false) {
    if (!usable(temperature_)) return status::invalid_parameter;
    if (!normalised_) {
      const auto sum = sum_exponentials(logits_, size_, temperature_, cut_);
      if (!(sum.total > 0)) return status::invalid_row;
      know(sum);
      if (temperature_ == 1 && cut_.keeps_all()) know_confidence(sum);
    }
    if (confidence && !confident_) {
      const auto sum = sum_exponentials(logits_, size_, 1);
      if (!(sum.total > 0)) return status::invalid_row;
      know_confidence(sum);
    }
    return status::ok;
  }

  struct block {
    softmax_block<S> sampled, at_temperature_1;
    template <class V>
    SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return sampled.template operator()<V>(k, lanes);
    }
    template <class V>
    SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      return at_temperature_1.template operator()<V>(k, lanes);
    }
  };
  block open(std::size_t begin, std::size_t count) const {
    assert(normalised_ && "specagg: normalise() comes before the first read of a row");
    return {{logits_, begin, count, sampled_, cut_}, {logits_, begin, count, confidence_, {}}};
  }

  // Temperatures whose reciprocal is a finite T. Lower temperatures mean greedy decoding
  // (rows/process.hpp).
  SPECAGG_FUNCTION static bool usable(double temperature) {
    return temperature > 4.0 / double(std::numeric_limits<T>::max()) &&
           temperature < detail::least_refused_temperature<T>;
  }

 protected:
  // Sets what normalise() would compute, if another pass has already computed it.
  void know(const softmax_sum<T>& kept) {
    sampled_ = {kept.max, temperature_, kept.total};
    normalised_ = true;
  }
  void know_confidence(const softmax_sum<T>& all) {
    confidence_ = {all.max, 1, all.total};
    confident_ = true;
  }

 private:
  const S* logits_ = nullptr;
  std::size_t size_ = 0;
  double temperature_ = 1;
  cutoff<T> cut_;
  softmax_factors<T> sampled_, confidence_;
  bool normalised_ = false, confident_ = false;
};

// A row whose view at temperature 1 is another row.
template <Row R, Row C>
class confident_row {
 public:
  using value_type = typename R::value_type;
  confident_row(R row, C confidence) : row_(row), confidence_(confidence) {}
  std::size_t size() const { return row_.size(); }
  value_type operator[](std::size_t v) const { return row_[v]; }
  status normalise(bool confidence = false) {
    if (confidence_.size() != row_.size()) return status::vocabulary_mismatch;
    const status s = row_.normalise();
    return s != status::ok || !confidence ? s : confidence_.normalise();
  }
  template <class A, class B>
  struct block {
    A a;
    B b;
    template <class V>
    SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return a.template operator()<V>(k, lanes);
    }
    template <class V>
    SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      return b.template operator()<V>(k, lanes);
    }
  };
  auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(row_.open(0, 0)), decltype(confidence_.open(0, 0))>{
        row_.open(begin, count), confidence_.open(begin, count)};
  }

 private:
  R row_;
  C confidence_;
};

// Draws a token from a normalised row. scratch: block_count(V) doubles. A one-hot row has its token
// without a draw.
template <Row R, Chooser C>
token_id draw(const R& row, moment m, C&& chooser, std::span<double> scratch) {
  if constexpr (requires { row.token(); }) return row.token();
  if constexpr (requires { row.keeps_few(); })
    if (row.keeps_few())
      return chooser.draw(m, specagg::weigh(few_of_row<R>{row}, row_itself(), scratch));
  return chooser.draw(m, specagg::weigh(row, row_itself(), scratch));
}

// f(the row by its own kind) of an any_row (rows/any_row.hpp), and f is compiled for each kind;
// f(row) for any other row.
template <class R, class F>
SPECAGG_FUNCTION decltype(auto) with_row(R& row, F&& f) {
  if constexpr (CompiledForEach<std::remove_cv_t<R>>) return row.visit(f);
  else return f(row);
}

// Makes any Distribution a Row: a Row is copied, an array is viewed, all others are read through
// operator[].
template <class D>
  requires Distribution<D>
SPECAGG_FUNCTION auto as_row(D&& d) {
  using U = std::remove_cvref_t<D>;
  constexpr bool outlives = Lasting<D>;
  using element = std::remove_cvref_t<decltype(d[0])>;
  constexpr bool is_array =
      (std::is_same_v<element, float> || std::is_same_v<element, double>) && [] {
        // Eigen says so
        if constexpr (requires { U::InnerStrideAtCompileTime; })
          return U::InnerStrideAtCompileTime == 1;
        else return Contiguous<const U>;
      }();
  if constexpr (Row<U>) {
    return U(d);
  } else if constexpr (outlives && is_array && requires { d.data(); }) {
    return dense_row<element>(d.data(), std::size_t(d.size()));
  } else {
    return indexed_row<std::conditional_t<std::is_lvalue_reference_v<D>, const U&, U>>(
        static_cast<D&&>(d));
  }
}

SPECAGG_END
