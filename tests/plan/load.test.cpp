// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/load.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using plan::call_times;
using plan::draft_load;

namespace {

// A text that may draft `room` tokens more. Its row is known: the token is emitted with probability
// `reached`, and those after it are accepted with probability `later`.
struct drafting {
  bool goes_on = true;
  std::size_t room = 1;
  plan::draft_forecast length = {};
  drafting(double reached, std::size_t left, double later) : room(left) {
    length.reached = reached;
    length.kept = 1;
    length.mean[0].fill(later);
  }
  bool drafts() const { return goes_on; }
  void stop() { goes_on = false; }
  std::size_t left() const { return room; }
  const plan::draft_forecast& forecast() const { return length; }
};
std::vector<bool> taken(draft_load load, std::vector<drafting> texts) {
  load.begin(texts.size());
  load.take(std::span(texts));
  std::vector<bool> all;
  for (const drafting& t : texts) all.push_back(t.drafts());
  return all;
}
call_times line(double base, double slope) { return {{{1, base}, {2, base + slope}}}; }

// By trying all: which texts draft one token at least in the best of all ways to draft.
std::vector<bool> best_of_all(const draft_load& load, const std::vector<drafting>& texts) {
  const std::size_t k = texts.size();
  const double rho = double(k) / load.target(k);
  std::vector<std::size_t> now(k), best(k);
  double most = 0;
  const auto worth = [&] {
    double gain = 0;
    std::size_t n = 0;
    for (std::size_t i = 0; i < k; ++i) {
      n += now[i];
      double g = texts[i].length.reached;
      for (std::size_t j = 0; j < now[i]; ++j, g *= texts[i].length.mean[0][0]) gain += g;
    }
    return n > load.most ? -1 : gain - rho * (load.target(k + n) - load.target(k));
  };
  for (;;) {
    if (const double w = worth(); w > most) {
      most = w;
      best = now;
    }
    std::size_t i = 0;
    while (i < k && ++now[i] > texts[i].room) now[i++] = 0;
    if (i == k) break;
  }
  std::vector<bool> all;
  for (const std::size_t n : best) all.push_back(n > 0);
  return all;
}

}  // namespace

TEST_CASE("the time of a call lies on the lines between measured points") {
  const call_times t{{{2, 1}, {4, 2}, {8, 2.5}}};
  CHECK((t(0) == 0 && t(1) == 1 && t(2) == 1 && t(3) == 1.5 && t(4) == 2 && t(6) == 2.25));
  CHECK((t(8) == 2.5 && t(16) == 3.5));
  CHECK(call_times{{{3, 7}}}(100) == 7);
  CHECK(call_times{}(5) == 0);
}
TEST_CASE("a round drafts what gains most beyond its cost, of all ways to share it out") {
  numbers n(1);
  std::size_t some = 0, none = 0;
  for (int i = 0; i < 300; ++i) {
    // times of 1, 2, ... rows, which may jump
    call_times t;
    double at = 1;
    for (std::size_t rows = 1; rows <= 16; ++rows) {
      t.points.push_back({rows, at});
      at += 0.5 * n.uniform() * n.uniform() + (n.below(6) == 0 ? 0.5 : 0);
    }
    std::vector<drafting> texts;
    for (std::size_t k = 1 + n.below(4); k > 0; --k)
      texts.emplace_back(n.uniform(), 1 + n.below(3), n.uniform());
    const draft_load load(t, {}, n.below(3) == 0 ? n.below(4) : draft_load::no_limit);
    const auto best = best_of_all(load, texts);
    CHECK(taken(load, texts) == best);
    some += std::ranges::count(best, true) > 0;
    none += std::ranges::count(best, false) > 0;
  }
  CHECK((some > 100 && none > 100));
}
TEST_CASE("nothing is drafted where it costs more than it gains, all where it costs nothing") {
  const std::vector<drafting> texts(8, {0.9, 4, 0.9});
  using all = std::vector<bool>;
  // 8 texts: rho is 8 tokens a second, and a row costs 0.12 or 0.11 of one
  CHECK(taken(draft_load(line(1 - 7 * 0.12, 0.12)), texts) == all(8, false));
  CHECK(taken(draft_load(line(1 - 7 * 0.11, 0.11)), texts) == all(8, true));
  CHECK(taken(draft_load(line(1, 0)), texts) == all(8, true));
  CHECK(taken(draft_load(call_times{}), texts) == all(8, true));  // no times
  CHECK(taken(draft_load(call_times{}, {}, 0), texts) == all(8, false));
  // a text that is there alone drafts, and not where it is one of eight
  CHECK(taken(draft_load(line(1, 0.6)), {{0.9, 4, 0.9}}) == all(1, true));
  CHECK(taken(draft_load(line(1, 0.6)), texts) == all(8, false));
}
TEST_CASE("the budget goes to the most promising tokens, also to later ones of one text") {
  using all = std::vector<bool>;
  const draft_load two(line(1, 0), {}, 2);
  CHECK(taken(two, {{0.5, 1, 0}, {0.8, 1, 0}, {0.7, 1, 0}}) == all{false, true, true});
  CHECK(taken(two, {{0.5, 1, 0}, {0.8, 9, 0.9}, {0.7, 1, 0}}) == all{false, true, false});
  CHECK(taken(two, {{0.5, 1, 0}, {0.5, 1, 0}, {0.5, 1, 0}}) == all{true, true, false});
  // what was drafted is spent
  draft_load three(line(1, 0), {}, 3);
  std::vector<drafting> texts(2, {0.5, 9, 0.9});
  three.begin(2);
  three.take(std::span(texts));
  CHECK((texts[0].drafts() && texts[1].drafts()));
  three.take(std::span(texts));
  CHECK((texts[0].drafts() && !texts[1].drafts()));
  three.take(std::span(texts));
  CHECK(!texts[0].drafts());
}
TEST_CASE("rows of a draft model are asked for where their tokens pay for them") {
  const auto asked = [](draft_load load, std::vector<drafting> texts) {
    load.begin(texts.size());
    for (drafting& t : texts) t.length.kept = 0;
    load.ask(std::span(texts));
    return std::ranges::count(texts, true, &drafting::drafts);
  };
  // the mean of the first guesses is 0.65
  const std::vector<drafting> texts(4, {1, 4, 0.65});
  CHECK(asked(draft_load(line(1, 0)), texts) == 4);
  CHECK(asked(draft_load(line(1, 0), line(0.1, 0.1)), texts) == 4);
  CHECK(asked(draft_load(line(1, 0), line(0.2, 0.2)), texts) == 0);
  // a call costs more than one row gains, and less than four
  CHECK(asked(draft_load(line(1, 0), line(0.3, 0)), {texts[0]}) == 1);
  CHECK(asked(draft_load(line(1, 0), line(0.7, 0)), {texts[0]}) == 0);
  CHECK(asked(draft_load(line(1, 0), line(0.6, 0)), texts) == 4);
  CHECK(asked(draft_load(line(1, 0), line(0.7, 0)), texts) == 0);
  // scoring counts, and where nothing may be drafted no row is needed
  CHECK(asked(draft_load(line(1, 5), line(0.01, 0.01)), texts) == 0);
  CHECK(asked(draft_load(line(1, 0), line(0.01, 0), 3), texts) == 3);
  // the call of a later level is in the price of its tokens
  draft_load load({{{1, 1}, {2, 1.7}, {3, 1.7}}}, line(0.35, 0));
  CHECK(taken(load, {{0.5, 2, 1}}) == std::vector<bool>{false});
  load.draft = line(0.2, 0);
  CHECK(taken(load, {{0.5, 2, 1}}) == std::vector<bool>{true});
}
TEST_CASE("what drafts brought raises the price, and what they lost does not lower it") {
  const std::vector<drafting> texts(2, {0.5, 1, 0});
  draft_load load(line(0.8, 0.2));  // two texts: rho is 2, a row costs 0.4
  CHECK(taken(load, texts) == std::vector<bool>(2, true));
  draft_load better = load, worse = load;
  for (int i = 0; i < 3; ++i) {
    better.begin(2);
    better.observe(3);  // 1.5 times as many tokens as without drafts
    worse.begin(2);
    worse.observe(1);
  }
  CHECK(taken(better, texts) == std::vector<bool>(2, false));
  CHECK(taken(worse, texts) == std::vector<bool>(2, true));
  CHECK(taken(worse, std::vector<drafting>(2, {0.39, 1, 0})) == std::vector<bool>(2, false));
}
TEST_CASE("a text that was not measured for long drafts a token, and more seldom where it costs") {
  const auto first = [](double slope, std::size_t texts) {
    std::vector<drafting> all(texts, {0.01, 4, 0.9});
    for (std::size_t rounds = 0; rounds < 100000; ++rounds) {
      for (drafting& t : all) t.length.unmeasured[0] = rounds;
      if (taken(draft_load(line(1, slope)), all)[0]) return rounds;
    }
    return std::size_t(0);
  };
  CHECK(first(0.1, 1) == 32);
  CHECK(first(0.5, 1) == 50);
  CHECK(first(0.5, 4) == std::size_t(std::ceil(100 * 4 * 0.5 / 2.5)));
}
