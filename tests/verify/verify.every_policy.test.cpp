// SPDX-License-Identifier: Apache-2.0
// Under every policy: the token after a draft that was accepted as a whole, of each kind; and
// importance ratios of texts (docs/engine.md, "Rollouts").
#include "verify/every_policy.hpp"

#include <specagg/verify/verify.hpp>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <specagg/audit/grid.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/verify/raw_logits.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"
#include "verify/random_rows.hpp"

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
rows first_rows(const rows& all, std::size_t n) {
  return rows(all.begin(), all.begin() + std::ptrdiff_t(n));
}
template <class Row>
row vector_of(const Row& x) {
  return row(x.begin(), x.end());
}

// The largest error over every `step`-th round of the grid, where after gamma tokens the law
// `after`(p, pi) is promised. verify: as in worst_error_of_round.
double worst_with_bonus(const any_policy& policy, const verify_round& verify,
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
    return verify(d, first_rows(q, d.tokens.size()), p, policy, chooser, out, scratch);
  };
}
// The verifier, with a bonus that the engine has drawn from the target's row, before verification.
// Then that row is not there.
verify_round with_given_bonus(const verify_round& verify) {
  return [=](draft d, const rows& q, const rows& p, const auto& policy, auto& chooser, auto out,
             auto scratch) {
    const std::size_t g = d.tokens.size();
    const auto row = normalise(as_row(p[g]));
    REQUIRE(row.why() == status::ok);
    d.bonus = bonus_choice::given(draw(row, {stream::side, 9, 0}, chooser, scratch));
    return verify(d, first_rows(q, g), first_rows(p, g), policy, chooser, out, scratch);
  };
}

}  // namespace

TEST_CASE("a bonus from the target's row has the law p, and all tokens before it the law pi") {
  for (const auto& [name, policy] : all_policies()) {
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
  for (const auto& [name, policy] : all_policies()) {
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
  const any_policy half = ensemble{0.5};
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
  const any_policy half = ensemble{0.5};
  for_each_verifier(3, 0, [&](const auto& verifier) {
    const auto run = [&](bonus_choice bonus, token_id end, std::vector<emission>& out,
                         std::size_t rows_of_p = 2) {
      std::vector<double> scratch(verify_scratch(3, 1));
      some_noise chooser(5);
      const rows given = first_rows(p, rows_of_p);
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
  const any_policy half = ensemble{0.5}, target = lossless{};
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
  const any_policy half = ensemble{0.5};
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

// ---- importance ratios of texts that a policy wrote

namespace {

constexpr std::size_t V = 3, length = 3, gamma_of_round = 2;
using text_of_ids = std::vector<token_id>;

row row_of(const text_of_ids& prefix, std::uint32_t which) {
  std::uint32_t k = which;
  for (const token_id t : prefix) k = k * 31 + std::uint32_t(t) + 7;
  return random_row(k, V, 3);
}
// A text of `length` tokens that rounds have written, and the sums of what they reported.
struct written {
  text_of_ids tokens;
  double log_pi = 0, log_p = 0;
};
written write(const any_policy& policy, exhaustive_chooser& chooser, const verify_round& verify) {
  written all;
  std::vector<double> scratch(verify_scratch(V, gamma_of_round));
  while (all.tokens.size() < length) {
    const auto start = std::uint32_t(all.tokens.size());
    std::vector<token_id> y;
    std::vector<std::vector<double>> q, p;
    for (std::size_t j = 0;; ++j) {
      text_of_ids prefix = all.tokens;
      prefix.insert(prefix.end(), y.begin(), y.end());
      q.push_back(row_of(prefix, 1));
      p.push_back(row_of(prefix, 2));
      if (j == gamma_of_round) break;
      y.push_back(draw_draft(dense_row<double>(q[j]), start, j, chooser, scratch));
    }
    std::vector<emission> out(gamma_of_round + 1);
    const verdict v = verify(draft{.tokens = y, .start = start}, q, p, policy, chooser,
                             std::span(out), std::span(scratch));
    REQUIRE(v.why == status::ok);
    for (std::size_t i = 0; i < v.emitted && all.tokens.size() < length; ++i) {
      all.tokens.push_back(out[i].token);
      all.log_pi += out[i].log_pi;
      all.log_p += out[i].log_p;
    }
  }
  return all;
}

struct errors {
  double with_pi = 0;    // |E (p / pi recorded) 1[text] - p(text)|, the largest
  double with_p = 0;     // sum over texts of (E (p / p recorded) 1[text] - p(text))+
  double tv = 0;         // of the texts' laws under pi and p
  double uncovered = 0;  // p of the texts that pi never writes
};
errors ratios_of(const any_policy& policy, const verify_round& verify) {
  std::map<text_of_ids, std::pair<double, double>> seen;  // with log_pi recorded, with log_p
  std::map<text_of_ids, double> p, pi;
  exhaustive_chooser chooser;
  do {
    const written w = write(policy, chooser, verify);
    double log_p = 0, log_pi = 0;  // computed again from the models
    for (std::size_t t = 0; t < length; ++t) {
      const text_of_ids prefix(w.tokens.begin(), w.tokens.begin() + std::ptrdiff_t(t));
      const auto y = std::size_t(w.tokens[t]);
      const auto q_row = row_of(prefix, 1), p_row = row_of(prefix, 2);
      log_p += std::log(p_row[y]);
      log_pi += std::log(target_law(policy, q_row, p_row)[y]);
    }
    CHECK(w.log_p == Approx(log_p).epsilon(1e-12));
    CHECK(w.log_pi == Approx(log_pi).epsilon(1e-12));
    p[w.tokens] = std::exp(log_p);
    pi[w.tokens] = std::exp(log_pi);
    seen[w.tokens].first += chooser.probability * std::exp(log_p - w.log_pi);
    seen[w.tokens].second += chooser.probability * std::exp(log_p - w.log_p);
  } while (chooser.next());
  errors e;
  double covered = 0;
  for (const auto& [text, estimates] : seen) {
    covered += p[text];
    e.with_pi = std::max(e.with_pi, std::fabs(estimates.first - p[text]));
    e.with_p += std::max(0.0, estimates.second - p[text]);
    e.tv += std::max(0.0, pi[text] - p[text]);
  }
  e.uncovered = 1 - covered;
  return e;
}

}  // namespace

TEST_CASE(
    "with log_pi recorded an importance ratio is exact, with log_p the mean under p is off by TV") {
  std::printf("largest bias of a mean if log_p is recorded, texts of %zu tokens:\n", length);
  const auto check = [](const char* name, const any_policy& policy, bool print) {
    INFO(name);
    const errors token = ratios_of(policy, by_token<exhaustive_chooser>),
                 block = ratios_of(policy, by_block<exhaustive_chooser>);
    for (const errors& e : {token, block}) {
      CHECK(e.with_pi < 1e-12);
      CHECK(e.with_p == Approx(e.tv).margin(1e-12));
      CHECK(e.uncovered > -1e-12);
    }
    if (print)
      std::printf("  %-12s %.4f   never written: %.4f\n", name, token.with_p, token.uncovered);
  };
  for_each_in_catalogue([&](const auto& line) {
    for (const auto& policy : line.values) check(line.name, policy, &policy == &line.values[0]);
  });
}
TEST_CASE("once training has moved the new law away from p, log_p is wrong by more than any TV") {
  // E new(y) / recorded(y) of f = 1 for token 0: 1 by log_pi
  const std::vector<double> q{0.8, 0.2}, p{0.2, 0.8}, moved{1, 0};
  const std::vector rows_of_q{q, q}, rows_of_p{p, p};
  double with_pi = 0, with_p = 0;
  exhaustive_chooser chooser;
  std::vector<double> scratch(verify_scratch(2, 1));
  do {
    const std::vector y{draw_draft(dense_row<double>(q), 0, 0, chooser, scratch)};
    std::vector<emission> out(2);
    const verdict v =
        by_token(draft{.tokens = y}, rows_of_q, rows_of_p, ensemble{1}, chooser, out, scratch);
    REQUIRE(v.why == status::ok);
    const double made = chooser.probability * moved[std::size_t(out[0].token)];
    with_pi += made / std::exp(out[0].log_pi);
    with_p += made / std::exp(out[0].log_p);
  } while (chooser.next());
  CHECK(with_pi == Approx(1).epsilon(1e-14));
  CHECK(with_p == Approx(4).epsilon(1e-14));
}
