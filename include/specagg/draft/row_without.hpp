// SPDX-License-Identifier: Apache-2.0
// A row without some of its tokens: what a token was drawn from that must differ from others.
// Proved: proofs/propose.v, `row_without_law`.
#pragma once
#include <span>

#include <specagg/rows/distribution.hpp>

SPECAGG_BEGIN

// R with the probability of `left_out` set to 0, renormalised. For drafts without replacement and
// for greedy drafting (draft/propose.hpp). left_out: valid ids, few of them, in any order; the
// memory must outlive the row, unchanged. The first normalise() is one pass more than R's, unless
// `scale` is given: scale() of an equal row that was normalised. It returns invalid_row if nothing
// is left. The view at temperature 1 is that of R without these tokens, not renormalised.
template <Row R>
class row_without {
 public:
  using value_type = typename R::value_type;
  using T = value_type;
  row_without() = default;
  SPECAGG_FUNCTION row_without(const R& row, std::span<const token_id> left_out, T scale = 0)
      : row_(row), left_out_(left_out), scale_(scale > 0 ? scale : 1), scaled_(scale > 0) {}

  SPECAGG_FUNCTION std::size_t size() const { return row_.size(); }
  SPECAGG_FUNCTION T scale() const { return scale_; }
  SPECAGG_FUNCTION decltype(auto) walker() const
    requires requires(const R& row) { row.walker(); }
  {
    return row_.walker();
  }
  SPECAGG_FUNCTION T operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<T, 1>>(0, 1).v;
  }
  SPECAGG_FUNCTION status normalise(bool confidence = false) {
    if (const status s = row_.normalise(confidence);
        s != status::ok || left_out_.empty() || scaled_)
      return s;
    scale_ = 1;
    const double sum =
        specagg::walker_of(*this).template reduce<detail::add>(*this, [](auto x) { return x; });
    if (!(sum > 0)) return status::invalid_row;
    scale_ = T(1 / sum);
    scaled_ = scale_ < std::numeric_limits<T>::infinity();
    return scaled_ ? status::ok : status::invalid_row;
  }

  template <class B>
  struct block {
    B row;
    T scale;
    std::size_t begin;
    std::span<const token_id> left_out;  // empty if none of them is in this block
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return detail::without(uncontracted(row.template operator()<V>(k, lanes) * V(scale)),
                             left_out, begin + k);
    }
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      return detail::without(row.template confidence<V>(k, lanes), left_out, begin + k);
    }
  };
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(row_.open(0, 0))>{row_.open(begin, count), scale_, begin,
                                            detail::if_any_in(left_out_, begin, count)};
  }

 private:
  R row_;
  std::span<const token_id> left_out_;
  T scale_ = 1;
  bool scaled_ = false;
};

SPECAGG_END
