// SPDX-License-Identifier: Apache-2.0
// Several sites that race with shared noise and cannot see each other's rows: how they find the token of the combined
// law all the same.
#pragma once
#include <array>

#include <specagg/policy/models.hpp>
#include <specagg/policy/unanimous.hpp>
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN

// The winner that all sites have: the combined winner argmin E / F(p^1 .. p^n), whatever the parameters of a unanimous
// combiner (policy/unanimous.hpp: mixtures, power means, geometric means with weights >= 0, min, max). For if i wins
// everywhere then p^k_j <= t_j p^k_i with t_j = E_j / E_i, and F keeps such inequalities. no_token where the sites
// differ, or where the combiner is not unanimous with the parameters it has.
template <class Policy, class Tokens>
token_id unanimous(const Policy& policy, const Tokens& winners) {
  static_assert(may_be_unanimous<Policy>,
                "specagg: this combiner is not monotone and 1-homogeneous: a token that all sites drew may not be the "
                "combined one");
  if (!unanimous_here(policy)) return no_token;
  token_id all = no_token;
  for (const token_id t : winners) {
    if (all != no_token && t != all) return no_token;
    all = t;
  }
  return all;
}

// The combined winner argmin E / F(p^1 .. p^n) for sites that cannot see each other's rows. In turn each site names its
// next best (id, score) and the others answer with their own score of that id; a combined score F(scores) is then
// exact, and no token not yet named can beat F(last score named by each): the best named one that does is the winner.
//   next(site, last)    the site's best contender after `last`; no_token when it has none left
//   score(site, token)  the site's score of a token
// F is the policy's, which has to be unanimous; if it is not with the parameters it has, nobody wins. All numbers are
// doubles as transmitted; ties go to the lower id. `named`, if given, counts the contenders sent.
template <std::size_t N, class Policy, class Next, class Score>
contender exchange(const Policy& policy, Next&& next, Score&& score, std::size_t* named = nullptr) {
  static_assert(may_be_unanimous<Policy>,
                "specagg: this combiner is not monotone and 1-homogeneous: the best scores of all sites bound nothing");
  contender best;
  if (!unanimous_here(policy)) return best;
  const auto combine = [&](const std::array<double, N>& x) {
    return detail::as_double(policy.unnormalised(view_of(x)));
  };
  std::array<contender, N> last;
  last.fill({no_token, infinity});
  for (bool more = true; more;) {
    more = false;
    for (std::size_t s = 0; s < N; ++s) {
      if (last[s].score == 0) continue;  // this site has named all it has
      last[s] = next(s, last[s]);
      if (last[s].token == no_token) {
        last[s].score = 0;
        continue;
      }
      more = true;
      if (named) ++*named;
      std::array<double, N> scores;
      for (std::size_t k = 0; k < N; ++k) scores[k] = k == s ? last[s].score : score(k, last[s].token);
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
