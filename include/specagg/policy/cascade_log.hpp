// SPDX-License-Identifier: Apache-2.0
// Speculative cascades that measure confidence in nats. H is the entropy of a row at temperature 1.
// As in cascade.hpp, pi = p where the policy defers to the target, else pi = q; ties do not defer.
// Narasimhan et al. 2025 (arXiv:2405.19261). bild: Kim et al. 2023 (2302.07863).
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// Defer iff H(q) > alpha.
struct chow_log {
  double alpha = 0;
  static constexpr bool decides_by_draft = true;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return target_if(rows.sum([](auto at) { return entropy_term(at.confidence_q); }) > alpha);
  }
};

// Defer iff H(p) < H(q) - alpha.
struct diff_log {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto h = rows.sum(
        [](auto at) { return both(entropy_term(at.confidence_q), entropy_term(at.confidence_p)); });
    return target_if(h.second < h.first - alpha);
  }
};

// Defer iff H(p) < H(q) - alpha TV(p, q).
struct opt_log {
  double alpha = 0;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto h = rows.sum(
        [](auto at) { return both(entropy_term(at.confidence_q), entropy_term(at.confidence_p)); });
    const double tv = total_variation(rows);
    return target_if(h.second < fma(-alpha, tv, h.first));
  }
};

// Defer iff D(q, p) > alpha. D is the cross-entropy -sum q log p. With `greedy` D is -log p(argmax
// q), the same at temperature 0; of several maxima the token with the lowest id counts. D is
// infinite if p is 0 for a token that D reads.
struct bild {
  double alpha = 0;
  bool greedy = false;
  constexpr bool valid() const { return is_finite(alpha); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    if (!greedy)
      return target_if(rows.sum([](auto at) {
        return weighted_log(-at.confidence_q, at.confidence_p);
      }) > alpha);
    const std::size_t top = rows.argmax([](auto at) { return at.confidence_q; });
    return target_if(-log(double(specagg::at(rows, top).confidence_p.v)) > alpha);
  }
};

SPECAGG_END
