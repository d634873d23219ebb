// SPDX-License-Identifier: Apache-2.0
// The exact law of two texts that share rounds and a budget of drafted tokens: what one text drafts
// depends on the other's rows and tokens.
#include <specagg/decode/detail/speculation.hpp>
#include <specagg/decode/together.hpp>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include <specagg/plan/load.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;
using tokens = std::vector<token_id>;

namespace {

constexpr std::size_t two = 2;

// One text's part of all random numbers.
struct part_of {
  exhaustive_chooser* all;
  std::uint32_t part;
  moment own(moment m) const {
    m.branch += 1000 * part;
    return m;
  }
  bool coin(moment m, double w, double t) { return all->coin(own(m), w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return all->draw(own(m), w);
  }
};

// Of two texts, each drafts on or not by what the other did last, by its row of this position, and
// by a token that it drafted itself in an earlier round, accepted or not.
struct curious {
  std::size_t most = 100;
  std::array<bool, 2> odd = {};
  std::size_t asked = 0;
  void begin(std::size_t) {}
  template <class Text>
  static bool last_is_odd(const Text& t) {
    return t.tokens().back() == 1;
  }
  template <class Text>
  void ask(std::span<Text> texts) {
    ++asked;
    if (texts.size() < 2) return;
    for (std::size_t i = 0; i < 2; ++i) {
      if (texts[i].result().drafted > 0) odd[i] = last_is_odd(texts[i]);
      else if (odd[i] && !last_is_odd(texts[1 - i])) texts[i].stop();
    }
  }
  template <class Text>
  void take(std::span<Text> texts) {
    if (texts.size() < 2) return;
    std::array<bool, 2> sure = {};
    for (std::size_t i = 0; i < 2; ++i)
      if (const auto* row = texts[i].row())
        sure[i] = with_chosen(*row, [](auto& one) { return double(one[0]) > 0.5; });
    for (std::size_t i = 0; i < 2; ++i)
      if (!sure[1 - i] && !last_is_odd(texts[1 - i])) texts[i].stop();
  }
  void observe(std::size_t) {}
};

// Either load, of one type.
struct any_load {
  std::variant<curious, plan::draft_load> chosen;
  std::size_t most;
  any_load(const auto& one) : chosen(one), most(one.most) {}
  std::optional<std::size_t> asked() const {  // of a curious one
    const auto* one = std::get_if<curious>(&chosen);
    return one ? std::optional(one->asked) : std::nullopt;
  }
  void begin(std::size_t texts) {
    std::visit([=](auto& l) { l.begin(texts); }, chosen);
  }
  template <class Text>
  void ask(std::span<Text> texts) {
    std::visit([=](auto& l) { l.ask(texts); }, chosen);
  }
  template <class Text>
  void take(std::span<Text> texts) {
    std::visit([=](auto& l) { l.take(texts); }, chosen);
  }
  void observe(std::size_t emitted) {
    std::visit([=](auto& l) { l.observe(emitted); }, chosen);
  }
};

// A text after token 0.
template <class V, class Policy>
struct one_text {
  using shared_text =
      together_text<started_drafter, toy_source<T>, Policy, part_of, V, plan::draft_forecast>;
  part_of chooser;
  Policy policy;
  toy_source<T> target{two, 20 + chooser.part};
  started_drafter drafter{1 + chooser.part};
  tokens memory = tokens(12);
  text written{memory, 1};
  drafting_workspace<T, started_drafter::row_type> work{two, {.gamma = 3}};
  shared_text shared;
  one_text(exhaustive_chooser& all, std::uint32_t number, std::size_t most, const V& verifier,
           const Policy& p)
      : chooser{&all, number},
        policy(p),
        shared(drafter, target, policy, chooser, {.text = written, .most = most, .work = work},
               V(verifier), plan::draft_forecast()) {}
  one_text(const one_text&) = delete;
};

struct step {
  token_id token;
  std::size_t start;  // of the round that emitted it
  auto operator<=>(const step&) const = default;
};
using history = std::vector<step>;
// Of a token: whose it is, that text until there, and the other text before this round.
struct place {
  std::size_t text;
  history before, other;
  auto operator<=>(const place&) const = default;
};

// The largest difference between the joint law of a place and its token, and that of the place
// times pi.
template <class V, class Policy>
double worst_error(const V& verifier, const Policy& policy, const any_load& made,
                   std::size_t most) {
  constexpr bool remembers = is_coupled<V> && reads_draft<Policy>;
  // With the Gumbel-max coupling, where rounds began says what was drafted with the noise of later
  // tokens. Where pi does not depend on it, the law of the text alone is promised.
  constexpr bool starts_count = !is_coupled<V> || remembers;
  std::map<place, std::map<std::array<double, two>, std::array<double, two>>> mass;  // by pi
  std::set<std::pair<std::size_t, std::size_t>> drafted;
  exhaustive_chooser chooser;
  std::size_t asked = 0;
  do {
    one_text<V, Policy> a(chooser, 0, most, verifier, policy),
        b(chooser, 1, most, verifier, policy);
    const std::array all = {&a, &b};
    const std::vector shared = {&a.shared, &b.shared};
    together_workspace<std::remove_reference_t<decltype(a.shared)>> work;
    any_load load = made;
    std::array<history, 2> so_far;
    std::vector<std::tuple<place, std::array<double, two>, token_id>> seen;
    for (std::size_t left = 2; left > 0;) {
      const std::array before = so_far;
      const std::array was = {a.shared.ended, b.shared.ended};
      left = together_round(shared, work, this_thread(), load);
      const auto of = [&](std::size_t k) { return was[k] ? 0 : all[k]->shared.result.drafted; };
      if (left == 2) drafted.insert({of(0), of(1)});
      CHECK(of(0) + of(1) <= load.most);
      if (remembers)
        CHECK(std::max(of(0), of(1)) <= load.most / 2 + load.most * (was[0] || was[1]));
      for (std::size_t k = 0; k < 2; ++k) {
        auto& one = *all[k];
        if (was[k]) continue;
        REQUIRE(one.shared.why == status::ok);
        const std::size_t emitted = one.shared.result.emitted, start = one.written.size - emitted;
        for (std::size_t i = 0; i < emitted; ++i) {
          std::array<double, two> law;  // of rows that are still in the workspace
          const auto p = normalise(one.work.target_rows[i]);
          REQUIRE(p.why() == status::ok);
          for (std::size_t v = 0; v < two; ++v)
            law[v] = reads_draft<Policy> ? 0.5 * one.work.draft_rows[i][v] + 0.5 * p[v] : p[v];
          const token_id x = one.work.emissions[i].token;
          seen.emplace_back(place{k, so_far[k], starts_count ? before[1 - k] : history()}, law, x);
          so_far[k].push_back({x, starts_count ? start : 0});
        }
      }
    }
    asked += load.asked().value_or(0);
    for (const auto& [at, law, x] : seen) mass[at][law][std::size_t(x)] += chooser.probability;
  } while (chooser.next());
  double worst = 0;
  for (const auto& [at, by_law] : mass)
    for (const auto& [law, m] : by_law)
      for (std::size_t v = 0; v < two; ++v)
        worst = std::max(worst, std::fabs(m[v] - law[v] * (m[0] + m[1])));
  // with the Gumbel-max coupling and a policy that reads the draft nobody is asked
  if (made.asked()) CHECK((asked > 0) == !remembers);
  CHECK(mass.size() > 50);
  CHECK(drafted.size() >= (remembers ? 1 : 4));
  return worst;
}

// Prices at which it depends on the rows how much is drafted.
plan::draft_load priced(std::size_t most) {
  return plan::draft_load({{{1, 1}, {2, 1.1}, {3, 1.48}, {4, 1.93}, {8, 4}}}, {}, most);
}

}  // namespace

TEST_CASE("two texts with one budget have their laws exactly, with any load") {
  const auto check = [](const auto& verifier, std::size_t most) {
    CHECK(worst_error(verifier, lossless(), curious(), most) < 1e-12);
    CHECK(worst_error(verifier, ensemble{0.5}, curious(), most) < 1e-12);
    CHECK(worst_error(verifier, lossless(), priced(2), most) < 1e-12);
    CHECK(worst_error(verifier, ensemble{0.5}, priced(3), most) < 1e-12);
  };
  check(any_verifier(token_verifier()), 4);
  check(any_verifier(block_verifier()), 4);
  check(any_verifier(match_verifier()), 4);
  check(enumerated_coupled(), 5);
}
TEST_CASE(
    "with the Gumbel-max coupling and a policy that reads the draft, texts have equal shares of "
    "the budget") {
  CHECK(worst_error(enumerated_coupled(), ensemble{0.5}, curious{.most = 3}, 5) < 1e-12);
}
