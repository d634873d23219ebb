// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/cut_row.hpp>

#include <vector>

#include <specagg/audit/grid.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/specagg.hpp>

#include "support/catch.hpp"
#include "verify/random_rows.hpp"

using namespace specagg;

namespace {

using row = normal_form<dense_row<double>>;
// All sets of three tokens. At position j of a draft stands set (first + j) % 8.
const std::vector<std::vector<double>> sets{{1, 1, 1}, {0, 1, 1}, {1, 0, 1}, {1, 1, 0},
                                            {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 0, 0}};
const std::vector<double>& set_at(std::size_t first, std::size_t j) {
  return sets[(first + j) % sets.size()];
}
struct cut_rows {
  const std::vector<std::vector<double>>& q;
  std::size_t first;
  std::size_t size() const { return q.size(); }
  cut_row<row> operator[](std::size_t j) const {
    return {normalise(dense_row<double>(q[j])), set_at(first, j)};
  }
};

// Verification is compiled once for those that read no draft, and for others.
using either = compiled_once<any_of<lossless, typical>>;

// Rows that depend on the whole prefix.
struct models {
  std::uint32_t seed;
  std::vector<double> after(const std::vector<token_id>& prefix, std::uint32_t which) const {
    std::uint32_t k = seed;
    for (const token_id t : prefix) k = k * 31 + std::uint32_t(t) + 7;
    return random_row(2 * k + which, 3);
  }
  std::vector<double> q(const std::vector<token_id>& x) const { return after(x, 0); }
  std::vector<double> p(const std::vector<token_id>& x) const { return after(x, 1); }
};
const auto token = [](auto&&... a) { return verify_token(a...); };
const auto block = [](auto&&... a) { return verify_block(a...); };

// The largest error of a round of gamma tokens, each kept if it lies in its set.
template <class Verify>
double error_of(const either& policy, const models& m, std::size_t gamma, std::size_t first,
                Verify verify) {
  const auto e = worst_error_of_round(
      policy, gamma, [&](const auto& x) { return m.q(x); }, [&](const auto& x) { return m.p(x); },
      [&](const draft& d, auto& q, auto& p, auto&&... rest) {
        return verify(d, cut_rows{q, first}, p, rest...);
      },
      [&](const auto& x) { return target_law(policy, m.q(x), m.p(x)); });
  CHECK(e.why == status::ok);
  return e.error;
}
// The same where the draft ends at the first token that is not kept, with q as row: then a token is
// drawn from pi.
double error_of_common_mistake(const models& m, std::size_t first) {
  const auto e = worst_error_of_round(
      lossless{}, 1, [&](const auto& x) { return m.q(x); }, [&](const auto& x) { return m.p(x); },
      token, [&](const auto& x) { return m.p(x); },
      [&](std::size_t j, const auto&, token_id y) {
        return set_at(first, j)[std::size_t(y)] > 0 ? y : no_token;
      });
  return e.error;
}

}  // namespace

TEST_CASE("a draft of which a part was kept: token and block verification emit exactly pi") {
  double worst = 0, mistake = 0;
  for (std::uint32_t seed = 0; seed < 6; ++seed)
    for (std::size_t first = 0; first < sets.size(); ++first) {
      const models m{100 * seed};
      for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
        worst = std::max({worst, error_of(lossless{}, m, gamma, first, token),
                          error_of(lossless{}, m, gamma, first, block),
                          error_of(typical{0.3, 1}, m, gamma, first, token),
                          error_of(typical{0.3, 1}, m, gamma, first, block)});
      }
      mistake = std::max(mistake, error_of_common_mistake(m, first));
    }
  CHECK(worst < 1e-12);
  CHECK(mistake > 0.05);  // drawing from pi where nothing was kept is no small error
}
TEST_CASE("a cut row is q where it was kept, not renormalised") {
  const std::vector<double> q{0.5, 0.3, 0.2}, kept{1, 0, 1};
  const auto cut = normalise(cut_row(ready(q), kept));
  REQUIRE(cut.why() == status::ok);
  CHECK(cut[0] == 0.5);
  CHECK(cut[1] == 0);
  CHECK(cut[2] == 0.2);
}
TEST_CASE("by hand: a token that was not kept is replaced from (p - q 1_A)+") {
  // q = (1/2, 1/2), p = (3/4, 1/4), A = {0}: (1/4, 1/4) is left. p would be the mistake.
  const std::vector<double> q{0.5, 0.5}, p{0.75, 0.25}, kept{1, 0};
  const auto law = exact_law([&](auto& chooser) {
    std::vector<emission> out(2);
    std::vector<double> scratch(verify_scratch(2, 1));
    const std::vector<token_id> drawn{1};
    const auto v = verify_token(
        draft{.tokens = drawn}, rows_of(1, [&](std::size_t) { return cut_row(ready(q), kept); }),
        std::vector{p, p}, lossless{}, chooser, std::span(out), std::span(scratch));
    CHECK(v.accepted == 0);
    CHECK(out[0].from == origin::residual);
    return out[0].token;
  });
  CHECK(law.at(0) == Approx(0.5).epsilon(1e-15));
  CHECK(law.at(1) == Approx(0.5).epsilon(1e-15));
}

namespace {

// The law of the first token of a tree whose root has two children, drawn from q independently,
// each with a set of its own; below the first, one more.
using any_policy = compiled_once<any_of<lossless, ensemble>>;
template <class Verify>
double error_of_tree(const any_policy& policy, const models& m, std::size_t first, Verify verify) {
  const auto law = exact_law([&](auto& chooser) {
    std::vector<double> scratch(verify_scratch(3));
    const auto q0 = m.q({}), p0 = m.p({});
    const row root = ready(q0);
    std::vector<token_id> y(3);
    for (std::size_t i = 0; i < 2; ++i) y[i] = draw_node(root, 0, i + 1, 1, chooser, scratch);
    std::vector<std::vector<double>> q{q0, m.q({y[0]}), m.q({y[1]})},
        p{p0, m.p({y[0]}), m.p({y[1]})};
    const row below = ready(q[1]);
    y[2] = draw_node(below, 0, 3, 2, chooser, scratch);
    q.push_back(m.q({y[0], y[2]}));
    p.push_back(m.p({y[0], y[2]}));
    const std::vector<cut_row<row>> laws{{root, set_at(first, 0)},
                                         {root, set_at(first, 0)},
                                         {root, set_at(first, 1)},
                                         {below, set_at(first, 2)}};
    const std::vector<std::uint32_t> parents{0, 0, 1};
    std::vector<emission> out(3);
    std::vector<tree_node> nodes(4);
    std::vector<double> residual(9);
    const auto v = verify(draft_tree{.tokens = y, .parents = parents}, laws, q, p, policy, chooser,
                          tree_memory<double>{out, nodes, residual, scratch});
    CHECK(v.why == status::ok);
    return std::pair(out[0].token, v.emitted > 1 ? out[1].token : no_token);
  });
  const auto pi = target_law(policy, m.q({}), m.p({}));
  double error = 0;
  for (token_id a = 0; a < 3; ++a) {
    const auto next = target_law(policy, m.q({a}), m.p({a}));
    double ends = 0, more = 0;
    std::vector<double> of(3);
    for (const auto& [text, probability] : law)
      if (text.first == a) (text.second < 0 ? ends : of[std::size_t(text.second)]) += probability;
    for (const double x : of) more += x;
    error = std::max(error, std::fabs(ends + more - pi[std::size_t(a)]));
    for (std::size_t b = 0; b < 3 && more > 0; ++b)
      error = std::max(error, std::fabs(of[b] / more - next[b]));
  }
  return error;
}

}  // namespace

TEST_CASE("a tree of which parts were kept: both verifiers emit exactly pi, with any policy") {
  double worst = 0;
  for (std::uint32_t seed = 0; seed < 6; ++seed)
    for (std::size_t first = 0; first < sets.size(); ++first) {
      const models m{100 * seed};
      const auto up = [](auto&&... a) { return verify_tree(a...); };
      const auto down = [](auto&&... a) { return verify_tree_recursive(a...); };
      worst = std::max({worst, error_of_tree(lossless{}, m, first, up),
                        error_of_tree(lossless{}, m, first, down),
                        error_of_tree(ensemble{0.4}, m, first, up),
                        error_of_tree(ensemble{0.4}, m, first, down)});
    }
  CHECK(worst < 1e-12);
}
TEST_CASE("cut rows that cannot be used are reported") {
  const std::vector<double> q{0.5, 0.3, 0.2}, all{1, 1, 1}, two{1, 1}, wrong{1, 0.5, 1};
  const std::vector<double> nan{1, std::numeric_limits<double>::quiet_NaN(), 1};
  CHECK(normalise(cut_row(ready(q), all)).why() == status::ok);
  CHECK(normalise(cut_row(ready(q), two)).why() == status::vocabulary_mismatch);
  CHECK(normalise(cut_row(ready(q), wrong)).why() == status::invalid_row);
  CHECK(normalise(cut_row(ready(q), nan)).why() == status::invalid_row);
  CHECK(normalise(cut_row<row>()).why() != status::ok);

  // A policy that reads the draft would take a part of q for q.
  std::vector<emission> out(2);
  std::vector<double> scratch(verify_scratch(3, 1));
  const std::vector<token_id> drawn{1};
  const auto rows = rows_of(2, [&](std::size_t) { return cut_row(ready(q), all); });
  const auto verdict_of = [&](auto&& verify) {
    return verify(draft{.tokens = drawn}, rows, std::vector{q, q}, ensemble{0.5}, random_streams(1),
                  std::span(out), std::span(scratch));
  };
  for (const verdict v : {verdict_of(token), verdict_of(block)}) {
    CHECK(v.why == status::invalid_parameter);
    CHECK(v.emitted == 0);
  }
}
TEST_CASE("rows of two kinds: some were cut") {
  using kinds = any_row<row, normal_form<cut_row<row>>>;
  const std::vector<double> q{0.5, 0.3, 0.2}, p{0.2, 0.2, 0.6}, kept{0, 1, 1};
  const auto law = exact_law([&](auto& chooser) {
    std::vector<emission> out(3);
    std::vector<double> scratch(verify_scratch(3, 2));
    const row whole = ready(q);
    const std::vector<kinds> rows{whole, normalise(cut_row(whole, kept))};
    std::vector<token_id> y;
    for (std::size_t j = 0; j < 2; ++j) y.push_back(draw_draft(whole, 0, j, chooser, scratch));
    const auto v = verify_token(draft{.tokens = y}, rows, std::vector{p, p, p}, lossless{}, chooser,
                                std::span(out), std::span(scratch));
    return v.emitted > 1 ? out[1].token : no_token;
  });
  double second = 0;
  for (const auto& [y, probability] : law) second += y >= 0 ? probability : 0;
  for (token_id v = 0; v < 3; ++v)
    CHECK(law.at(v) / second == Approx(p[std::size_t(v)]).epsilon(1e-12));
}
