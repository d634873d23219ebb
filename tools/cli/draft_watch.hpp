// SPDX-License-Identifier: Apache-2.0
// Whether drafts pay on this machine, by the times of rounds with and without them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

#include <specagg/kernel/math.hpp>

namespace cli {

using specagg::fma;

// Stops drafting where it turns out slower than no drafts at all.
//   if (watch.drafts()) draft as the controller says, else nothing; verify;
//   watch.observe(tried, price, emitted, seconds);
// tried: a row was asked for to draft from it, also if no token was drafted. price: what the round
// is believed to cost, in rounds without drafts, each of which emits one token. So a round with
// drafts loses its price minus its tokens. The watch stops while more plain rounds are lost than
// may be: by the prices; or by the times, and this by more than their error allows. What was won
// counts against later losses, up to most_won. docs/drafters.md says why these numbers.
//
// The speed of a shared machine changes. So the time of rounds with drafts is counted in the mean
// of the usual plain round before them and of the plain round after them. The first two rounds are
// plain, and one after at most `longest` with drafts; after `in_doubt` while more is lost by the
// times than may be, but not by more than their error allows. Of rounds with drafts whose prices
// sum to n, the square of that error is n + n^2 / 2 times that of one plain round: each errs by
// itself, and the two plain rounds that all are compared with do. The error of one is what the
// plain rounds show of how far one is off the next. A time counts as at most most_of_usual times
// the usual one, for another program may have had the processor; that of the first round with
// drafts as at most so many plain rounds, for a drafter may read the whole text in it. A time of 0
// is not counted.
struct draft_watch {
  // Plain rounds that may be lost, and for each token; that are kept of what was won.
  static constexpr double may_be_lost = 3, lost_per_token = 0.01, most_won = 8;
  static constexpr double errors = 2;                       // standard deviations
  static constexpr std::size_t longest = 32, in_doubt = 8;  // rounds with drafts before a plain one
  static constexpr double most_of_usual = 3;
  static constexpr double plain_fades = 4, drafting_fades = 16;  // by 1 in so many
  static constexpr double most_deviations = 16, believed_deviations = 4, believed_square = 0.01;

  double plain = 0, drafting = 0;  // seconds of a round without and with drafts, fading
  // Squares of how far a plain round was off the usual one before it, as part of it, and how many:
  // of the last most_deviations, and as if some had been 10 % off before them.
  double squares = believed_deviations * believed_square;
  double deviations = believed_deviations;
  double all = 0, won = 0;  // tokens; plain rounds won by the prices
  // by the times until the last plain round; of that loss, where a round's is 1
  double lost = 0, variance = 0;
  double seconds = 0, prices = 0, tokens = 0, rounds = 0;  // of the rounds with drafts since then
  std::size_t plain_rounds = 0;

  // Plain rounds lost by the times, if one takes `usual` seconds; and the variance of that.
  double lost_by(double usual) const {
    return std::max(lost + seconds / usual - tokens, -most_won);
  }
  double variance_now() const { return fma(prices, prices / 2, variance + prices); }
  bool drafts() const {
    if (plain_rounds < 2) return false;
    const double most = fma(lost_per_token, all, may_be_lost), by_times = lost_by(plain);
    const double error = std::sqrt(squares / deviations * variance_now());
    return -won <= most && by_times <= fma(errors, error, most) &&
           rounds < double(by_times > most ? in_doubt : longest);
  }
  // After a round; time in seconds. The rest as said above.
  void observe(bool tried, double price, std::size_t emitted, double time) {
    if (!(time > 0)) return;
    const double usual = tried && drafting > 0 ? drafting : plain;
    if (usual > 0) time = std::min(time, most_of_usual * usual);
    all += double(emitted);
    if (tried) {
      drafting = drafting > 0 ? drafting + (time - drafting) / drafting_fades : time;
      seconds += time;
      prices += price;
      tokens += double(emitted);
      rounds += 1;
      won = std::min(won + double(emitted) - price, most_won);
      return;
    }
    if (rounds > 0) {
      lost = lost_by((plain + time) / 2);
      variance = lost > -most_won ? variance_now() : 0;
      seconds = prices = tokens = rounds = 0;
    }
    if (plain_rounds >= 2) {
      const double off = std::min(time / plain - 1, 1.0);
      const double fade = deviations < most_deviations ? 1 : 1 - 1 / most_deviations;
      squares = fma(off, off, squares * fade);
      deviations = fma(deviations, fade, 1.0);
    }
    // The first round of a process is often a slow one.
    plain = plain_rounds == 0 || (plain_rounds == 1 && time < plain)
                ? time
                : plain + (time - plain) / plain_fades;
    ++plain_rounds;
  }
};

}  // namespace cli
