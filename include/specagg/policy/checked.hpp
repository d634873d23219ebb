// SPDX-License-Identifier: Apache-2.0
// A rule that says so where it is no law. A verifier trusts a rule: where pi is negative, or does not sum to 1, it
// still draws a token, of whatever law that is.
#pragma once
#include <specagg/policy/raw_logits.hpp>
#include <specagg/policy/unanimous.hpp>

SPECAGG_BEGIN

namespace detail {
// What sequential_decode shows a rule (decode/cascade.hpp): q alone, and pi is not evaluated on it.
template <class View>
constexpr bool lacks_target = requires(View seen) { seen.q; } && !requires(View seen) { seen.p; };
}  // namespace detail

// The rule itself, bit by bit, where it is a law; elsewhere pi is NaN, which every consumer reports as
// status::undefined_target: where pi is negative anywhere, or its sum is further than normalisation_tolerance from 1.
// The price is one pass over V. What the rule declares, this declares.
template <class Policy>
struct checked {
  Policy policy;
  static constexpr bool reads_draft = specagg::reads_draft<Policy>;
  static constexpr bool reads_confidence = specagg::reads_confidence<Policy>;
  static constexpr bool unanimous = is_unanimous<Policy>;
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
    const auto pi = policy.bind(rows);
    if constexpr (detail::lacks_target<decltype(at(rows, std::size_t()))>) return pi;
    else return where_law(rows, pi);
  }

 private:
  template <class Rows, class Pi>
  SPECAGG_FUNCTION static auto where_law(const Rows& rows, const Pi& pi) {
    const both<double> seen = rows.sum([&](auto at) {
      const auto x = uncontracted(pi(at));
      return both(x, select(x < 0, decltype(x)(1), decltype(x)(0)));
    });
    constexpr double least = 1 - normalisation_tolerance, most = 1 + normalisation_tolerance;
    const bool law = seen.first >= least && seen.first <= most && seen.second == 0;
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    return [=](auto at) {
      const auto x = pi(at);
      return select(law, x, decltype(x)(none));
    };
  }
};
template <class Policy>
checked(Policy) -> checked<Policy>;

// Models combined as they are, by a rule that is checked there.
template <class Policy>
struct checked<raw_logits<Policy>> {
  checked<Policy> policy;
  constexpr checked(const raw_logits<Policy>& rule) : policy{rule.policy} {}
  constexpr bool valid() const { return policy.valid(); }
};
template <class Policy>
constexpr bool is_raw_logits<checked<raw_logits<Policy>>> = true;

SPECAGG_END
