// SPDX-License-Identifier: Apache-2.0
// pi of a policy at one position, as all verifiers and decoders draw from it.
#pragma once
#include <specagg/policy/lossless.hpp>

SPECAGG_BEGIN
namespace detail {

// pi if it is a law, else NaN for every token.
template <class Rows, class Pi>
SPECAGG_FUNCTION auto where_law(const Rows& rows, const Pi& pi) {
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

// pi. Builds without NDEBUG check that it is a law, in one more pass over V: if it is not, pi is
// NaN, and the position an undefined_target. lossless gives a row that was normalised, so there is
// nothing to check.
template <class Rows, class Policy>
SPECAGG_FUNCTION auto bind_law(const Rows& rows, const Policy& policy) {
  auto pi = detail::bind_to(rows, policy);
  if constexpr (!SPECAGG_CHECKS_LAWS || std::is_same_v<Policy, lossless>) return pi;
  else return detail::where_law(rows, pi);
}
// f(the rows as the policy sees them, pi bound to these).
template <class Policy, class Rows, class F>
SPECAGG_FUNCTION status with_pi(const Policy& policy, const Rows& rows, F&& f) {
  const auto seen = detail::seen_by<Policy>(rows);
  return f(seen, detail::bind_law(seen, policy));
}

}  // namespace detail
SPECAGG_END
