// SPDX-License-Identifier: Apache-2.0
// The rows of one position and, beside them, one more row: the law that a drafted token was drawn
// from, where that is not the draft's row which the policy reads.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN
namespace detail {

// One token, or 16 tokens: the members of At, and the probability of the token under the other row.
template <class At, class V>
struct beside_view : At {
  V proposal;
};

// beside(rows, proposal): a function bound to `rows` (a row_pair, target_rows or model_rows) takes
// its views too. Both must be normalised and of one size and value type, and must outlive it.
template <class Rows, class R>
class beside : public reductions<beside<Rows, R>> {
 public:
  using value_type = typename Rows::value_type;
  static_assert(
      std::is_same_v<typename R::value_type, value_type>,
      "specagg: the rows of one position must have one value type (all float or all double)");
  SPECAGG_FUNCTION beside(const Rows& rows, const R& proposal) : rows_(rows), proposal_(proposal) {}
  SPECAGG_FUNCTION std::size_t size() const { return rows_.size(); }
  SPECAGG_FUNCTION const Rows& read_with() const { return rows_; }
  SPECAGG_FUNCTION void each_row(const auto& f) const {
    f(rows_);
    f(proposal_);
  }

  template <class A, class B>
  struct block {
    A rows;
    B proposal;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE auto operator()(std::size_t k, int n) const {
      const auto at = rows.template operator()<V>(k, n);
      return beside_view<std::remove_cv_t<decltype(at)>, V>{at,
                                                            proposal.template operator()<V>(k, n)};
    }
  };
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(rows_.open(0, 0)), decltype(proposal_.open(0, 0))>{
        rows_.open(begin, count), proposal_.open(begin, count)};
  }

 private:
  const Rows& rows_;
  const R& proposal_;
};

// For verification (verify/verify.hpp): the token was drawn from the row beside the others. P says
// which of the others' members is the target's.
template <class P>
struct beside_sides {
  SPECAGG_FUNCTION static auto q(const auto& at) { return at.proposal; }
  SPECAGG_FUNCTION static auto p(const auto& at) { return P::p(at); }
};

}  // namespace detail
SPECAGG_END
