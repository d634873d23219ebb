// SPDX-License-Identifier: Apache-2.0
// The token after a draft that was accepted as a whole: of each kind, under every verifier.
#include "verify/every_policy.hpp"

#include <specagg/verify/verify.hpp>

#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include <specagg/audit/grid.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/verify/raw_logits.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"

using namespace specagg;
using namespace every_policy;

// A number would be taken for true; a token is given().
static_assert(!std::is_convertible_v<int, bonus_choice>);
static_assert(!std::is_convertible_v<token_id, bonus_choice>);
static_assert(std::is_convertible_v<bool, bonus_choice>);
static_assert(sizeof(bonus_choice) == sizeof(token_id));

namespace {

using prefix = std::vector<token_id>;
using rows = table;
using law_after = std::function<row(const row& p, const row& pi)>;

struct named_verifier {
  const char* name;
  verify_round verify;
};
// Those whose branches can be walked.
std::vector<named_verifier> all_walked() {
  std::vector<named_verifier> all;
  for_each_verifier(0, 0, [&](const auto& verifier) {
    if constexpr (!is_coupled<std::decay_t<decltype(verifier)>>)
      all.push_back(
          {verifier.name, [=](const draft& d, auto&&... a) { return verifier.verify(d, a...); }});
  });
  return all;
}
rows first_of(const rows& all, std::size_t n) {
  return rows(all.begin(), all.begin() + std::ptrdiff_t(n));
}
template <class Row>
row vector_of(const Row& x) {
  return row(x.begin(), x.end());
}

// The largest error over every `step`-th round of the grid, where after gamma tokens the law
// `after`(p, pi) is promised. verify: as in worst_error_of_round.
double worst_with_bonus(const cli::any_policy& policy, const verify_round& verify,
                        const law_after& after, std::size_t gamma, std::size_t step) {
  double worst = 0;
  for (std::size_t i = 0; i < grid_round<double>::rounds(); i += step) {
    const grid_round<double> r{i};
    const auto q = [&](const prefix& text) { return vector_of(r.q(text)); };
    const auto p = [&](const prefix& text) { return vector_of(r.p(text)); };
    const auto promised = [&](const prefix& text) {
      const auto pi = target_law(policy, q(text), p(text));
      return text.size() < gamma ? pi : after(p(text), pi);
    };
    const auto e = error_of_round(policy, gamma, q, p, verify, promised);
    worst = std::max(worst, e.error);
    CHECK(e.reused == 0);
  }
  return worst;
}
const law_after p_after = [](const row& p, const row&) { return p; };
const law_after pi_after = [](const row&, const row& pi) { return pi; };

// The verifier, with the bonus from the target's row, and without the draft's row there.
verify_round with_target_bonus(const verify_round& verify) {
  return [=](draft d, const rows& q, const rows& p, const auto& policy, auto& chooser, auto out,
             auto scratch) {
    d.bonus = bonus_choice::target();
    return verify(d, first_of(q, d.tokens.size()), p, policy, chooser, out, scratch);
  };
}
// The verifier, with a bonus that the engine has drawn from the target's row, before verification.
// Then that row is not there.
verify_round with_given_bonus(const verify_round& verify) {
  return [=](draft d, const rows& q, const rows& p, const auto& policy, auto& chooser, auto out,
             auto scratch) {
    const std::size_t g = d.tokens.size();
    const auto row = as_row(p[g]).normalise();
    REQUIRE(row.why() == status::ok);
    d.bonus = bonus_choice::given(draw(row, {stream::side, 9, 0}, chooser, scratch));
    return verify(d, first_of(q, g), first_of(p, g), policy, chooser, out, scratch);
  };
}

}  // namespace

TEST_CASE("a bonus from the target's row has the law p, and all tokens before it the law pi") {
  for (const std::string& name : all_policies()) {
    const auto policy = cli::parse_policy(name);
    for (const named_verifier& verifier : all_walked())
      for (std::size_t gamma = 0; gamma <= 2; ++gamma) {
        const double worst =
            worst_with_bonus(policy, with_target_bonus(verifier.verify), p_after, gamma, 97);
        INFO(name << ", " << verifier.name << ", gamma " << gamma << ": " << worst);
        CHECK(worst < 1e-12);
      }
  }
}
TEST_CASE("a given bonus has the law that the engine drew it from, and the tokens before it pi") {
  for (const std::string& name : all_policies()) {
    const auto policy = cli::parse_policy(name);
    for (const named_verifier& verifier : all_walked())
      for (std::size_t gamma = 0; gamma <= 2; ++gamma) {
        const double worst =
            worst_with_bonus(policy, with_given_bonus(verifier.verify), p_after, gamma, 97);
        INFO(name << ", " << verifier.name << ", gamma " << gamma << ": " << worst);
        CHECK(worst < 1e-12);
      }
  }
}
TEST_CASE("the audit tells a bonus of law p from one of law pi") {
  for (const auto& [name, verify] : all_walked()) {
    INFO(name);
    const auto target = with_target_bonus(verify);
    CHECK(worst_with_bonus(ensemble{0.5}, target, pi_after, 1, 97) > 0.1);
    CHECK(worst_with_bonus(ensemble{0.5}, with_given_bonus(verify), pi_after, 1, 97) > 0.1);
    CHECK(worst_with_bonus(lossless{}, target, pi_after, 1, 97) < 1e-12);
    CHECK(worst_with_bonus(ensemble{0.5}, verify, p_after, 1, 97) > 0.1);
  }
}
TEST_CASE("where a draft ends early the token is drawn from pi, with any kind of bonus but none") {
  const rows q{{0.5, 0.5, 0}, {0.25, 0.25, 0.5}, {1, 0, 0}},
      p{{0.25, 0.5, 0.25}, {0, 0.5, 0.5}, {0, 0, 1}};
  const std::vector<token_id> y{7, 1};  // 7: outside the vocabulary
  const cli::any_policy half = ensemble{0.5};
  for_each_verifier(3, 0, [&](const auto& verifier) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const auto run = [&](bonus_choice bonus, std::vector<emission>& out) {
        std::vector<double> scratch(verify_scratch(3, 2));
        some_noise chooser(seed);
        return verifier.verify(draft{.tokens = y, .bonus = bonus}, q, p, half, chooser,
                               std::span(out), std::span(scratch));
      };
      std::vector<emission> plain(3), other(3);
      REQUIRE(run(true, plain).emitted == 1);
      CHECK(plain[0].why == status::token_out_of_range);
      for (const bonus_choice bonus : {bonus_choice::target(), bonus_choice::given(2)}) {
        const verdict v = run(bonus, other);
        CHECK((v.emitted == 1 && v.why == status::ok && other[0].token == plain[0].token));
        CHECK(other[0].log_pi == plain[0].log_pi);
      }
      for (const bonus_choice none : {bonus_choice(false), bonus_choice::given(no_token)}) {
        const verdict v = run(none, other);
        CHECK((v.emitted == 0 && v.why == status::token_out_of_range));
      }
    }
  });
}
TEST_CASE("what a bonus of each kind says: its token, its log-probabilities, the end of the text") {
  const rows q{{0, 1, 0}}, p{{0, 1, 0}, {0, 0.25, 0.75}};
  const std::vector<token_id> y{1};
  const cli::any_policy half = ensemble{0.5};
  for_each_verifier(3, 0, [&](const auto& verifier) {
    const auto run = [&](bonus_choice bonus, token_id end, std::vector<emission>& out,
                         std::size_t rows_of_p = 2) {
      std::vector<double> scratch(verify_scratch(3, 1));
      some_noise chooser(5);
      const rows given = first_of(p, rows_of_p);
      return verifier.verify(draft{.tokens = y, .end_of_text = end, .bonus = bonus}, q, given, half,
                             chooser, std::span(out), std::span(scratch));
    };
    std::vector<emission> out(2);
    // The draft's row at the bonus is not there.
    CHECK(run(true, no_token, out).why == status::missing_row);
    verdict v = run(bonus_choice::target(), no_token, out);
    REQUIRE((v.emitted == 2 && v.why == status::ok && out[1].from == origin::bonus));
    CHECK(out[1].log_pi == out[1].log_p);
    CHECK(out[1].log_p == Approx(std::log(p[1][std::size_t(out[1].token)])));
    CHECK(run(bonus_choice::target(), no_token, out, 1).why == status::missing_row);

    v = run(bonus_choice::given(0), no_token, out, 1);
    REQUIRE((v.emitted == 2 && v.why == status::ok && v.ended == no_token));
    CHECK((out[1].token == 0 && out[1].from == origin::bonus));
    CHECK((std::isnan(out[1].log_pi) && std::isnan(out[1].log_p)));
    CHECK(run(bonus_choice::given(2), 2, out, 1).ended == 2);
    CHECK(run(bonus_choice::given(2), 1, out, 1).emitted == 1);  // the draft has ended the text
    CHECK(run(bonus_choice::given(no_token), no_token, out, 1).emitted == 1);
    v = run(bonus_choice::given(-7), no_token, out, 1);
    CHECK((v.emitted == 1 && v.why == status::token_out_of_range));
    std::vector<emission> one(1);
    CHECK(run(bonus_choice::given(0), no_token, one).why == status::invalid_parameter);
    CHECK(run(bonus_choice::given(no_token), no_token, one).why == status::ok);
  });
}
TEST_CASE("a coupled bonus from the target's row is the token that the target alone emits there") {
  const rows none, p{{0.25, 0.5, 0.25}};
  const cli::any_policy half = ensemble{0.5}, target = lossless{};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const coupled_noise noise(seed);
    std::vector<emission> out(1), alone(1);
    const draft of_target{.start = 4, .bonus = bonus_choice::target()};
    REQUIRE(verify_coupled(coupled_draft{of_target}, none, p, half, noise, out).emitted == 1);
    REQUIRE(verify_coupled(coupled_draft{draft{.start = 4}}, p, p, target, noise, alone).emitted ==
            1);
    CHECK(out[0].token == alone[0].token);
  }
}
TEST_CASE("raw logits: a bonus from the target's row has the target's law, and one is given") {
  const std::vector<double> q{0, 1, 2, 0, 0, 0}, p{1, 0, 1, 2, 0, -1};
  std::vector<double> memory(3);
  const sampling how{.temperature = 0.5};
  const raw_logits_verifier verifier(token_verifier(), std::span<double>(memory), how);
  const auto law = [&](bonus_choice bonus, std::size_t rows_of_q) {
    return exact_law([&](auto& chooser) {
      std::vector<double> scratch(verify_scratch(3));
      std::vector<emission> out(1);
      const verdict v =
          verifier.verify(draft{.bonus = bonus},
                          rows_of_logits(std::span<const double>(q).first(rows_of_q), 3, how),
                          rows_of_logits(std::span<const double>(p).last(3), 3, how),
                          raw_logits{geometric{0.5}}, chooser, out, scratch);
      CHECK(v.why == status::ok);
      return out[0].token;
    });
  };
  const double t = 1 + std::exp(-4.0) + std::exp(-6.0);
  CHECK(law(bonus_choice::target(), 0).at(0) == Approx(1 / t).epsilon(1e-14));
  CHECK(law(true, 3).at(0) < 0.9 / t);
  CHECK(law(bonus_choice::given(1), 0).at(1) == 1);
}
TEST_CASE("trees: after an accepted leaf a bonus from the target's row has the law p") {
  const cli::any_policy half = ensemble{0.5};
  for (const auto& shape : {std::vector<std::size_t>{2}, {1, 1}, {2, 1}})
    for (const bool whole : {true, false}) {
      const auto verify = [&](draft_tree tree, auto&&... a) {
        tree.bonus = bonus_choice::target();
        return by_tree(whole, tree, a...);
      };
      const auto worst = [&](const law_after& after, std::size_t step) {
        double error = 0;
        for (std::size_t i = 0; i < grid_round<double>::rounds(); i += step) {
          const grid_round<double> r{i};
          const auto q = [&](const prefix& text) { return vector_of(r.q(text)); };
          const auto p = [&](const prefix& text) { return vector_of(r.p(text)); };
          const auto promised = [&](const prefix& text) {
            const auto pi = target_law(half, q(text), p(text));
            return text.size() < shape.size() ? pi : after(p(text), pi);
          };
          error = std::max(
              error, error_of_tree(half, shape, proposal::sampled, q, p, verify, promised).error);
        }
        return error;
      };
      CHECK(worst(p_after, 31) < 1e-12);
      CHECK(worst(pi_after, 97) > 0.1);
    }
}
TEST_CASE("trees: a given bonus, which would be one for all leaves, is refused") {
  const rows both(2, {0.5, 0.5});
  const laws l(2, law_of(both[0]));
  const std::vector<token_id> y{1};
  const std::vector<std::uint32_t> parents{0};
  std::vector<emission> out(2);
  std::vector<tree_node> nodes(2);
  std::vector<double> residual(2), scratch(verify_scratch(2));
  some_noise chooser(1);
  const tree_memory<double> work{out, nodes, residual, scratch};
  const draft_tree tree{.tokens = y, .parents = parents, .bonus = bonus_choice::given(0)};
  for (const bool whole : {true, false})
    CHECK(by_tree(whole, tree, l, both, both, lossless{}, chooser, work).why ==
          status::invalid_parameter);
}
