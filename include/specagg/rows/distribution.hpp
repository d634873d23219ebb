// SPDX-License-Identifier: Apache-2.0
// Rows: the probabilities of all tokens at one position. q is the draft's row, p is the target's
// row. pi is the law: the probability distribution that the emitted token must have (other texts
// say target distribution).
//
// A Row says which distribution it is, as a view of logits or of probabilities. It has one life:
// row.normalise() reads it once, and returns a normalised_row, which knows its sum, its maximum and
// what the filters keep. Only a normalised_row can be read. Both are views: copying one copies
// pointers, and the memory that they point to must outlive the call.
//
// Anything else with size() and d[v] is a Distribution, too: std::vector, std::span, an Eigen
// vector or a row of a matrix. as_row() makes a Row of it. Verifiers do so themselves.
#pragma once
#include <algorithm>
#include <concepts>
#include <span>

#include <specagg/compiled_once.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/kernel/softmax.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/detail/blocks.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// A row that can be read.
//   why()                  ok, or what is wrong with the row: then nothing else may be asked
//   size()                 V
//   row[v]                 the probability of token v, 0 <= v < V
//   open(begin, count)     a block of the row
//   block<V>(k, lanes)     the tokens k, k + 1, ... of a block, as a vec
//   block.confidence<V>(...)   the same tokens of the view at temperature 1, without a filter
// A row whose confident() says so has no view at temperature 1 unless the view was asked for.
template <class R>
concept NormalisedRow = requires(const R& r, std::size_t v) {
  typename R::value_type;
  { r.size() } -> std::convertible_to<std::size_t>;
  { r.why() } -> std::same_as<status>;
  r.open(v, v);
};
// normalise(confidence) makes a NormalisedRow of a Row in one pass: scaled to sum 1. confidence =
// true: the view at temperature 1 will be read too. A NormalisedRow is a Row, and returns itself.
template <class R>
concept Row = requires(const R& r) {
  typename R::value_type;
  { r.size() } -> std::convertible_to<std::size_t>;
  { r.normalise(true).why() } -> std::same_as<status>;
};
// A Row, or anything where d[v] is the probability of token v, 0 <= v < d.size() = V, as a number
// that converts to double.
template <class D>
concept Distribution =
    Row<std::remove_cvref_t<D>> || requires(const std::remove_cvref_t<D>& d, std::size_t v) {
      { d.size() } -> std::convertible_to<std::size_t>;
      { d[v] } -> std::convertible_to<double>;
    };

// A row R that was normalised. It holds the results of its pass, R::facts, whose public members can
// be asked.
template <class R>
class [[nodiscard]] normalised_row : public R, public R::facts {
 public:
  using value_type = typename R::value_type;
  normalised_row() = default;  // no row: missing_row
  SPECAGG_FUNCTION explicit normalised_row(R row, bool confidence = false)
      : R(static_cast<R&&>(row)), why_(R::find(confidence, *this)) {}

  SPECAGG_FUNCTION status why() const { return why_; }
  SPECAGG_FUNCTION value_type operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<value_type, 1>>(0, 1).v;
  }
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return R::open(*this, begin, count);
  }
  SPECAGG_FUNCTION const normalised_row& normalise(bool /*confidence*/ = false) const {
    return *this;
  }

 private:
  status why_ = status::missing_row;
};
namespace detail {
// ok, or why a normalised row cannot be read; with its view at temperature 1, if the view is read.
template <class R>
SPECAGG_FUNCTION status readable(const R& row, bool confidence) {
  if constexpr (requires { row.confident(); })
    if (confidence && row.why() == status::ok && !row.confident()) return status::invalid_parameter;
  return row.why();
}
// Whether a row is the kept part of a draft's row (rows/cut_row.hpp).
template <class R>
constexpr bool is_cut = requires { requires R::is_cut; };
// Whether two rows can be read together: they have one size, and are shared out among ranks alike
// (verify/sharded.hpp).
template <class A, class B>
SPECAGG_FUNCTION bool fit_together(const A& a, const B& b) {
  if constexpr (requires { a.fits(b); })
    if (!a.fits(b)) return false;
  return a.size() == b.size();
}
}  // namespace detail

// The type of a Row after normalise(): a normalised_row, or an any_row of several.
template <Row R>
using normal_form = std::remove_cvref_t<decltype(std::declval<const R&>().normalise(true))>;

// ---- the rows -----------------------------------------------------------------------------------
// Each has what normalised_row needs: the type `facts`; find(confidence, facts), which finds the
// facts and says what is wrong with the row; and open(facts, begin, count).

// Probabilities as an array of V floats or doubles.
template <class T>
class dense_row {
 public:
  using value_type = T;
  using facts = detail::stored_facts<T>;
  dense_row() = default;
  dense_row(const T* probabilities, std::size_t size) : x_(probabilities), size_(size) {}
  template <class R>
    requires detail::short_lived<R>
  dense_row(R&&) = delete;  // the row would outlive its memory
  dense_row(std::span<const T> probabilities)
      : dense_row(probabilities.data(), probabilities.size()) {}

  std::size_t size() const { return size_; }
  normalised_row<dense_row> normalise(bool confidence = false) const {
    return normalised_row<dense_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool /*confidence*/, facts& found) const {
    return detail::normalise_stored(*this, found);
  }
  detail::scaled_block<T> open(const facts& known, std::size_t begin, std::size_t) const {
    return {x_ + begin, known.scale};
  }

 private:
  const T* x_ = nullptr;
  std::size_t size_ = 0;
};

// Any other Distribution (a strided Eigen row, a table in a test), read through operator[]. Holds D
// by value, or by reference if it was made from an lvalue.
template <class D>
class indexed_row {
 public:
  using element = std::remove_cvref_t<decltype(std::declval<const std::remove_cvref_t<D>&>()[0])>;
  using value_type = std::conditional_t<std::is_same_v<element, float>, float, double>;
  using T = value_type;
  using facts = detail::stored_facts<T>;
  using viewed = indexed_row<const std::remove_cvref_t<D>&>;
  explicit indexed_row(D d) : d_(kept(static_cast<D&&>(d))) {}

  std::size_t size() const { return std::size_t(d().size()); }
  // A view of this row's D; of a temporary row, with the D itself.
  normalised_row<viewed> normalise(bool confidence = false) const& {
    return normalised_row<viewed>(viewed(d()), confidence);
  }
  normalised_row<indexed_row> normalise(bool confidence = false) && {
    return normalised_row<indexed_row>(static_cast<indexed_row&&>(*this), confidence);
  }
  status find(bool /*confidence*/, facts& found) const {
    return detail::normalise_stored(*this, found);
  }
  detail::gathered_block<T> open(const facts& known, std::size_t begin, std::size_t count) const {
    return {count, false, [&](T* x) {
              using index = std::remove_cvref_t<decltype(d().size())>;
              for (std::size_t k = 0; k < count; ++k)
                x[k] = static_cast<T>(d()[static_cast<index>(begin + k)]) * known.scale;
            }};
  }

 private:
  // A view is a pointer, so that rows can be assigned.
  static constexpr bool is_view = std::is_reference_v<D>;
  static decltype(auto) kept(D&& d) {
    if constexpr (is_view) return &d;
    else return static_cast<D&&>(d);
  }
  const auto& d() const {
    if constexpr (is_view) return *d_;
    else return d_;
  }
  std::conditional_t<is_view, std::add_pointer_t<D>, D> d_;
};

namespace detail {
// Whether a row holds its elements, so that its normal form views it.
template <class R>
constexpr bool holds_elements = [] {
  if constexpr (requires { typename R::viewed; }) return !std::is_same_v<R, typename R::viewed>;
  else return false;
}();
}  // namespace detail

// The n tokens with probability above 0, and their probabilities. The ids ascend strictly. All
// other tokens have probability 0.
template <class T>
class sparse_row {
 public:
  using value_type = T;
  using facts = detail::stored_facts<T>;
  sparse_row() = default;
  sparse_row(std::span<const token_id> ids, std::span<const T> probabilities,
             std::size_t vocabulary)
      : ids_(ids), x_(probabilities), size_(vocabulary) {}

  std::size_t size() const { return size_; }
  normalised_row<sparse_row> normalise(bool confidence = false) const {
    return normalised_row<sparse_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool /*confidence*/, facts& found) const {
    if (ids_.size() != x_.size()) return status::invalid_row;
    double sum = 0;
    bool negative = false;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] < 0 || std::size_t(ids_[i]) >= size_ || (i > 0 && ids_[i] <= ids_[i - 1]))
        return status::invalid_row;
      sum += double(x_[i]);
      negative = negative || x_[i] < 0;
    }
    return detail::normaliser(sum, negative, found.scale);
  }
  detail::gathered_block<T> open(const facts& known, std::size_t begin, std::size_t count) const {
    auto i =
        std::size_t(std::lower_bound(ids_.begin(), ids_.end(), token_id(begin)) - ids_.begin());
    const bool nothing =
        i >= x_.size() || i >= ids_.size() || std::size_t(ids_[i]) - begin >= count;
    return {count, nothing, [&](T* x) {
              for (; i < x_.size() && i < ids_.size() && std::size_t(ids_[i]) - begin < count; ++i)
                x[std::size_t(ids_[i]) - begin] = x_[i] * known.scale;
            }};
  }

 private:
  std::span<const token_id> ids_;
  std::span<const T> x_;
  std::size_t size_ = 0;
};

// Probability 1 on one token: an n-gram draft or a greedy draft.
template <class T>
class one_hot_row {
 public:
  using value_type = T;
  // The results of the pass.
  struct facts {};
  one_hot_row() = default;
  one_hot_row(token_id token, std::size_t vocabulary) : token_(token), size_(vocabulary) {}
  std::size_t size() const { return size_; }
  token_id token() const { return token_; }
  normalised_row<one_hot_row> normalise(bool confidence = false) const {
    return normalised_row<one_hot_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool /*confidence*/, facts&) const {
    return token_ >= 0 && std::size_t(token_) < size_ ? status::ok : status::invalid_row;
  }
  detail::one_hot_block<T> open(const facts&, std::size_t begin, std::size_t count) const {
    const auto t = std::size_t(token_);  // a negative id becomes a large number
    return detail::one_hot_block<T>(t >= begin && t - begin < count ? int(t - begin) : -1);
  }

 private:
  token_id token_ = no_token;
  std::size_t size_ = 0;
};

// softmax(logits / temperature), restricted to the tokens that `cut` keeps. The probabilities are
// never stored: normalise() reads the logits once for the normaliser, and then each element costs
// one exponential. Deferral rules call the view at temperature 1, where nothing is cut, confidence.
// It costs a second pass only if the caller asks for it and it differs from the row. S is the type
// that stores the logits: float, double, bf16 or f16 (the last two are computed in float).
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
  const S* logits() const { return logits_; }
  double temperature() const { return temperature_; }
  // Keeps only the tokens of `c`.
  void restrict_to(const cutoff<T>& c) { cut_ = c; }

  // The results of the pass.
  struct facts {
    cutoff<T> restriction;  // which tokens are kept
    softmax_factors<T> sampled, at_temperature_1;
    bool confident() const { return at_temperature_1.known(); }
    // The largest probability of the row, and of its view at temperature 1.
    T largest() const { return sampled(vec<T, 1>(0)).v; }
    T largest_confidence() const { return at_temperature_1(vec<T, 1>(0)).v; }
  };
  normalised_row<softmax_row> normalise(bool confidence = false) const {
    return normalised_row<softmax_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool confidence, facts& found) const {
    if (!usable(temperature_)) return status::invalid_parameter;
    found.restriction = cut_;
    return find_sums(confidence, found);
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
  block open(const facts& known, std::size_t begin, std::size_t count) const {
    return {{logits_, begin, count, known.sampled, known.restriction},
            {logits_, begin, count, known.at_temperature_1, {}}};
  }

  // Temperatures whose reciprocal is a finite T. Lower temperatures mean greedy decoding
  // (rows/process.hpp).
  SPECAGG_FUNCTION static bool usable(double temperature) {
    return temperature > 4.0 / double(std::numeric_limits<T>::max()) &&
           temperature < detail::least_refused_temperature<T>;
  }

 protected:
  // Finds the sums that are not known yet.
  status find_sums(bool confidence, facts& found) const {
    if (!found.sampled.known()) {
      const auto sum = sum_exponentials(logits_, size_, temperature_, found.restriction);
      if (!(sum.total > 0)) return status::invalid_row;
      found.sampled = {sum.max, temperature_, sum.total};
      if (temperature_ == 1 && found.restriction.keeps_all())
        found.at_temperature_1 = found.sampled;
    }
    if (confidence && !found.at_temperature_1.known()) {
      const auto sum = sum_exponentials(logits_, size_, 1);
      if (!(sum.total > 0)) return status::invalid_row;
      found.at_temperature_1 = {sum.max, 1, sum.total};
    }
    return status::ok;
  }

 private:
  const S* logits_ = nullptr;
  std::size_t size_ = 0;
  double temperature_ = 1;
  cutoff<T> cut_;
};

// A row whose view at temperature 1 is another row.
template <Row R, Row C>
class confident_row {
 public:
  using value_type = typename R::value_type;
  // The results of the pass.
  struct facts {
    // For normalised_row.
    normal_form<R> row = {};
    // For normalised_row.
    normal_form<C> at_temperature_1 = {};
    bool confident() const { return at_temperature_1.why() == status::ok; }
  };
  confident_row(R row, C confidence) : row_(row), confidence_(confidence) {}
  std::size_t size() const { return row_.size(); }
  normalised_row<confident_row> normalise(bool confidence = false) const {
    return normalised_row<confident_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool confidence, facts& found) const {
    if (confidence_.size() != row_.size()) return status::vocabulary_mismatch;
    found = {row_.normalise(), confidence_.normalise()};
    const status s = found.row.why();
    return s != status::ok || !confidence ? s : found.at_temperature_1.why();
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
  auto open(const facts& known, std::size_t begin, std::size_t count) const {
    return block<decltype(known.row.open(0, 0)), decltype(known.at_temperature_1.open(0, 0))>{
        known.row.open(begin, count), known.at_temperature_1.open(begin, count)};
  }

 private:
  R row_;
  C confidence_;
};

// Draws a token from a normalised row. scratch: block_count(V) doubles. A one-hot row has its token
// without a draw.
template <NormalisedRow R, Chooser C>
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

// Makes any Distribution a Row: a Row is returned as it is, an array is viewed, all others are read
// through operator[].
template <class D>
  requires Distribution<D>
SPECAGG_FUNCTION decltype(auto) as_row(D&& d) {
  using U = std::remove_cvref_t<D>;
  using given = std::conditional_t<std::is_lvalue_reference_v<D>, const U&, U>;
  if constexpr (Row<U>) {
    return given(static_cast<D&&>(d));
  } else {
    using element = std::remove_cvref_t<decltype(d[0])>;
    constexpr bool is_array =
        (std::is_same_v<element, float> || std::is_same_v<element, double>) && [] {
          // Eigen says so
          if constexpr (requires { U::InnerStrideAtCompileTime; })
            return U::InnerStrideAtCompileTime == 1;
          else return Contiguous<const U>;
        }();
    if constexpr (Lasting<D> && is_array && requires { d.data(); })
      return dense_row<element>(d.data(), std::size_t(d.size()));
    else return indexed_row<given>(static_cast<D&&>(d));
  }
}

SPECAGG_END
