// SPDX-License-Identifier: Apache-2.0
// A policy that checks that pi is a probability distribution. Verifiers and decoders check this in
// builds without NDEBUG (policy/detail/law.hpp). In other builds, if pi is negative somewhere or
// does not sum to 1, a token is drawn nevertheless, and its law is not specified.
#pragma once
#include <specagg/policy/detail/law.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/policy/unanimous.hpp>

SPECAGG_BEGIN

namespace detail {
// The view that sequential_decode gives to a policy (decode/cascade.hpp): q alone. pi is not
// evaluated on it.
template <class View>
constexpr bool lacks_target = requires(View seen) { seen.q; } && !requires(View seen) { seen.p; };
}  // namespace detail

// Gives the same pi as the policy, bit by bit, where pi is a probability distribution. If the
// policy's pi is negative for any token, or its sum is further than normalisation_tolerance from 1,
// pi is NaN. Verifiers, decoders and audits report that as status::undefined_target. It costs one
// pass over V. It declares what the policy declares.
template <class Policy>
struct checked {
  Policy policy;
  static constexpr bool reads_draft = specagg::reads_draft<Policy>;
  static constexpr bool reads_confidence = specagg::reads_confidence<Policy>;
  static constexpr bool reads_ids = specagg::reads_ids<Policy>;
  static constexpr bool decides_by_draft = specagg::decides_by_draft<Policy>;
  static constexpr bool unanimous = is_unanimous<Policy>;
  static constexpr std::size_t models = models_of<Policy>;
  constexpr bool valid() const { return specagg::valid(policy); }
  constexpr bool unanimous_here() const
    requires requires(const Policy& p) { p.unanimous_here(); }
  {
    return policy.unanimous_here();
  }
  template <class At>
  SPECAGG_FUNCTION auto unnormalised(At at) const
    requires requires(const Policy& p) { p.unnormalised(at); }
  {
    return policy.unnormalised(at);
  }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto pi = detail::bind_to(rows, policy);
    // the target's row is a law
    constexpr bool is_row = std::is_same_v<std::remove_const_t<decltype(pi)>, target_itself>;
    if constexpr (is_row || detail::lacks_target<decltype(specagg::at(rows, std::size_t()))>)
      return pi;
    else return detail::where_law(rows, pi);
  }
};
template <class Policy>
checked(Policy) -> checked<Policy>;

// raw_logits with a check: the policy is checked where the raw logits are combined.
template <class Policy>
struct checked<raw_logits<Policy>> {
  checked<Policy> policy;
  static constexpr std::size_t models = models_of<Policy>;
  constexpr checked(const raw_logits<Policy>& raw) : policy{raw.policy} {}
  constexpr bool valid() const { return policy.valid(); }
};
// It can be used wherever raw_logits can.
template <class Policy>
constexpr bool is_raw_logits<checked<raw_logits<Policy>>> = true;

SPECAGG_END
