// SPDX-License-Identifier: Apache-2.0
// A budget of regret along the text, as ASD (arXiv:2608.03447) is described. Its paper was not
// available, so nothing here was compared with it.
#pragma once
#include <specagg/policy/token_cascade.hpp>

SPECAGG_BEGIN

// pi = q (1 - r) + eta p, as in policy/token_cascade.hpp; r(v) = 0 iff the regret ln(max p / p(v))
// is at most `limit` and what is left of `budget`. The regret, in nats at temperature 1, is the
// distance of the token's logit from the largest one. An emitted token with r = 0 spends its
// regret. No regret above 36 stands (double loses much smaller numbers than e^-36 when it subtracts
// them from 1), so no token with p = 0 does. Limits for each block of drafts depend on where a
// round begins, so they are no law of a text.
struct regret_budget {
  double budget = 0, limit = infinity;
  struct state {
    double spent = 0;
  };
  constexpr bool valid() const { return budget >= 0 && is_finite(budget) && limit >= 0; }
  constexpr state begin() const { return {}; }
  constexpr bool is_state(const state& s) const { return s.spent >= 0 && is_finite(s.spent); }
  SPECAGG_FUNCTION token_v3 at(const state& s) const {
    const double left = s.spent < budget ? budget - s.spent : 0, most = left < limit ? left : limit;
    return {1 - exp(most < 36 ? -most : -36)};
  }
  template <class Rows>
  SPECAGG_FUNCTION state advance(const state& s, const Rows& rows, token_id y) const {
    const double top = rows.max([](auto v) { return v.confidence_p; });
    const auto p = specagg::at(rows, std::size_t(y)).confidence_p;
    if (any(p < (1 - at(s).alpha) * top)) return s;  // as the policy compares
    return {s.spent + (log(top) - log(as_double(p)))};
  }
};

SPECAGG_END
