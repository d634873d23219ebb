// SPDX-License-Identifier: Apache-2.0
// Coupled verification where pi depends on where a round began: a length that learns must not see
// what was drafted with the noise of later tokens.
#include <specagg/decode/speculative.hpp>

#include <cstdio>
#include <map>

#include <specagg/draft/first_of.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

constexpr std::size_t two = 2;
constexpr double lambda = 0.5;

// Drafts nothing in a round after the one whose last row was not sure.
struct moody_length : fixed_draft_length {
  static constexpr bool reads_confidence = true;
  bool sure = true, next_sure = true;
  void begin() {
    sure = next_sure;
    next_sure = true;
  }
  bool another(std::size_t) const { return sure; }
  bool keep(std::size_t, double confidence) {
    next_sure = confidence > 0.7;
    return true;
  }
};
// Stops at a row that is not sure, and drafts more or less after a round by how much it drafted and
// asked.
struct counting_length : fixed_draft_length {
  static constexpr bool reads_acceptances = true, reads_confidence = true;
  std::size_t most = 5, drafted = 0;
  void begin() { drafted = 0; }
  bool another(std::size_t) const { return drafted < most; }
  bool keep(std::size_t, double confidence) {
    if (confidence < 0.6) return false;
    ++drafted;
    return true;
  }
  void observe(std::span<const draft_acceptance> acceptances, std::size_t,
               std::span<const std::size_t> asked) {
    std::size_t rows = 0;
    for (const std::size_t n : asked) rows += n;
    most = 1 + 2 * ((acceptances.size() + rows) % 3);
  }
};
// Asks the first of two drafters in a round only if the round before ended with a sure row.
struct choosy_length : moody_length {
  bool another(std::size_t drafter) const { return sure || drafter == 1; }
};

using any_of_lengths = any_length<fixed_draft_length, moody_length, counting_length, choosy_length,
                                  plan::draft_length_controller>;

struct step {
  token_id token;
  std::size_t start;  // of the round that emitted it
  auto operator<=>(const step&) const = default;
};
using history = std::vector<step>;

// The largest difference between the joint law of a history and the next token, and that of the
// history times pi. The history is the text, where its rounds began, and pi, which tells which
// drafter gave the row.
template <class Policy, class MakeDrafter>
double worst_error(const Policy& policy, const any_of_lengths& made, std::size_t length,
                   MakeDrafter make) {
  std::map<history, std::map<std::vector<double>, std::array<double, two>>> mass;  // by pi
  exhaustive_chooser chooser;
  std::size_t longest = 0;
  do {
    auto drafter = make();
    toy_source<T> target(two, 2);
    std::vector<token_id> buffer(16);
    text t{buffer, 1};
    drafting_workspace<T, typename decltype(drafter)::row_type> work(two, {.gamma = 5});
    any_of_lengths remembered = made;
    std::vector<std::pair<history, std::vector<double>>> seen;
    history so_far;
    while (t.size < 1 + length) {
      const std::size_t start = t.size;
      const auto r = speculative_round(drafter, target, policy, chooser,
                                       {.text = t, .most = 1 + length - start, .work = work},
                                       enumerated_coupled(), remembered);
      REQUIRE(r.why == status::ok);
      longest = std::max(longest, r.drafted);
      for (std::size_t i = 0; i < r.emitted; ++i) {
        // pi, of rows that are still in the workspace.
        std::vector<double> law(two);
        const auto p = normalise(work.target_rows[i]);
        REQUIRE(p.why() == status::ok);
        for (std::size_t v = 0; v < two; ++v) {
          law[v] = p[v];
          if constexpr (reads_draft<Policy>)
            law[v] = with_chosen(work.draft_rows[i],
                                 [&](auto& q) { return lambda * q[v] + (1 - lambda) * p[v]; });
        }
        so_far.push_back({work.emissions[i].token, start});
        seen.emplace_back(so_far, law);
      }
    }
    for (auto& [prefix, law] : seen) {
      const step last = prefix.back();
      prefix.back().token = no_token;
      mass[prefix][law][std::size_t(last.token)] += chooser.probability;
    }
  } while (chooser.next());
  double worst = 0;
  for (const auto& [prefix, by_law] : mass)
    for (const auto& [law, m] : by_law)
      for (std::size_t v = 0; v < two; ++v)
        worst = std::max(worst, std::fabs(m[v] - law[v] * (m[0] + m[1])));
  CHECK(longest > 1);
  CHECK(mass.size() > 10);
  return worst;
}

double worst_of_one(const any_of_lengths& length) {
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    worst = std::max(
        worst, worst_error(ensemble{lambda}, length, 6, [=] { return started_drafter{seed}; }));
  std::printf("coupled, a length that learns: worst difference %.2e\n", worst);
  return worst;
}

}  // namespace

TEST_CASE(
    "with the Gumbel-max coupling a length learns from verified tokens alone, so every token has "
    "the law pi "
    "exactly") {
  CHECK(worst_of_one(fixed_draft_length()) < 1e-12);
  CHECK(worst_of_one(moody_length()) < 1e-12);
  CHECK(worst_of_one(counting_length()) < 1e-12);
  CHECK(worst_of_one(plan::draft_length_controller({1, 0.2, 0.1})) < 1e-12);
}
TEST_CASE(
    "with the Gumbel-max coupling and two drafters, the choice between them learns from verified "
    "tokens "
    "alone") {
  started_drafter first{1}, second{5};
  const auto both = [&] { return first_of(first, second); };
  CHECK(worst_error(ensemble{lambda}, choosy_length(), 6, both) < 1e-12);
  CHECK(worst_error(ensemble{lambda}, plan::draft_length_controller({1, 0.2, 0.1}, 2), 6, both) <
        1e-12);
}
TEST_CASE("where pi does not depend on the draft, a length may learn from all that was drafted") {
  CHECK(worst_error(lossless(), counting_length(), 6, [] { return started_drafter(); }) < 1e-12);
}
