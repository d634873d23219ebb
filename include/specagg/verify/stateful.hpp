// SPDX-License-Identifier: Apache-2.0
// How policies with state (policy/stateful.hpp) are verified.
#pragma once
#include <span>

#include <specagg/policy/policies_of.hpp>
#include <specagg/policy/stateful.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

namespace detail {

// The policy of one position. bind() also writes the state after the drafted token.
template <class Policy>
struct advancing {
  using state = typename Policy::state;
  const Policy* policy;
  const state* here;
  state* next;  // null: no token is drafted there
  token_id drafted;
  static constexpr bool reads_draft = specagg::reads_draft<Policy>;
  static constexpr bool reads_confidence = specagg::reads_confidence<Policy>;
  static constexpr bool reads_ids = specagg::reads_ids<Policy>;
  constexpr bool valid() const { return specagg::valid(policy->at(*here)); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    if (next && outside_support(drafted, rows.size(), 1) == status::ok)
      *next = detail::advanced(*policy, *here, rows, drafted);
    return policy->at(*here).bind(rows);
  }
};

}  // namespace detail

// A verifier of policies with state, which verifies by V. The arguments of verify() are those of
// verify_token, but the policy is one with state. It declares what its policies read.
//   states   memory, one more than tokens are drafted. states[0] is the state after the text; after
//            verify() it is the state after the emitted tokens: the accepted ones and the token
//            drawn after them, if there is one. If no token was emitted it is as before
// invalid_parameter: there are too few states; no text has states[0] (is_state()); or the caller
// gives the bonus, and advance() needs its row. Acceptances are computed with the states along the
// draft, as if all of its tokens were accepted. Not for trees (policies_of() is).
template <class V, class State>
struct stateful_verifier : V {
  std::span<State> states;

  stateful_verifier(const V& verifier, std::span<State> memory) : V(verifier), states(memory) {}

  template <class Q, class P, StatefulPolicy Policy, class C>
  verdict verify(const draft& drafted, Q&& q_rows, P&& p_rows, const Policy& policy, C&& chooser,
                 std::span<emission> out, std::span<double> scratch) const {
    const std::size_t g = drafted.size();
    for (draft_acceptance& o : drafted.acceptances) o = {};
    if (!specagg::valid(policy) || states.size() < g + 1 ||
        !detail::is_state_of(policy, states[0]) ||
        (drafted.bonus.is_given() && !detail::advances_by_token<Policy>))
      return {.why = status::invalid_parameter};
    const auto policies = policies_of([&](std::size_t j) {
      return detail::advancing<Policy>{&policy, &states[j], j < g ? &states[j + 1] : nullptr,
                                       j < g ? drafted.tokens[j] : no_token};
    });
    verdict v = V::verify(drafted, q_rows, p_rows, policies, chooser, out, scratch);
    const State after = states[v.accepted];
    if (v.emitted == v.accepted) {
      states[0] = after;
      return v;
    }
    const token_id last = out[v.accepted].token;
    if constexpr (detail::advances_by_token<Policy>) {
      states[0] = policy.advance(after, last);
    } else {
      // The row was read when the token was drawn, so this cannot fail.
      (void)detail::with_target_row<Policy>(p_rows, v.accepted, [&](const auto& p) {
        using row = std::remove_cvref_t<decltype(p)>;
        states[0] = policy.advance(after, target_rows<reads_confidence<Policy>, row>(p), last);
        return status::ok;
      });
    }
    return v;
  }
};

SPECAGG_END
