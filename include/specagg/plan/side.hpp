// SPDX-License-Identifier: Apache-2.0
// Two fixed sites, l and r (for example device and cloud): the name of a side, and how often the
// drafts of both are accepted.
#pragma once
#include <cstdint>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// One of the two. Both sites give the sides the same names.
enum class side : std::uint8_t { l, r };

// The joint distribution of (accepted_l, accepted_r): the probabilities that the token made from
// both drafts confirms both of them, or only one. The two are usually negatively correlated, so
// alpha^l and alpha^r alone do not determine the cost.
struct agreement {
  double both = 0, only_l = 0, only_r = 0;
  constexpr double l() const { return both + only_l; }  // alpha^l
  constexpr double r() const { return both + only_r; }  // alpha^r
  constexpr double neither() const { return 1 - (both + only_l + only_r); }
};

SPECAGG_END
