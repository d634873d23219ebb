// SPDX-License-Identifier: Apache-2.0
// Two fixed sites, l and r (say device and cloud): which of them is meant, and what happens to the drafts of both.
#pragma once
#include <cstdint>

#include <specagg/config.hpp>

SPECAGG_BEGIN

enum class side : std::uint8_t { l, r };

// How often the token made of both drafts confirms both of them, or one: the joint law of (accepted_l, accepted_r). The
// two are negatively correlated as a rule, so what they cost together does not follow from alpha^l and alpha^r.
struct agreement {
  double both = 0, only_l = 0, only_r = 0;
  constexpr double l() const { return both + only_l; }  // alpha^l
  constexpr double r() const { return both + only_r; }  // alpha^r
  constexpr double neither() const { return 1 - (both + only_l + only_r); }
};

SPECAGG_END
