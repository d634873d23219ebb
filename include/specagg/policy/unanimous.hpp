// SPDX-License-Identifier: Apache-2.0
// Unanimous combiners: pi = norm F with F coordinatewise increasing and 1-homogeneous. Models that agree on a token
// under shared noise have then found the combined one, whatever the parameters (verify/unanimous.hpp).
//
// A policy declares that with a member F = unnormalised(at) and one of these, which nobody checks:
//   static constexpr bool unanimous = true;     whatever its parameters
//   bool unanimous_here() const;                where they decide it
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

template <class P>
constexpr bool is_unanimous = [] {
  if constexpr (requires { P::unanimous; }) return P::unanimous;
  else return false;
}();
template <class P>
constexpr bool may_be_unanimous = is_unanimous<P> || requires(const P& policy) { policy.unanimous_here(); };
// Whether a combiner is unanimous with the parameters it has.
template <class Policy>
constexpr bool unanimous_here(const Policy& policy) {
  if constexpr (requires { policy.unanimous_here(); }) return valid(policy) && policy.unanimous_here();
  else return is_unanimous<Policy> && valid(policy);
}

SPECAGG_END
