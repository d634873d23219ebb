// SPDX-License-Identifier: Apache-2.0
// Policies with state: the law of a token depends on the tokens and rows before it, as with a
// budget that a text spends. verify/stateful.hpp verifies them.
#pragma once
#include <specagg/token.hpp>

SPECAGG_BEGIN

// A policy with state has a type `state`, and
//   begin()                   the state before the first token
//   at(state)                 the policy of the next token
//   advance(state, y)         the state after token y, or
//   advance(state, rows, y)   likewise, also from the target's row of that position: rows.sum,
//                             at(rows, y).p and all else that a policy may use of p, but nothing of
//                             q
// It may have is_state(state): whether a text can have this state. A verifier refuses other states.
// advance() may use nothing but its arguments. Then the state is a function of the text, the law of
// a text is the product of the laws of its tokens, and drafts do not change it. A rule that looks
// ahead into the draft (FLy), or counts the tokens of a round, is no policy with state: its law
// changes with the draft's length.
template <class P>
concept StatefulPolicy = requires(const P& policy, const typename P::state& s) {
  { policy.begin() } -> std::same_as<typename P::state>;
  policy.at(s);
};

namespace detail {

template <class Policy>
constexpr bool advances_by_token =
    requires(const Policy& policy, const typename Policy::state& s) { policy.advance(s, 0); };

template <class Policy, class Rows>
SPECAGG_FUNCTION typename Policy::state advanced(const Policy& policy,
                                                 const typename Policy::state& s, const Rows& rows,
                                                 token_id y) {
  if constexpr (advances_by_token<Policy>) return policy.advance(s, y);
  else return policy.advance(s, rows, y);
}

template <class Policy>
constexpr bool is_state_of(const Policy& policy, const typename Policy::state& s) {
  if constexpr (requires { policy.is_state(s); }) return policy.is_state(s);
  else return true;
}

}  // namespace detail

SPECAGG_END
