// SPDX-License-Identifier: Apache-2.0
// Rows: the probabilities of all tokens at one position. q is the draft's row, p is the target's
// row. pi is the law: the probability distribution that the emitted token must have (other texts
// say target distribution).
//
// A Row says which distribution it is, as a view of logits or of probabilities. It has one life:
// normalise(row) reads it once, and returns a normalised_row, which knows its sum, its maximum and
// what the filters keep. Only a normalised row can be read. Both are views: copying one copies
// pointers, and the memory that they point to must outlive the call.
//
// Anything else with size() and d[v] is a Distribution, too: std::vector, std::span, an Eigen
// vector or a row of a matrix. as_row() (rows/distribution.hpp) makes a Row of it. Verifiers and
// normalise() do so themselves.
#pragma once
#include <concepts>
#include <type_traits>

#include <specagg/compiled_once.hpp>
#include <specagg/kernel/softmax.hpp>

SPECAGG_BEGIN

// A row that can be read.
//   why()                  ok, or what is wrong with the row: then nothing else may be asked
//   size()                 V
//   row[v]                 the probability of token v, 0 <= v < V
//   open(begin, count)     a block of the row
//   block<V>(k, lanes)     the tokens k, k + 1, ... of a block, as a vec
//   block.confidence<V>(...)   the same tokens of the view at temperature 1, without a filter
template <class R>
concept NormalisedRow = requires(const R& r, std::size_t v) {
  typename R::value_type;
  { r.size() } -> std::convertible_to<std::size_t>;
  { r.why() } -> std::same_as<status>;
  r.open(v, v);
};
// A row that normalise() takes. It is a NormalisedRow; or it has
//   facts                          a type: the results of the pass over the row
//   find_facts(confidence, facts)  finds them; ok, or what is wrong with the row. Protected
//   open(facts, begin, count)      a block of the row
// or, if its normal form is not the normalised_row of these, a member
//   normalise(confidence)          which returns a NormalisedRow
template <class R>
concept Row = requires(const R& r) {
  typename R::value_type;
  { r.size() } -> std::convertible_to<std::size_t>;
} && (NormalisedRow<R> || requires(const R& r, const typename R::facts& known, std::size_t v) {
  r.open(known, v, v);
} || requires(const R& r) {
  { r.normalise(true).why() } -> std::same_as<status>;
});
// A Row, or anything where d[v] is the probability of token v, 0 <= v < d.size() = V, as a number
// that converts to double.
template <class D>
concept Distribution =
    Row<std::remove_cvref_t<D>> || requires(const std::remove_cvref_t<D>& d, std::size_t v) {
      { d.size() } -> std::convertible_to<std::size_t>;
      { d[v] } -> std::convertible_to<double>;
    };

// Members that only some rows have. Other rows are read without them.
//
//   member                  what it is                      of                     asked by
//   confident()             whether there is a view at      rows of logits,        readable()
//                           temperature 1 (without the      confident_row,
//                           member: yes)                    any_row
//   token()                 the token that has all of the   one_hot_row            draw(), race(),
//                           probability                                            row_pair, trees
//   keeps_few(),            whether only few tokens have a  processed_row          draw()
//   may_keep(v),            probability; whether one of
//   may_keep(begin, count)  these tokens may have one
//   empty(begin, count)     whether the block has no mass   few_of_row             weigh()
//   block.empty             likewise                        blocks that are not    known_empty()
//                                                           in memory as they are
//   weight()                the term of a logit in the      rows of logits,         draw(),
//   block.weight(f)         row's sum; f of the logits,     confident_row           draw_token()
//                           0 if not kept
//   gives_sums              true: its pass can leave the    softmax_row             draw_draft()
//                           sums of its blocks
//   greedy()                whether one token has all of    processed_row, rows of  with_law()
//                           the probability (T = 0)         CUDA and of shards
//   is_cut                  true: a part of a draft's row   cut_row                is_cut<R>
//   walker(), read_with()   who reads the row; the row      rows of CUDA and of    walker_of()
//                           whose walker reads this one     shards; rows made of
//                                                           other rows
//   fits(other)             whether the row can be read     sharded_row            fit_together()
//                           together with another one
//   normalise(confidence)   the normal form (Row, above)    indexed_row, any_row   normalise()
//   compiled_for_each,      a row of several kinds          any_row                with_chosen()
//   visit(f)                (compiled_once.hpp)

namespace detail {
template <class R>
constexpr bool gives_sums = requires { requires R::gives_sums; };
}  // namespace detail

// A row R that was normalised. It holds the results of its pass, R::facts, whose public members can
// be asked.
template <class R>
class [[nodiscard]] normalised_row : public R, public R::facts {
 public:
  using value_type = typename R::value_type;
  normalised_row() = default;  // no row: missing_row
  SPECAGG_FUNCTION explicit normalised_row(R row, bool confidence = false)
      : R(static_cast<R&&>(row)), why_(R::find_facts(confidence, *this)) {}
  // Also leaves the sums of the row's blocks (kernel/softmax.hpp), if the row can.
  normalised_row(R row, row_sums& sums)
    requires detail::gives_sums<R>
      : R(static_cast<R&&>(row)), why_(R::find_facts(false, *this, &sums)) {}

  SPECAGG_FUNCTION status why() const { return why_; }
  SPECAGG_FUNCTION value_type operator[](std::size_t v) const {
    return open(v, 1).template operator()<vec<value_type, 1>>(0, 1).v;
  }
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return R::open(*this, begin, count);
  }

 private:
  status why_ = status::missing_row;
};

// Makes a NormalisedRow of a Row in one pass: scaled to sum 1. confidence: whether the view at
// temperature 1 will be read too. A NormalisedRow is returned as it is, by reference if it was
// passed so. Elements that a row holds (indexed_row) are viewed, or moved from a temporary row.
template <class R>
  requires Row<std::remove_cvref_t<R>>
SPECAGG_FUNCTION decltype(auto) normalise(R&& row, bool confidence = false) {
  using U = std::remove_cvref_t<R>;
  if constexpr (NormalisedRow<U>) {
    using as_given = std::conditional_t<std::is_lvalue_reference_v<R>, const U&, U>;
    return as_given(static_cast<R&&>(row));
  } else if constexpr (requires { row.normalise(confidence); }) {
    return static_cast<R&&>(row).normalise(confidence);
  } else {
    return normalised_row<U>(static_cast<R&&>(row), confidence);
  }
}
// Likewise, for a draw: the pass leaves the sums of the row's blocks in `sums` if the row can.
template <class R>
  requires Row<std::remove_cvref_t<R>>
SPECAGG_FUNCTION decltype(auto) normalise(R&& row, row_sums& sums) {
  using U = std::remove_cvref_t<R>;
  if constexpr (!NormalisedRow<U> && detail::gives_sums<U>)
    return normalised_row<U>(static_cast<R&&>(row), sums);
  else return specagg::normalise(static_cast<R&&>(row));
}
// The type of a Row after normalise(): a normalised_row, or an any_row of several.
template <Row R>
using normal_form =
    std::remove_cvref_t<decltype(specagg::normalise(std::declval<const R&>(), true))>;

namespace detail {
// ok, or why a normalised row cannot be read; with its view at temperature 1, if the view is read.
template <class R>
SPECAGG_FUNCTION status readable(const R& row, bool confidence) {
  if constexpr (requires { row.confident(); })
    if (confidence && row.why() == status::ok && !row.confident()) return status::invalid_parameter;
  return row.why();
}
// Whether two rows can be read together: they have one size, and are shared out among ranks alike
// (shards/sharded_row.hpp).
template <class A, class B>
SPECAGG_FUNCTION bool fit_together(const A& a, const B& b) {
  if constexpr (requires { a.fits(b); })
    if (!a.fits(b)) return false;
  return a.size() == b.size();
}
// Whether a block is known to hold no mass.
template <class Block>
SPECAGG_INLINE bool known_empty(const Block& block) {
  if constexpr (requires { block.empty; }) return block.empty;
  else return false;
}
// Whether a row is the kept part of a draft's row (rows/cut_row.hpp).
template <class R>
constexpr bool is_cut = requires { requires R::is_cut; };
// Likewise, or one of several kinds (rows/any_row.hpp) is.
template <class R>
constexpr bool may_be_cut = is_cut<R> || requires { requires R::may_be_cut; };
// Whether a row holds its elements, so that its normal form views them.
template <class R>
constexpr bool holds_elements =
    !std::is_same_v<normal_form<R>,
                    std::remove_cvref_t<decltype(specagg::normalise(std::declval<R>(), true))>>;
}  // namespace detail

SPECAGG_END
