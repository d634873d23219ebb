// SPDX-License-Identifier: Apache-2.0
// How several sites that race with the Gumbel-max coupling find the token of the combined law,
// although no site sees the rows of the others.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>
#include <specagg/policy/unanimous.hpp>
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN

// If all sites have the same winner, it is the combined winner argmin E / F(p^1 .. p^n). This holds
// for a unanimous combiner (policy/unanimous.hpp: mixtures, power means, geometric means with
// weights >= 0, min, max), for any parameters. Proof: if i wins everywhere then p^k_j <= t_j
// p^k_i with t_j = E_j / E_i, and F preserves such inequalities (proofs/unanimous.v,
// `unanimous_winner`). Returns no_token if the sites differ, or if the combiner is not unanimous
// with its parameters.
template <class Policy, class Tokens>
token_id unanimous(const Policy& policy, const Tokens& winners) {
  static_assert(may_be_unanimous<Policy>,
                "specagg: this combiner is not monotone and 1-homogeneous: a token that all sites "
                "drew may not be the "
                "combined one");
  if (!unanimous_here(policy)) return no_token;
  token_id all = no_token;
  for (const token_id t : winners) {
    if (all != no_token && t != all) return no_token;
    all = t;
  }
  return all;
}

// The combined winner argmin E / F(p^1 .. p^n), for sites that cannot see each other's rows. The
// sites take turns. Each sends its next best contender (id, score), and the others answer with
// their own score of that id. So the combined score F(scores) of a sent token is exact. A token
// that no site has sent scores at most F(the last score sent by each site). The best sent token
// wins as soon as it scores more than that.
//   next(site, last)    the site's best contender after `last`; no_token if it has none left
//   score(site, token)  the site's score of a token
// F is the policy's, which must be unanimous. If it is not unanimous with its parameters, the
// result is no_token. All numbers are doubles as transmitted; ties go to the lower id. `named`, if
// given, is increased by the number of contenders sent. No site sends a token twice, so with V
// tokens it ends after at most V + 1 turns of each site. Proved: proofs/exchange.v,
// `exchange_ends`, `exchange_finds_winner`.
template <std::size_t N, class Policy, class Next, class Score>
contender exchange(const Policy& policy, Next&& next, Score&& score, std::size_t* named = nullptr) {
  static_assert(may_be_unanimous<Policy>,
                "specagg: this combiner is not monotone and 1-homogeneous: the best scores of all "
                "sites bound nothing");
  static_assert(models_of<Policy> == N,
                "specagg: the policy combines another number of models than it is given");
  contender best;
  if (!unanimous_here(policy)) return best;
  const auto combine = [&](const std::array<double, N>& x) {
    return as_double(policy.unnormalised(view_of(x)));
  };
  std::array<contender, N> last;
  last.fill({no_token, infinity});
  for (bool more = true; more;) {
    more = false;
    for (std::size_t s = 0; s < N; ++s) {
      if (last[s].score == 0) continue;  // this site has sent all its contenders
      last[s] = next(s, last[s]);
      if (last[s].token == no_token) {
        last[s].score = 0;
        continue;
      }
      more = true;
      if (named) ++*named;
      std::array<double, N> scores;
      for (std::size_t k = 0; k < N; ++k)
        scores[k] = k == s ? last[s].score : score(k, last[s].token);
      const contender c{last[s].token, combine(scores)};
      if (c.score > 0 && (best.token == no_token || before(c, best))) best = c;
    }
    std::array<double, N> bound;
    for (std::size_t k = 0; k < N; ++k) bound[k] = last[k].score;
    if (best.token != no_token && best.score > combine(bound)) return best;
  }
  return best;
}

SPECAGG_END
