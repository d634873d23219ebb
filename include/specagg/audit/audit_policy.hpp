// SPDX-License-Identifier: Apache-2.0
// A policy audited in one call: its exact law under every verifier, on every pair of rows of the
// 1/8 grid; and what it gives and takes, as a table to plot. For tests and analysis: allocates.
#pragma once
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <ostream>
#include <span>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/grid.hpp>
#include <specagg/kernels.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// The result of an audit: the largest difference between a conditional probability of the emitted
// law and that of pi, and the place of this difference. A right policy under a right verifier has
// an error of about 1e-16.
struct [[nodiscard]] policy_audit {
  // the largest difference, the text `prefix` before it, and its token
  round_error worst;
  const char* verifier = "";       // of the worst round; "" while no probability was off
  std::size_t gamma = 0;           // drafted tokens of the worst round
  std::size_t round = 0;           // its rows: those of grid_round<double>{round}
  std::array<double, 3> q{}, p{};  // its rows after `prefix`
  std::size_t pairs = 0;           // pairs of rows tried as the first pair of a round
  // pairs for which pi has no value: verifiers report that and emit nothing
  std::size_t undefined = 0;
  // pairs for which pi has values, but one is negative or their sum is not 1
  std::size_t no_law = 0;
  std::size_t reused = 0;  // random numbers used for two decisions

  // Whether no probability was off by more than `largest`, every pi was a law (and there was one),
  // and no random number was used for two decisions.
  [[nodiscard]] bool passed(double largest = 1e-12) const {
    return worst.error <= largest && undefined < pairs && no_law == 0 && reused == 0;
  }
};

namespace detail {

// Counts the first pair of round r. Returns its law; empty if pi is not a law.
std::vector<double> count_pair(const auto& policy, const grid_round<double>& r,
                               policy_audit& found) {
  const std::vector<double> pi = target_law(policy, r.q({}), r.p({}));
  ++found.pairs;
  if (pi.empty())
    ++(bound_to(unchecked(policy), r.q({}), r.p({})).empty() ? found.undefined : found.no_law);
  return pi;
}

}  // namespace detail

// One verifier, with 1 to 3 drafted tokens, every branch of every round of the grid walked.
//   verify        verify(drafted, q_rows, p_rows, policy, chooser, out, scratch), as verify_token,
//                 gives a verdict
//   name          of the verifier, for the result, which keeps the pointer
//   after_round   called with the part of the work that is done
template <class Policy, class Verify, class AfterRound = std::identity>
policy_audit audit_policy(const Policy& policy, const char* name, Verify&& verify,
                          AfterRound&& after_round = {}) {
  constexpr std::size_t longest = 3;
  policy_audit found;
  if (!valid(policy)) {
    found.worst = {1, {}, no_token, status::invalid_parameter};
    return found;
  }
  const std::size_t rounds = grid_round<double>::rounds();
  for (std::size_t gamma = 1; gamma <= longest; ++gamma)
    for (std::size_t i = 0; i < rounds; ++i) {
      const grid_round<double> r{i};
      if (gamma == 1) detail::count_pair(policy, r, found);
      const auto q = [&](const std::vector<token_id>& prefix) { return r.q(prefix); };
      const auto p = [&](const std::vector<token_id>& prefix) { return r.p(prefix); };
      const auto pi = [&](const std::vector<token_id>& prefix) {
        return target_law(policy, q(prefix), p(prefix));
      };
      const round_error e = worst_error_of_round(policy, gamma, q, p, verify, pi);
      found.reused += e.reused;
      if (e.error > found.worst.error) {
        found.worst = e;
        found.verifier = name;
        found.gamma = gamma;
        found.round = i;
        found.q = q(e.prefix);
        found.p = p(e.prefix);
      }
      (void)after_round((double(gamma - 1) + double(i + 1) / double(rounds)) / longest);
    }
  return found;
}

// Coupled verification draws no branches that could be walked: its joint law of draft and output is
// computed in closed form for each pair of rows, and must have the marginals q and pi. gamma is 1.
policy_audit audit_coupled(const auto& policy) {
  policy_audit found;
  if (!valid(policy)) {
    found.worst = {1, {}, no_token, status::invalid_parameter};
    return found;
  }
  for (std::size_t i = 0; i < grid_round<double>::rounds(); ++i) {
    const grid_round<double> r{i};
    const std::vector<double> pi = detail::count_pair(policy, r, found);
    if (pi.empty()) continue;
    const std::array<double, 3> q = r.q({});
    const std::vector<double> joint = coupled_joint_law(q, pi);
    for (std::size_t v = 0; v < 3; ++v) {
      double drafted = 0, emitted = 0;
      for (std::size_t w = 0; w < 3; ++w) {
        drafted += joint[3 * v + w];
        emitted += joint[3 * w + v];
      }
      const double error = std::max(std::fabs(drafted - q[v]), std::fabs(emitted - pi[v]));
      if (error > found.worst.error) {
        found.worst = {error, {}, token_id(v), status::ok};
        found.verifier = coupled_verifier::name;
        found.gamma = 1;
        found.round = i;
        found.q = q;
        found.p = r.p({});
      }
    }
  }
  return found;
}

// Audits the policy with a verifier of the list (verify/verifiers.hpp).
template <class Policy, class V, class AfterRound = std::identity>
  requires requires { V::name; }
policy_audit audit_policy(const Policy& policy, const V& verifier, AfterRound&& after_round = {}) {
  if constexpr (is_coupled<V>) {
    static_assert(std::is_same_v<V, coupled_verifier>,
                  "specagg: the joint law of a coupled verifier is known of "
                  "coupled_verifier alone");
    return audit_coupled(policy);
  } else {
    return audit_policy(
        policy, V::name, [&](auto&&... a) { return verifier.verify(a...); }, after_round);
  }
}

// All verifiers: what the tests of this library run for each of its policies. Takes seconds.
policy_audit audit_policy(const auto& policy) {
  policy_audit found;
  for_each_verifier(0, 0, [&](const auto& verifier) {
    const policy_audit one = audit_policy(policy, verifier);
    const std::size_t reused = found.reused + one.reused;
    if (found.pairs == 0 || one.worst.error > found.worst.error) found = one;
    found.reused = reused;
  });
  return found;
}

// The trade-off of a policy for one pair of rows: the probability that each verifier accepts a
// drafted token, and the distance of pi from the target's row. least_rejection = (TV(q, p) - TV(pi,
// p))+: token verification rejects with probability TV(q, pi) = 1 - token, and no law as near to p
// as pi is rejected less.
struct [[nodiscard]] trade_off {
  double token = 0, match = 0, coupled = 0;  // sum min(q, pi); sum q pi; verify/coupled.hpp
  double distance = 0;                       // TV(pi, p)
  double least_rejection = 0;
};
// pi = target_law(policy, q, p), not empty; all of one size.
inline trade_off trade_off_of(std::span<const double> pi, std::span<const double> q,
                              std::span<const double> p) {
  trade_off t;
  t.token = acceptance_rate(q, pi);
  for (std::size_t v = 0; v < pi.size(); ++v) t.match += q[v] * pi[v];
  t.coupled = coupled_acceptance(q, pi);
  t.distance = total_variation(p, pi);
  t.least_rejection = std::max(0., total_variation(q, p) - t.distance);
  return t;
}

// The trade-off curve of policy_of(parameter) for each of the parameters, as CSV: a line with the
// names of the columns, and a line for each parameter and pair of rows of the 1/8 grid. q and p are
// three numbers with spaces between; if pi is not a law, the other columns are empty.
void write_trade_off(std::ostream& out, std::span<const double> parameters, const auto& policy_of) {
  char digits[32];
  const auto write = [&](double x, char after) {
#ifdef __cpp_lib_to_chars
    out.write(digits, std::to_chars(digits, digits + sizeof digits, x).ptr - digits).put(after);
#else  // libc++ before 14: more digits than needed
    out.write(digits, std::snprintf(digits, sizeof digits, "%.17g", x)).put(after);
#endif
  };
  const auto write_row = [&](const std::array<double, 3>& row) {
    write(row[0], ' ');
    write(row[1], ' ');
    write(row[2], ',');
  };
  out << "parameter,q,p,token,match,coupled,distance,least_rejection\n";
  for (const double parameter : parameters)
    for (const std::array<double, 3>& q : grid_round<double>::rows())
      for (const std::array<double, 3>& p : grid_round<double>::rows()) {
        write(parameter, ',');
        write_row(q);
        write_row(p);
        const std::vector<double> pi = target_law(policy_of(parameter), q, p);
        if (pi.empty()) {
          out << ",,,,\n";
          continue;
        }
        const trade_off t = trade_off_of(pi, q, p);
        write(t.token, ',');
        write(t.match, ',');
        write(t.coupled, ',');
        write(t.distance, ',');
        write(t.least_rejection, '\n');
      }
}

SPECAGG_END
