// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/draft_length.hpp>

#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// A text for the controller: the row at each position has a confidence, somewhat like its
// neighbour's, and a draft from it is accepted with probability 0.15 + 0.8 confidence. Same text
// and coins for every strategy.
struct text_world {
  std::vector<double> confidence, coin;
  explicit text_world(std::uint64_t seed, std::size_t size) : confidence(size), coin(size) {
    numbers n(seed);
    double level = 0.5;
    for (std::size_t i = 0; i < size; ++i) {
      level = 0.5 * level + 0.5 * n.uniform();
      confidence[i] = n.uniform() < 0.3 ? 0.97 : level * level;
      coin[i] = n.uniform();
    }
  }
  static double acceptance(double x) { return 0.15 + 0.8 * x; }
};
struct outcome {
  double tokens = 0, cost = 0, drafted = 0, rounds = 0;
  double rate() const { return tokens / cost; }
};
// Drafts through the text: call(g) and keep(x) are the strategy.
template <class Begin, class Call, class Keep, class After>
outcome play(const plan::draft_costs& cost, const text_world& w, Begin begin, Call call, Keep keep,
             After after) {
  outcome all;
  for (std::size_t at = 0; at + 70 < w.coin.size();) {
    begin();
    std::vector<draft_acceptance> acceptances;
    std::size_t steps = 0, kept = 0;
    while (call(acceptances.size())) {
      const double x = w.confidence[at + acceptances.size()];
      ++steps;
      if (!keep(x)) break;
      acceptances.push_back({text_world::acceptance(x), text_world::acceptance(x)});
    }
    while (kept < acceptances.size() && w.coin[at + kept] < acceptances[kept].of_row) ++kept;
    const double spent = cost.round(steps, acceptances.size());
    after(acceptances, kept + 1, steps);
    at += kept + 1;
    all.tokens += double(kept + 1);
    all.cost += spent;
    all.drafted += double(acceptances.size());
    all.rounds += 1;
  }
  return all;
}
outcome play_fixed(const plan::draft_costs& cost, const text_world& w, std::size_t gamma) {
  return play(
      cost, w, [] {}, [=](std::size_t g) { return g < gamma; }, [](double) { return true; },
      [](const auto&, std::size_t, std::size_t) {});
}
outcome play_auto(const plan::draft_costs& cost, const text_world& w,
                  plan::draft_length_controller& c) {
  return play(
      cost, w, [&] { c.begin(); }, [&](std::size_t) { return c.another(0); },
      [&](double x) { return c.keep(0, x); },
      [&](const auto& o, std::size_t tokens, std::size_t steps) {
        c.observe(o, tokens, std::span(&steps, 1));
      });
}

}  // namespace

TEST_CASE("the best fixed gamma is the argmax over every gamma") {
  numbers n(1);
  for (int i = 0; i < 200; ++i) {
    const double a = n.uniform(), c = n.uniform(), slope = 0.2 * n.uniform();
    const auto v = [=](std::size_t g) { return 1 + slope * double(g) + (g > 4 ? 0.3 : 0); };
    const auto best = plan::best_fixed_gamma(a, c, v, 20);
    for (std::size_t g = 0; g <= 20; ++g)
      CHECK(plan::round_speedup(plan::expected_tokens(a, g), double(g), c, v(g)) <=
            best.rate * (1 + 1e-14));
    CHECK(plan::round_speedup(plan::expected_tokens(a, best.gamma), double(best.gamma), c,
                              v(best.gamma)) == Approx(best.rate).epsilon(1e-13));
    const auto list = plan::best_fixed_draft(std::vector<double>(20, a),
                                             [&](std::size_t g) { return c * double(g) + v(g); });
    CHECK((list.gamma == best.gamma && list.rate == best.rate));
  }
  CHECK(plan::best_fixed_gamma(0, 0.1, [](std::size_t) { return 1.0; }, 8).gamma == 0);
  CHECK(plan::best_fixed_gamma(1, 0.1, [](std::size_t) { return 1.0; }, 8).gamma == 8);
  CHECK(plan::best_fixed_gamma(0.8, 0.1, [](std::size_t) { return 1.0; }, 20).gamma == 6);
}
TEST_CASE(
    "the marginal-value rule with rho of the best policy is the best policy: policy iteration on "
    "known acceptances") {
  // Known a_k, in 4 classes at random: the best stopping rule is a threshold on the product; no
  // threshold beats rho's.
  const plan::draft_costs cost{1, 0.1, 0.05, 0};
  const auto rate = [&](double threshold) {
    numbers n(2);
    double tokens = 0, spent = 0;
    for (int round = 0; round < 40000; ++round) {
      double reached = 1;
      std::size_t g = 0;
      tokens += 1;
      while (g < 64) {  // a_k is known before the step
        const double a = 0.25 + 0.25 * double(n.below(4));
        if (!(reached * a >= threshold)) break;
        reached *= a;
        tokens += reached;
        ++g;
      }
      spent += cost.round(g, g);
    }
    return tokens / spent;
  };
  double rho = 1;
  for (int i = 0; i < 8; ++i) rho = rate(rho * cost.token());
  for (double threshold = 0.02; threshold < 1; threshold *= 1.1)
    CHECK(rate(threshold) <= rho * 1.001);
}
TEST_CASE("the predictor starts at 0.3 + 0.7 x and learns any shape, class by class") {
  plan::acceptance_predictor p;
  CHECK(p(0.5) == Approx(0.3 + 0.7 * 8.5 / 16));
  CHECK(p(1) == p(0.999));
  CHECK((p(-1) == p(0) && p(2) == p(1) && p(std::nan("")) == p(0)));
  const auto shape = [](double x) { return x < 0.3 ? 0.9 : x < 0.6 ? 0.1 : x; };
  numbers n(3);
  for (int i = 0; i < 20000; ++i) {
    const double x = n.uniform();
    p.observe(x, shape(x));
  }
  for (double x = 1.0 / 32; x < 1; x += 1.0 / 16)
    if (std::fabs(x - 0.3) > 0.05 && std::fabs(x - 0.6) > 0.05)
      CHECK(p(x) == Approx(shape(x)).margin(0.03));
}
TEST_CASE("classes that were not measured yet learn from those that were") {
  plan::acceptance_predictor p;
  for (int i = 0; i < 50; ++i) p.observe(0.5, 0.1);
  CHECK(p(0.5) < 0.15);
  CHECK(p(0.2) < 0.15);  // 0.45 before
  CHECK(p(0.9) > p(0.2));
  for (int i = 0; i < 4000; ++i) p.observe(0.2, 0.9);
  CHECK(p(0.2) > 0.85);
  // more than its first guess says, of all classes: at most 1
  for (int i = 0; i < 4000; ++i) p.observe(0.01, 1);
  CHECK(p(1) == 1);
}
TEST_CASE(
    "the predictor learns how later tokens of a draft differ from first ones, for all classes at "
    "once") {
  plan::acceptance_predictor p;
  for (const std::size_t depth : {0u, 1u, 2u, 9u}) CHECK(p(0.5, depth) == p(0.5));
  for (int i = 0; i < 3000; ++i) {
    p.observe(0.5, 0.8);
    p.observe(0.9, 0.9);
    p.observe(0.5, 0.4, 1);
    p.observe(0.9, 0.45, 1);
  }
  CHECK(p(0.5) == Approx(0.8).margin(0.02));
  CHECK(p(0.9) == Approx(0.9).margin(0.02));
  CHECK(p(0.5, 1) == Approx(0.4).margin(0.02));
  CHECK(p(0.9, 1) == Approx(0.45).margin(0.02));
  CHECK(p(0.2, 1) == Approx(p(0.2) / 2).margin(0.02));  // never measured
  CHECK(p.over_seen(1, [](double a) { return a; }) <
        0.6 * p.over_seen(0, [](double a) { return a; }));
  for (int i = 0; i < 3000; ++i) {
    p.observe(0.5, 0.8);
    p.observe(0.5, 1, 3);
  }
  CHECK(p(0.5, 3) > 0.95);
  CHECK(p(0.5, 40) == p(0.5, 3));
  CHECK((p(0.99, 3) == 1 && p(0.99) < 1));  // at most 1
  for (const std::size_t depth : {0u, 1u}) {
    const double before = p(0.5, depth);
    p.observe(0.5, std::nan(""), depth);
    CHECK(p(0.5, depth) == before);
  }
}
TEST_CASE("what is predicted of first tokens does not depend on how later ones fail") {
  for (const double later : {0.0, 0.01, 0.4, 1.0}) {
    plan::acceptance_predictor p;
    for (int i = 0; i < 2000; ++i) {
      p.observe(0.5, 0.8);
      for (std::size_t depth = 1; depth < 6; ++depth) p.observe(0.5, later, depth);
    }
    INFO(later);
    CHECK(p(0.5) == Approx(0.8).margin(0.03));
    CHECK(p(0.5, 1) == Approx(later).margin(0.03));
  }
}
namespace {

// The mean length of the last drafts of `rounds`, as a controller has it whose tokens are accepted
// as `overlaps` say: of first tokens, and of later ones.
double drafted(plan::draft_length_controller& c, int rounds,
               const std::array<double, 2>& overlaps) {
  numbers n(1);
  std::size_t tokens = 0;
  for (int round = 0; round < rounds; ++round) {
    c.begin();
    std::size_t asked = 0, accepted = 0;
    std::vector<draft_acceptance> all;
    while (c.another(0) && ++asked && c.keep(0, 0.5)) {
      const double a = overlaps[std::min<std::size_t>(all.size(), 1)];
      all.push_back({a, a});
    }
    while (accepted < all.size() && n.uniform() < all[accepted].of_row) ++accepted;
    if (round >= rounds / 2) tokens += all.size();
    c.observe(std::span(all).first(std::min(accepted + 1, all.size())), accepted + 1,
              std::span(&asked, 1));
  }
  return double(tokens) / double(rounds - rounds / 2);
}

}  // namespace

TEST_CASE(
    "a controller whose later tokens fail drafts short, one whose tokens all fail as often drafts "
    "on") {
  const plan::draft_costs costs{.draft = 0.1, .verify = 0.05};
  plan::draft_length_controller first(costs), all(costs);
  CHECK(drafted(first, 600, {0.8, 0.05}) < 1.2);
  CHECK(drafted(all, 600, {0.7, 0.7}) > 1.8);
}
TEST_CASE("a controller that found later tokens bad drafts them again when they are good") {
  for (const double bad : {0.0, 0.05})
    for (const double row : {0.1, 0.2}) {
      plan::draft_length_controller c(plan::draft_costs{.draft = row, .verify = 0.02}), always = c;
      (void)drafted(c, 600, {0.8, bad});
      INFO(bad << ", row " << row);
      CHECK(drafted(c, 4000, {0.8, 0.8}) > 0.95 * drafted(always, 4000, {0.8, 0.8}));
    }
}
TEST_CASE(
    "the controller makes at least 99 % of the tokens per cost of the best fixed gamma, wherever "
    "that lies, often "
    "more") {
  double most_gained = 0;
  const text_world w(11, 20000);
  for (const plan::draft_costs& cost : {plan::draft_costs{1, 0.02, 0.02, 0},
                                        {1, 0.1, 0, 0},
                                        {1, 0.1, 0.05, 0},
                                        {1, 0.2, 0.1, 0.05},
                                        {1, 0.2, 0.6, 0},
                                        {1, 0.5, 0, 0},
                                        {3, 0.01, 0, 0},
                                        {2e-3, 1e-4, 1e-5, 1e-5},
                                        {1, 0, 0, 0}}) {
    double best = 0;
    for (std::size_t g = 0; g <= 64; g += g < 16 ? 1 : 16)
      best = std::max(best, play_fixed(cost, w, g).rate());
    plan::draft_length_controller c(cost);
    const double rate = play_auto(cost, w, c).rate();
    INFO("draft " << cost.draft << " verify " << cost.verify << " target " << cost.target
                  << ": best fixed " << best << ", controller " << rate);
    CHECK(rate >= 0.99 * best);
    most_gained = std::max(most_gained, rate / best);
  }
  CHECK(most_gained > 1.03);
}
TEST_CASE(
    "where drafting never pays it still drafts a little, for a hundredth of the cost, and comes "
    "back when it pays") {
  const plan::draft_costs cost{1, 1, 1, 0};
  plan::draft_length_controller c(cost);
  const auto idle = play_auto(cost, text_world(5, 3300), c);
  CHECK(idle.drafted <= 40);
  CHECK(idle.drafted >= 10);
  CHECK(idle.rate() >= 0.985);
  c.cost = {1, 0.01, 0.01, 0};  // the costs it is told
  const auto busy = play_auto(c.cost, text_world(6, 6000), c);
  CHECK(busy.drafted / busy.rounds > 2);
}
TEST_CASE("where scoring costs jump it drafts past the jump if that pays, and else nothing") {
  plan::draft_costs cost{1, 0.02, 0.02, 0};
  const text_world w(12, 20000);
  for (const double jump : {0.2, 0.5, 1.0, 3.0}) {
    cost.jumps.fill(jump);  // the first drafted token costs more than those after it
    CHECK(cost.scoring(0) == 0);
    CHECK(cost.scoring(1) == Approx(0.02 + jump));
    CHECK(cost.scoring(20) == Approx(0.4 + jump));
    CHECK(cost.round(3, 2) == Approx(1.1 + jump));
    double best = 0;
    for (std::size_t g = 0; g <= 24; ++g) best = std::max(best, play_fixed(cost, w, g).rate());
    plan::draft_length_controller c(cost);
    const auto is = play_auto(cost, w, c);
    INFO("jump " << jump << ": best fixed " << best << ", controller " << is.rate() << ", "
                 << is.drafted);
    CHECK(is.rate() >= 0.98 * best);
    if (jump == 3.0) CHECK(is.drafted < 0.1 * is.rounds);
  }
}

TEST_CASE("where only many drafted tokens together pay for the first, it drafts many") {
  plan::draft_costs cost{1, 0.02, 0.02, 0};
  cost.jumps.fill(1.5);
  const auto play = [&](auto&& another, auto&& observe) {
    numbers n(13);
    double tokens = 0, spent = 0;
    for (int round = 0; round < 5000; ++round) {
      std::vector<draft_acceptance> acceptances;
      std::size_t emitted = 1, steps = 0;
      while (another(acceptances.size())) {
        acceptances.push_back({0.9, 0.9});
        ++steps;
      }
      while (emitted <= acceptances.size() && n.uniform() < 0.9) ++emitted;
      observe(acceptances, emitted, steps);
      tokens += double(emitted);
      spent += cost.round(steps, acceptances.size());
    }
    return tokens / spent;
  };
  const double best =
      play([](std::size_t g) { return g < 12; }, [](const auto&, std::size_t, std::size_t) {});
  plan::draft_length_controller c(cost);
  const double is = play(
      [&](std::size_t g) {
        if (g == 0) c.begin();
        return c.another(0) && c.keep(0, 0.9);
      },
      [&](const auto& o, std::size_t tokens, std::size_t steps) {
        c.observe(o, tokens, std::span(&steps, 1));
      });
  INFO("gamma 12 " << best << ", controller " << is);
  CHECK(best > 1.5);
  CHECK(is > 0.97 * best);
}

namespace {
// Two drafters: the first is free and has a proposal at some positions, good where its confidence
// is high; the second has one everywhere, at a cost. use: which of them are asked (bits).
double play_two(const plan::draft_costs& cost, int use, double good, double model) {
  numbers n(21);
  plan::draft_length_controller c(cost, 2);
  double tokens = 0, spent = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<draft_acceptance> acceptances;
    std::array<std::size_t, 2> asked{};
    double chance = 1;
    c.begin();
    for (bool kept = true; kept;) {
      kept = false;
      const bool has = n.uniform() < 0.4, sure = n.uniform() < 0.5;
      for (std::size_t k = 0; k < 2 && !kept; ++k) {
        if (!(use >> k & 1) || !c.another(k)) continue;
        ++asked[k];
        if (k == 0 && !has) continue;
        const double x = k == 1 ? model : sure ? 0.9 : 0.1, a = k == 1 ? model : sure ? good : 0.05;
        if (!c.keep(k, x)) continue;
        acceptances.push_back({a, a});
        chance *= a;
        kept = true;
      }
    }
    std::size_t emitted = 1;
    while (emitted <= acceptances.size() && n.uniform() < acceptances[emitted - 1].of_row)
      ++emitted;
    c.observe(acceptances, emitted, asked);
    tokens += double(emitted);
    spent += cost.target + cost.scoring(acceptances.size()) + cost.others[0] * double(asked[1]);
  }
  return tokens / spent;
}
}  // namespace
TEST_CASE(
    "of two drafters it takes the one that is worth more, token by token: no worse than each "
    "alone, or neither",
    "[more]") {
  double most_gained = 0;
  for (const double price : {0.0, 0.05, 0.3, 2.0})
    for (const double verify : {0.02, 0.3, 1.5})
      for (const double good : {0.1, 0.5, 0.95})
        for (const double model : {0.2, 0.7}) {
          const plan::draft_costs cost{
              .target = 1, .draft = 0, .verify = verify, .others = {price}};
          const double both = play_two(cost, 3, good, model),
                       lookup = play_two(cost, 1, good, model),
                       second = play_two(cost, 2, good, model);
          INFO("model " << price << ", verify " << verify << ", acceptances " << good << " "
                        << model << ": both " << both << ", lookup " << lookup << ", model "
                        << second);
          CHECK(both >= 0.97 * std::max({lookup, second, 1.0}));
          most_gained = std::max(most_gained, both / std::max({lookup, second, 1.0}));
        }
  CHECK(most_gained > 1.05);
}
TEST_CASE("the controller is plain data: copies decide alike") {
  static_assert(std::is_trivially_copyable_v<plan::draft_length_controller>);
  plan::draft_length_controller a({1, 0.1, 0.05, 0});
  play_auto(a.cost, text_world(3, 500), a);
  auto b = a;
  const auto x = play_auto(a.cost, text_world(4, 500), a),
             y = play_auto(b.cost, text_world(4, 500), b);
  CHECK((x.tokens == y.tokens && x.cost == y.cost));
}
