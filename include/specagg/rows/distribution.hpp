// SPDX-License-Identifier: Apache-2.0
// The rows: of stored probabilities, of one token, and of logits (rows/process.hpp adds filters).
#pragma once
#include <algorithm>
#include <span>

#include <specagg/kernel/sample.hpp>
#include <specagg/kernel/softmax.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/detail/blocks.hpp>
#include <specagg/rows/row.hpp>

SPECAGG_BEGIN

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
  detail::scaled_block<T> open(const facts& known, std::size_t begin, std::size_t) const {
    return {x_ + begin, known.scale};
  }

 protected:
  status find_facts(bool /*confidence*/, facts& found) const {
    return detail::normalise_stored(*this, found);
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
  explicit indexed_row(D d) : d_(kept(static_cast<D&&>(d))) {}

  std::size_t size() const { return std::size_t(d().size()); }
  // A view of this row's D; of a temporary row, with the D itself.
  auto normalise(bool confidence = false) const& {
    using viewed = indexed_row<const std::remove_cvref_t<D>&>;
    return normalised_row<viewed>(viewed(d()), confidence);
  }
  auto normalise(bool confidence = false) && {
    return normalised_row<indexed_row>(static_cast<indexed_row&&>(*this), confidence);
  }
  detail::gathered_block<T> open(const facts& known, std::size_t begin, std::size_t count) const {
    return {count, false, [&](T* x) {
              using index = std::remove_cvref_t<decltype(d().size())>;
              for (std::size_t k = 0; k < count; ++k)
                x[k] = static_cast<T>(d()[static_cast<index>(begin + k)]) * known.scale;
            }};
  }

 protected:
  status find_facts(bool /*confidence*/, facts& found) const {
    return detail::normalise_stored(*this, found);
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

 protected:
  status find_facts(bool /*confidence*/, facts& found) const {
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
  detail::one_hot_block<T> open(const facts&, std::size_t begin, std::size_t count) const {
    const auto t = std::size_t(token_);  // a negative id becomes a large number
    return detail::one_hot_block<T>(t >= begin && t - begin < count ? int(t - begin) : -1);
  }

 protected:
  status find_facts(bool /*confidence*/, facts&) const {
    return token_ >= 0 && std::size_t(token_) < size_ ? status::ok : status::invalid_row;
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
    // The weight of a logit: what the row's sum has added.
    detail::weight_in_row<T> weight() const { return {sampled.max, sampled.scale}; }
  };
  static constexpr bool gives_sums = true;
  using block = detail::two_blocks<softmax_block<S>>;
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
  status find_facts(bool confidence, facts& found, row_sums* blocks = nullptr) const {
    if (!usable(temperature_)) return status::invalid_parameter;
    found.restriction = cut_;
    return find_sums(confidence, found, blocks);
  }
  // Finds the sums that are not known yet. blocks: gets those of the row's blocks, if they are.
  status find_sums(bool confidence, facts& found, row_sums* blocks) const {
    if (!found.sampled.known()) {
      row_sums none;
      const auto sum = sum_exponentials(logits_, size_, temperature_, found.restriction,
                                        blocks ? *blocks : none);
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
    normal_form<R> row = {};
    normal_form<C> at_temperature_1 = {};
    bool confident() const { return at_temperature_1.why() == status::ok; }
    auto weight() const
      requires requires(const normal_form<R>& r) { r.weight(); }
    {
      return row.weight();
    }
  };
  confident_row(R row, C confidence) : row_(row), confidence_(confidence) {}
  std::size_t size() const { return row_.size(); }
  auto open(const facts& known, std::size_t begin, std::size_t count) const {
    return detail::two_blocks{known.row.open(begin, count),
                              known.at_temperature_1.open(begin, count)};
  }

 protected:
  status find_facts(bool confidence, facts& found) const {
    if (confidence_.size() != row_.size()) return status::vocabulary_mismatch;
    found = {specagg::normalise(row_), specagg::normalise(confidence_)};
    const status s = found.row.why();
    return s != status::ok || !confidence ? s : found.at_temperature_1.why();
  }

 private:
  R row_;
  C confidence_;
};

namespace detail {

// A row of logits, read as the terms of its sum: its tokens' weights before any division.
template <class R>
struct terms_of_row {
  using value_type = typename R::value_type;
  const R& row;
  decltype(std::declval<const R&>().weight()) weight;
  SPECAGG_FUNCTION explicit terms_of_row(const R& of) : row(of), weight(of.weight()) {}
  SPECAGG_FUNCTION std::size_t size() const { return row.size(); }
  SPECAGG_FUNCTION const R& read_with() const { return row; }
  template <class F>
  SPECAGG_FUNCTION void each_row(const F& f) const {
    f(row);
  }
  struct block {
    decltype(std::declval<const R&>().open(0, 0)) of;
    const decltype(std::declval<const R&>().weight())& weight;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return of.template weight<V>(k, lanes, weight);
    }
  };
  SPECAGG_FUNCTION block open(std::size_t begin, std::size_t count) const {
    return {row.open(begin, count), weight};
  }
};
// The weights of a draw from `rows`, elements of a row or its terms.
template <class R, class Rows, class F>
SPECAGG_FUNCTION auto with_weights(const R& row, const Rows& rows, const row_sums& sums,
                                   const F& f) {
  if constexpr (!Walked<R>) {
    if (sums.known) {
      const auto blocks = sums.memory.first(block_count(row.size()));
      const double total = reduce_blocks<add>(
          row.size(), [&](std::size_t begin, std::size_t) { return blocks[begin / block_size]; });
      return f(weights<Rows, row_itself>{rows, row_itself(), blocks, total});
    }
  }
  return specagg::weigh_where_kept(row, rows, row_itself(), sums.memory, f);
}

}  // namespace detail

// Calls f with the weights (kernel/sample.hpp) of a draw from a normalised row. Those of a row of
// logits are the terms of its sum, so the sums of its blocks, if they are known, spare a pass. All
// others are the row's elements. sums.memory: block_count(V) doubles.
template <NormalisedRow R, class F>
SPECAGG_FUNCTION auto with_weights(const R& row, const row_sums& sums, const F& f) {
  if constexpr (OneOfSeveral<R>)
    return row.visit([&](const auto& one) { return specagg::with_weights(one, sums, f); });
  else if constexpr (requires { row.weight(); })
    return detail::with_weights(row, detail::terms_of_row<R>(row), sums, f);
  else return detail::with_weights(row, row, sums, f);
}
// Draws a token from a normalised row. scratch: block_count(V) doubles. A one-hot row has its token
// without a draw.
template <NormalisedRow R, Chooser C>
token_id draw(const R& row, moment m, C&& chooser, const row_sums& sums) {
  if constexpr (OneOfSeveral<R>)
    return row.visit([&](const auto& one) { return specagg::draw(one, m, chooser, sums); });
  else if constexpr (requires { row.token(); }) return row.token();
  else return specagg::with_weights(row, sums, [&](const auto& w) { return chooser.draw(m, w); });
}
template <NormalisedRow R, Chooser C>
token_id draw(const R& row, moment m, C&& chooser, std::span<double> scratch) {
  return specagg::draw(row, m, chooser, row_sums{scratch});
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
// normalise() (rows/row.hpp) of any other Distribution.
template <class D>
  requires(Distribution<D> && !Row<std::remove_cvref_t<D>>)
SPECAGG_FUNCTION auto normalise(D&& d, bool confidence = false) {
  return specagg::normalise(specagg::as_row(static_cast<D&&>(d)), confidence);
}

SPECAGG_END
