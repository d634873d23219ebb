// SPDX-License-Identifier: Apache-2.0
// Two sites that emit one law: how long a token takes, and which side should aggregate. Liu et al.
// 2025, DRAGON. l is the side that aggregates, r is the other side; exchanged() swaps them. All
// times are in one unit, which may be any.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include <specagg/random.hpp>
#include <specagg/plan/side.hpp>

SPECAGG_BEGIN
namespace plan {

// The joint acceptance with acceptance rates l and r and a correlation in [-1, 1]. If the
// correlation is not possible with these rates, the nearest possible one is used.
inline agreement agreement_of(double l, double r, double correlation = 0) {
  const double wish = l * r + correlation * std::sqrt(std::max(0.0, l * (1 - l) * r * (1 - r)));
  const double both = std::min({std::max({wish, l + r - 1, 0.0}), l, r});
  return {both, l - both, r - both};
}

// c: time to decode a drafted token; t: time of a message from that side. All >= 0.
struct dragon {
  double c_l = 0, c_r = 0, t_l = 0, t_r = 0;
  agreement accept = {};
  constexpr double rtt() const { return t_l + t_r; }
};
// The setting with the sites l and r exchanged.
constexpr dragon exchanged(const dragon& d) {
  return {d.c_r, d.c_l, d.t_r, d.t_l, {d.accept.both, d.accept.only_r, d.accept.only_l}};
}

// Table 1: the waiting time for the next pair of drafted tokens. phi_l and phi_r: what remains of
// c_l and of c_r + t_r, if they are accepted.
constexpr double wait(const dragon& d, bool accept_l, bool accept_r, double phi_l, double phi_r) {
  return std::max(accept_l ? phi_l : d.c_l, accept_r ? phi_r : d.rtt() + d.c_r);
}

// Eq 7, time per token if l aggregates: Z^l = a^r max(c_l, c_r) + (1 - a^r) max(c_l, c_r + rtt).
// The paper prints the transmission time twice; this is corrected here. Z^r =
// latency_eq7(exchanged(d)). Exact if c_l <= c_r or c_l >= c_r + rtt; otherwise an upper bound.
constexpr double latency_eq7(const dragon& d) {
  const double a = d.accept.r();
  return a * std::max(d.c_l, d.c_r) + (1 - a) * std::max(d.c_l, d.c_r + d.rtt());
}
// Eq 8: Z^l - Z^r in its four cases. If it is positive, r should aggregate.
constexpr double latency_difference_eq8(const dragon& d) {
  const double rtt = d.rtt(), j = d.c_r - d.c_l, a_l = d.accept.l(), a_r = d.accept.r();
  if (j >= rtt) return (1 - a_r) * rtt;
  if (j >= 0) return (1 - a_l) * j + (a_l - a_r) * rtt;
  if (j >= -rtt) return (1 - a_r) * j + (a_l - a_r) * rtt;
  return (a_l - 1) * rtt;
}
// Eq 9: speed-up over synchronous aggregation on l (every drafted token waits for the token before
// it). Exact where Eq 7 is exact, otherwise a lower bound. Infinite where a token takes no time at
// all.
constexpr double speedup_eq9(const dragon& d) {
  const double a = d.accept.r(), synchronous = d.c_r + d.rtt();
  if (d.c_l > synchronous || synchronous == 0) return 1;
  return synchronous / ((1 - a) * synchronous + a * std::max(d.c_l, d.c_r));
}

// Baselines of section 7.2, time per token. Token-wise (DRDG/TW): every draft waits for the token
// before it. Sequence-wise (DRDG/SW): both sites write `tokens` tokens apart, then r sends all its
// rows at once; `row` is the time to send one row. The device alone takes c_l.
constexpr double token_wise_latency(const dragon& d) { return std::max(d.c_l, d.c_r + d.rtt()); }
constexpr double sequence_wise_latency(const dragon& d, double tokens, double row) {
  return std::max(d.c_l, d.c_r + row + d.t_r / tokens);
}
// The time to the first token, after the same retrieval on each side: l waits for the first draft
// of r. By text (DRCG/Text): l asks for r's documents and reads them, which takes `read`. By cache
// (DRCG/KV): r sends what its model has computed of them, which takes `sent`.
constexpr double first_token_latency(const dragon& d) { return std::max(d.c_l, d.c_r + d.t_r); }
constexpr double first_token_by_text(const dragon& d, double read) {
  return d.rtt() + read + d.c_l;
}
constexpr double first_token_by_cache(const dragon& d, double sent) {
  return d.rtt() + sent + d.c_l;
}

namespace detail {

// The walk from j - rtt, as described at latency().
struct renewal_walk {
  // Expected steps, Pr[it reaches x >= 0], E[x there].
  double steps = 0, entered = 0, above = 0;

  renewal_walk(double j, double rtt, const agreement& accept) {
    constexpr std::size_t most = 1 << 11, width = most;
    std::array<double, width> row;  // row[k - first], k in [first, first + used)
    std::size_t first = 0, used = 1;
    row[0] = 1;
    // probability of the walks that continue, and the sum of their x
    double alive = 1, mean = 0;
    for (std::size_t n = 0; n < most && alive > 1e-12; ++n) {
      steps += alive;
      const double ended = alive * accept.only_r;
      entered += ended;
      above += ended * j;
      double carried = 0;  // from k - 1
      alive = 0;
      mean = 0;
      for (std::size_t i = 0; i < used; ++i) {
        const double k = double(first + i), next = double(n + 2) * j - (k + 1) * rtt, w = row[i];
        double stay = accept.both * w;
        if (next >= 0) {
          entered += stay;
          above += stay * next;
          stay = 0;
        }
        row[i] = stay + carried;
        carried = accept.only_l * w;
        alive += row[i];
        mean += row[i] * next;
      }
      if (carried > 0 && used < width) {
        mean += carried * (double(n + 2) * j - double(first + used + 1) * rtt);
        alive += carried;
        row[used++] = carried;
      }
      while (used > 1 && row[used - 1] < 1e-18) --used;
      std::size_t low = 0;
      while (low + 1 < used && row[low] < 1e-18) ++low;
      if (low > 0) {
        std::copy(row.data() + low, row.data() + used, row.data());
        first += low;
        used -= low;
      }
    }
    if (alive > 1e-12) {
      const double pace = (accept.both * j + accept.only_l * (j - rtt)) / accept.l(),
                   rejected = 1 - accept.l();
      const double reach = pace > 0 ? -mean / alive / pace : HUGE_VAL;  // steps to x = 0
      const double crossing = rejected > 0 ? std::exp(-rejected * reach) : 1;
      const double more = alive * (rejected > 0 ? (1 - crossing) / rejected : reach);
      steps += more;
      above += more * accept.only_r * j;
      entered += more * accept.only_r + alive * crossing;
    }
  }
};

}  // namespace detail

// The exact time per token of the recursion below, if l always aggregates and look-ahead is
// unbounded.
//
// Let j = c_l - c_r. At an aggregation, let x be the time by which r's draft arrived before l's was
// ready. For j <= 0 and j >= rtt the time per token is Eq 7's. Otherwise x changes as follows:
//   x >= 0 (r waits)   r accepted: x + j, a token takes c_l. r rejected: back to j - rtt, takes c_r
//                      + rtt.
//   x < 0  (l waits)   both accepted: x + j. Only l: x + j - rtt. Only r: j. Neither: back to
//                      j - rtt. Takes c_r, + rtt if r was rejected, + the new x if that is above 0.
// The visits of x to j - rtt are a renewal process. Each step then moves x by j or j - rtt, until
// it reaches 0 or l is rejected. The distribution of x after n steps is an array with one
// number for each count k of rejections of r. The steps are computed until the remaining
// probability is 1e-12, at most 2^11 of them (the rest is continued at the mean pace). Numbers
// below 1e-18 are dropped. Relative error: 2e-9 for acceptance rates of l up to 0.995, 1e-4 up to
// 0.999, 2e-3 above. Run time: 2 us at 0.5, 20 us at 0.9, at most 2 ms.
inline double latency(const dragon& d) {
  const double rtt = d.rtt(), j = d.c_l - d.c_r, a_l = d.accept.l(), a_r = d.accept.r();
  const double waiting = d.c_r + (1 - a_r) * rtt;  // per token while l waits for r
  if (!(j > 0 && j < rtt)) return latency_eq7(d);
  if (!(a_r < 1)) return d.c_l;
  if (!(a_l < 1) && waiting >= d.c_l) return waiting;  // the walk moves away from 0: l always waits
  const detail::renewal_walk walk(j, rtt, d.accept);
  const double time =
      walk.steps * waiting + walk.above + walk.entered * (a_r / (1 - a_r) * d.c_l + d.c_r + rtt);
  return time / (walk.steps + walk.entered / (1 - a_r));
}

// When each draft is ready: the recursion, token by token. The aggregating side may change at each
// token. Times are absolute.
//   agg = max(ready here, ready there + its t, when this side learned the outcome before)
//   accepted: the side begins its next draft when this one was ready
//   rejected: the side begins its next draft when it learns the outcome (here: at
//     agg, there: at agg + t)
// With look-ahead K >= 1 the draft of step t begins no earlier than the side learned the outcome of
// step t - K. K = 0, or more than 64: unbounded.
struct timeline {
  static constexpr std::size_t most_look_ahead = 64;
  std::array<double, 2> ready = {};  // when the side's draft for this step is decoded, by side
  std::array<double, 2> known = {};  // when the side learned the outcome of the previous step
  double aggregated = 0;
  std::size_t step = 0, look_ahead = 0;
  std::array<std::array<double, 2>, most_look_ahead> learned = {};

  timeline() = default;
  constexpr timeline(const dragon& d, std::size_t K)
      : ready{d.c_l, d.c_r}, look_ahead(K <= most_look_ahead ? K : 0) {}

  // Aggregates this step at a side. Returns the time when it is done.
  constexpr double aggregate(const dragon& d, side at, bool accept_l, bool accept_r) {
    const std::array<double, 2> c{d.c_l, d.c_r}, t{d.t_l, d.t_r};
    const std::array<bool, 2> accept{accept_l, accept_r};
    const std::size_t a = std::size_t(at), b = 1 - a;
    aggregated = std::max({ready[a], ready[b] + t[b], known[a]});
    known[a] = aggregated;
    known[b] = aggregated + t[a];
    learned[step % most_look_ahead] = known;
    ++step;
    for (std::size_t s = 0; s < 2; ++s) {
      double begin = accept[s] ? ready[s] : known[s];
      if (look_ahead > 0 && step >= look_ahead)
        begin = std::max(begin, learned[(step - look_ahead) % most_look_ahead][s]);
      ready[s] = begin + c[s];
    }
    return aggregated;
  }
};

// Whether l and r are accepted at a step: a draw from their joint distribution. It is the same for
// all schedules compared under one seed.
constexpr std::array<bool, 2> accepted_at(const agreement& a, const random_streams& noise,
                                          std::size_t step) {
  const double u =
      noise.uniform({stream::side, std::uint32_t(step), std::uint32_t(std::uint64_t{step} >> 32)});
  return {u < a.both + a.only_l,
          u < a.both || (u >= a.both + a.only_l && u < a.both + a.only_l + a.only_r)};
}
// Time per token of `tokens` steps, if one side aggregates all of them.
constexpr double simulated_latency(const dragon& d, side at, std::size_t tokens, std::uint64_t seed,
                                   std::size_t look_ahead = 0) {
  timeline line(d, look_ahead);
  const random_streams noise(seed);
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto [l, r] = accepted_at(d.accept, noise, t);
    line.aggregate(d, at, l, r);
  }
  return line.aggregated / double(std::max<std::size_t>(tokens, 1));
}

// Which side should always aggregate. Three methods: Eq 8; the exact time per token; or, with
// bounded look-ahead, simulation of both sides under the same draws. In the second, the side does
// not change if the times differ by no more than `margin` (relative), so that noise in the
// measurements does not move it back and forth.
constexpr side side_by_eq8(const dragon& d) {
  return latency_difference_eq8(d) > 0 ? side::r : side::l;
}
inline side side_by_recursion(const dragon& d, side now = side::l, double margin = 1e-9) {
  const double l = latency(d), r = latency(exchanged(d));
  if (std::fabs(l - r) <= margin * std::max(l, r)) return now;
  return l < r ? side::l : side::r;
}
constexpr side side_by_simulation(const dragon& d, std::size_t look_ahead,
                                  std::size_t tokens = 2000, std::uint64_t seed = 1) {
  const double l = simulated_latency(d, side::l, tokens, seed, look_ahead);
  return l <= simulated_latency(d, side::r, tokens, seed, look_ahead) ? side::l : side::r;
}

// Which side should aggregate the next token, from the present timeline. It compares both sides
// over `horizon` tokens; all but the first are aggregated at `otherwise`. It returns the side with
// the earlier end, on average over `paths` draws. With otherwise = side_by_recursion(d) this is
// faster than that side alone, because it aggregates where the drafts already are: 7 % fewer
// seconds over random settings, up to a third. A decision takes some 20 us. The draws are a
// function of (seed, now.step).
constexpr side next_side(const dragon& d, const timeline& now, side otherwise,
                         std::uint64_t seed = 1, std::size_t horizon = 16, std::size_t paths = 24) {
  const random_streams noise(seed, now.step);
  double later = 0;  // the time by which l is later, summed over the paths
  for (std::size_t path = 0; path < paths; ++path) {
    timeline l = now, r = now;
    for (std::size_t t = 0; t < horizon; ++t) {
      const auto [accept_l, accept_r] = accepted_at(d.accept, noise, path * horizon + t);
      l.aggregate(d, t == 0 ? side::l : otherwise, accept_l, accept_r);
      r.aggregate(d, t == 0 ? side::r : otherwise, accept_l, accept_r);
    }
    later += l.aggregated - r.aggregated;
  }
  return later == 0 ? otherwise : later < 0 ? side::l : side::r;
}
// Time per token of `tokens` steps, if next_side selects the aggregating side of each.
inline double scheduled_latency(const dragon& d, std::size_t tokens, std::uint64_t seed,
                                std::size_t look_ahead = 0) {
  timeline line(d, look_ahead);
  const random_streams noise(seed);
  const side otherwise = look_ahead == 0 ? side_by_recursion(d) : side_by_simulation(d, look_ahead);
  for (std::size_t t = 0; t < tokens; ++t) {
    const side at = next_side(d, line, otherwise, seed + 1);
    const auto [l, r] = accepted_at(d.accept, noise, t);
    line.aggregate(d, at, l, r);
  }
  return line.aggregated / double(std::max<std::size_t>(tokens, 1));
}

}  // namespace plan
SPECAGG_END
