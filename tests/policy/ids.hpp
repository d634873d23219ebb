// SPDX-License-Identifier: Apache-2.0
// Policies that read the token's id.
#pragma once
#include <array>

#include <specagg/specagg.hpp>

// pi = p for the tokens of a set; the others share what p leaves, in the proportions of q (of p,
// where q has no mass there).
template <std::size_t N>
struct from_target {
  std::array<specagg::token_id, N> set;
  static constexpr bool reads_ids = true, reads_confidence = false;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto left = rows.sum([s = set](auto at) {
      const auto in = specagg::is_one_of(at.id, s);
      return specagg::both(select(in, 0, at.q), select(in, 0, at.p));
    });
    const double scale = left.second / left.first;
    return [s = set, scale, some = left.first > 0](auto at) {
      return select(specagg::is_one_of(at.id, s), at.p, select(some, at.q * scale, at.p));
    };
  }
};

// The target's row without a token.
struct without_token {
  specagg::token_id token = 0;
  static constexpr bool reads_draft = false, reads_ids = true, reads_confidence = false;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return specagg::normalised(
        rows, [t = double(token)](auto at) { return select(at.id == t, 0, at.p); });
  }
};

// Of three models the last, for tokens of even ids.
struct last_model_of_even_ids {
  static constexpr std::size_t models = 3;
  static constexpr bool reads_ids = true, reads_confidence = false;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    return specagg::normalised(
        rows, [](auto at) { return select((at.id == 1), 0, specagg::model<2>(at)); });
  }
};
