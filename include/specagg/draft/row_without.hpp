// SPDX-License-Identifier: Apache-2.0
// A row without some of its tokens: the law of a token that must differ from these.
// Proved: proofs/propose.v, `row_without_law`.
#pragma once
#include <span>

#include <specagg/rows/distribution.hpp>

SPECAGG_BEGIN

// R with the probability of `left_out` set to 0, renormalised. For drafts without replacement and
// for greedy drafting (draft/propose.hpp). R: the type of a normalised row. left_out: valid ids,
// few of them, in any order; the memory must outlive the row, unchanged. normalise() is one pass,
// unless `scale` is given: the scale of an equal row that was normalised. invalid_row: nothing is
// left. The view at temperature 1 is that of R without these tokens, not renormalised.
template <NormalisedRow R>
class row_without {
 public:
  using value_type = typename R::value_type;
  using T = value_type;
  using facts = detail::stored_facts<T>;
  row_without() = default;
  SPECAGG_FUNCTION row_without(const R& row, std::span<const token_id> left_out, T scale = 0)
      : row_(row), left_out_(left_out), scale_(scale) {}

  SPECAGG_FUNCTION std::size_t size() const { return row_.size(); }
  SPECAGG_FUNCTION const R& read_with() const { return row_; }

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
  SPECAGG_FUNCTION auto open(const facts& known, std::size_t begin, std::size_t count) const {
    return block<decltype(row_.open(0, 0))>{row_.open(begin, count), known.scale, begin,
                                            detail::if_any_in(left_out_, begin, count)};
  }

 protected:
  SPECAGG_FUNCTION status find_facts(bool confidence, facts& found) const {
    const status s = detail::readable(row_, confidence);
    if (s != status::ok || left_out_.empty()) return s;
    if (scale_ > 0) {
      found.scale = scale_;
      return status::ok;
    }
    const detail::row_with<row_without> plain{*this, found};
    const double sum =
        specagg::walker_of(plain).template reduce<detail::add>(plain, [](auto x) { return x; });
    if (!(sum > 0)) return status::invalid_row;
    found.scale = T(1 / sum);
    return found.scale < std::numeric_limits<T>::infinity() ? status::ok : status::invalid_row;
  }

 private:
  R row_;
  std::span<const token_id> left_out_;
  T scale_ = 0;  // 0: not known
};

SPECAGG_END
