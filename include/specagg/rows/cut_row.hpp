// SPDX-License-Identifier: Apache-2.0
// The row of a token that was drawn from q and then kept only if it lies in a set A: q 1_A, not
// renormalised. A grammar may have refused the token, or a controller stopped at an unlikely one.
// Proved: proofs/cuts.v, `keep_or_replace_kept_emits_pi`.
#pragma once
#include <span>

#include <specagg/rows/distribution.hpp>

SPECAGG_BEGIN

// R: the type of the normalised row of q. kept: V numbers, 1 in A and 0 elsewhere. A may depend on
// the text and on the tokens drafted before, not on the drawn token or on coins. The memory must
// outlive the row, unchanged.
//
// Draw the token from q, and pass it to the verifier with this row, whether it was kept or not. A
// token that has no probability here was not kept: it is rejected, and replaced from the residual
// norm((pi - q 1_A)+). If nothing was kept, the residual, not pi, is still to be emitted. Tokens
// drafted after a token that was not kept are never accepted.
//
// For verify_token and verify_block with a policy that does not read the draft (else
// invalid_parameter), and as laws[i] of a tree with any policy. normalise() is one pass. Its why()
// is vocabulary_mismatch if `kept` has another size than the row, invalid_row if it has another
// number than 0 and 1. The view at temperature 1 is that of R.
template <NormalisedRow R>
class cut_row {
 public:
  using value_type = typename R::value_type;
  using T = value_type;
  struct facts {};
  static constexpr bool is_cut = true;
  cut_row() = default;
  SPECAGG_FUNCTION cut_row(const R& row, std::span<const T> kept) : row_(row), kept_(kept) {}

  SPECAGG_FUNCTION std::size_t size() const { return row_.size(); }
  SPECAGG_FUNCTION const R& read_with() const { return row_; }

  template <class B>
  struct block {
    B row;
    const T* kept;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      const V x = lanes == V::lanes ? V::load(kept + k) : V::load_partial(kept + k, lanes, 0);
      return uncontracted(row.template operator()<V>(k, lanes) * x);
    }
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V confidence(std::size_t k, int lanes) const {
      return row.template confidence<V>(k, lanes);
    }
  };
  SPECAGG_FUNCTION auto open(const facts&, std::size_t begin, std::size_t count) const {
    return block<decltype(row_.open(0, 0))>{row_.open(begin, count), kept_.data() + begin};
  }
  // f(the row).
  template <class F>
  SPECAGG_FUNCTION void each_row(const F& f) const {
    f(row_);
  }

 protected:
  SPECAGG_FUNCTION status find_facts(bool confidence, facts&) const {
    if (const status s = detail::readable(row_, confidence); s != status::ok) return s;
    if (kept_.size() != row_.size()) return status::vocabulary_mismatch;
    for (const T x : kept_)
      if (x != 0 && x != 1) return status::invalid_row;
    return status::ok;
  }

 private:
  R row_;
  std::span<const T> kept_;
};

SPECAGG_END
