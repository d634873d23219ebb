// SPDX-License-Identifier: Apache-2.0
#include "../tools/cli/draft_watch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include <specagg/plan/draft_length.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {
// Rounds with drafts: `share` of them take `seconds`, are believed to take `price` if that is not
// 0, and draft `drafted` tokens, each accepted with probability a; the others draft nothing in the
// end and take 1.02 seconds, where a round without drafts takes 1. Times vary by `noise`. The
// machine is `drift` times as slow in every other 30 rounds, the first round with drafts `first`
// times. Every 50th round is hit by a delay.
struct watched_rounds {
  double a, seconds;
  std::size_t drafted;
  double share = 1, drift = 1, first = 1, price = 0, noise = 0.05;
};
struct played {
  // Tokens per second without delays, noise and drift; the least of a text; the share of rounds
  // with drafts.
  double rate, least, with_drafts;
};
played play_watched(const watched_rounds& of, std::size_t rounds) {  // mean of 24 texts
  constexpr int texts = 24;
  played mean{0, 1e9, 0};
  for (std::uint64_t text = 0; text < texts; ++text) {
    numbers n(31 + text);
    cli::draft_watch watch;
    double tokens = 0, seconds = 0, with_drafts = 0;
    for (std::size_t i = 1; i <= rounds; ++i) {
      const bool tries = watch.drafts(), drafts = tries && n.uniform() < of.share;
      std::size_t emitted = 1;
      while (drafts && emitted <= of.drafted && n.uniform() < of.a) ++emitted;
      const double own = drafts ? of.seconds : tries ? 1.02 : 1;
      const double slow = (i / 30 % 2 ? of.drift : 1) * (tries && with_drafts == 0 ? of.first : 1);
      const double believed = drafts && of.price > 0 ? of.price : own;
      watch.observe(tries, believed, emitted,
                    own * slow * n.between(1 - of.noise, 1 + of.noise) + (i % 50 == 7 ? 20 : 0));
      tokens += double(emitted);
      seconds += own;
      with_drafts += tries;
    }
    mean.least = std::min(mean.least, tokens / seconds);
    mean.rate += tokens / seconds / texts;
    mean.with_drafts += with_drafts / double(rounds) / texts;
  }
  return mean;
}
}  // namespace
TEST_CASE(
    "watched, drafting that is slower than none costs at most 2 % of a long text, 4 % of a short "
    "one, and what pays "
    "goes on") {
  for (const double a : {0.0, 0.2, 0.5})
    for (const double slow : {2.5, 4.0}) {
      CHECK(play_watched({a, slow, 4}, 1000).rate > 0.98);
      CHECK(play_watched({a, slow, 4}, 200).rate > 0.955);
    }
  // few rounds lose, and they lose much
  for (const auto& [tokens, slow] : {std::pair(2, 3.), std::pair(3, 4.)})
    for (const double share : {0.15, 0.3})
      CHECK(play_watched({1, slow, std::size_t(tokens - 1), share}, 1000).rate > 0.96);
  for (const double a : {0.6, 0.8, 0.95}) {
    const played r = play_watched({a, 1.3, 4}, 1000);
    CHECK(r.rate > 0.95 * plan::expected_tokens(a, 4) / 1.3);
    CHECK(r.with_drafts > 0.95);
  }
  CHECK(play_watched({.a = 0.7, .seconds = 1.6, .drafted = 4, .first = 15}, 300).with_drafts > 0.7);
  CHECK(play_watched({0, 2, 4}, 10000).with_drafts < 1 / 40.);  // in the end it hardly tries
  CHECK(play_watched({0, 2, 4}, 10000).with_drafts > 0.002);
}
TEST_CASE(
    "on a machine whose speed changes, the watch judges rounds with drafts by plain ones at about "
    "the same time") {
  for (const double drift : {1.5, 2.0, 3.0}) {
    // 1.12 is had
    CHECK(play_watched({.a = 0.4, .seconds = 1.25, .drafted = 1, .drift = drift}, 1000).rate >
          1.03);
    CHECK(play_watched({.a = 0.05, .seconds = 1.25, .drafted = 1, .drift = drift}, 1000).rate >
          0.95);
  }
  for (const double drift : {1.0, 2.0, 3.0})
    for (const double noise : {0.05, 0.5, 0.9}) {
      INFO("drift " << drift << ", noise " << noise);
      CHECK(play_watched({.a = 0.4, .seconds = 1.25, .drafted = 1, .drift = drift, .noise = noise},
                         120)
                .rate > 1.06);
      CHECK(play_watched({.a = 0.4, .seconds = 1.25, .drafted = 1, .drift = drift, .noise = noise},
                         1000)
                .rate > 1.08);
    }
  const played r = play_watched({.a = 0.4, .seconds = 1.25, .drafted = 1, .drift = 1.5}, 1000);
  CHECK(r.rate > 1.1);
  CHECK(r.with_drafts > 0.8);
}
TEST_CASE(
    "prices that are too low are found out by the times: soon on a quiet machine, later on one "
    "that is not") {
  const auto with = [](double drift, double noise, double seconds, double price) {
    return play_watched({.a = 0.4,
                         .seconds = seconds,
                         .drafted = 1,
                         .drift = drift,
                         .price = price,
                         .noise = noise},
                        1000);
  };
  CHECK(with(1, 0.05, 1.8, 1.25).rate > 0.92);
  CHECK(with(1, 0.05, 4, 1.01).rate > 0.96);
  for (const double drift : {2.0, 3.0})
    for (const double noise : {0.05, 0.5}) {
      INFO("drift " << drift << ", noise " << noise);
      CHECK(with(drift, noise, 1.8, 1.25).rate > 0.9);  // without a watch 1.4 / 1.8 = 0.78
      CHECK(with(drift, noise, 4, 1.01).rate > 0.95);
    }
  // A short text whose drafts are not accepted: found out by the prices, without an error.
  CHECK(play_watched({.a = 0.05, .seconds = 1.25, .drafted = 1, .drift = 3, .noise = 0.9}, 120)
            .least > 0.95);
}
TEST_CASE("the watch counts no time of 0, and asks for two plain rounds first") {
  cli::draft_watch watch;
  for (int i = 0; i < 5; ++i) watch.observe(false, 1, 1, 0);
  CHECK(!watch.drafts());
  watch.observe(false, 1, 1, 1e-3);
  CHECK(!watch.drafts());
  watch.observe(false, 1, 1, 1e-3);
  CHECK(watch.drafts());
  for (int i = 0; i < 31; ++i) {
    watch.observe(true, 1.2, 2, 1.2e-3);
    watch.observe(true, 1.2, 2, 0);
  }
  CHECK(watch.drafts());
  watch.observe(true, 1.2, 2, 1.2e-3);
  CHECK(!watch.drafts());  // 32 rounds
}
TEST_CASE("what was won long ago does not pay for drafts that lose now") {
  // Told by the prices and the times; by the times alone; by the prices alone.
  for (const auto& [price, time] :
       {std::pair(2.0, 2e-3), std::pair(1.01, 2e-3), std::pair(2.0, 1e-3)}) {
    cli::draft_watch watch;
    std::size_t late = 0;
    numbers n(1);
    for (int i = 0; i < 700; ++i) {
      const bool drafts = watch.drafts();
      watch.observe(drafts, drafts ? price : 1, drafts && i < 500 ? 4 : 1,
                    (drafts ? time : 1e-3) * n.between(.7, 1.3));
      late += drafts && i >= 500;
    }
    CAPTURE(price, time);
    CHECK((late > 8 && late < 60));
  }
}
TEST_CASE(
    "it drafts longer after a sure row than after an unsure one, and never more than it has room "
    "for") {
  plan::draft_length_controller c({1, 0.05, 0.01, 0});
  const auto length = [&](double x) {
    c.begin();
    std::size_t g = 0;
    while (c.another(0) && c.keep(0, x)) ++g;
    return g;
  };
  CHECK(length(0.95) > length(0.2));
  plan::draft_length_controller free({1, 0, 0, 0});
  free.begin();
  std::size_t g = 0;
  while (free.another(0) && free.keep(0, 1)) ++g;
  CHECK(g == plan::draft_length_controller::most);
  CHECK(!free.keep(0, 1));
}
