// SPDX-License-Identifier: Apache-2.0
// Unanimous combiners: pi = norm F, where F increases in each coordinate and is 1-homogeneous. If
// all models agree on a token under the Gumbel-max coupling, it is the token of the combined law,
// for any parameters (verify/unanimous.hpp).
//
// A policy declares this with a member F = unnormalised(at) and one of the following. The library
// does not check it.
//   static constexpr bool unanimous = true;     unanimous for all parameters
//   bool unanimous_here() const;                whether it is, with the present parameters
// Proved: proofs/unanimous.v, `unanimous_winner`.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// Whether a combiner declares that it is unanimous for all parameters, or at least for some.
template <class P>
constexpr bool is_unanimous = requires { requires P::unanimous; };
template <class P>
constexpr bool may_be_unanimous =
    is_unanimous<P> || requires(const P& policy) { policy.unanimous_here(); };
// Whether a combiner is unanimous with its present parameters.
template <class Policy>
constexpr bool unanimous_here(const Policy& policy) {
  if constexpr (requires { policy.unanimous_here(); })
    return specagg::valid(policy) && policy.unanimous_here();
  else return is_unanimous<Policy> && specagg::valid(policy);
}

SPECAGG_END
