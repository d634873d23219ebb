// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/cactus.hpp>

#include <cmath>

#include "policy/equations.hpp"
#include "policy/plain.hpp"

using namespace specagg;

namespace {

// The paper's law, one rejected token after another.
equations::row due(const row& q, const row& p, double delta) {
  return equations::cactus(
      {{q.begin(), q.end()}, {p.begin(), p.end()}, 0, [=](auto) { return delta; }});
}
double distance(const row& a, const equations::row& b) {
  if (a.size() != b.size()) return inf;
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += double(std::fabs(a[v] - b[v])) / 2;
  return sum;
}
// Rows as models have them: related, and spread over many sizes.
std::array<row, 2> related(numbers& n, std::size_t size) {
  row q(size), p(size);
  for (std::size_t v = 0; v < size; ++v) {
    const double shared = n.between(-6, 2);
    q[v] = shared + n.between(-3, 3);
    p[v] = shared + n.between(-3, 3);
  }
  return {softmax(q), softmax(p)};
}

}  // namespace

TEST_CASE("cactus by hand: a rejected token scales the rest of p") {
  // h(0) = 0.2 + sqrt(2 * 0.125 * 0.2 * 0.8) = 0.4, so 0.4 of q(0) = 0.8 is rejected, s = 0.75:
  // (H - q)+ = (0, 0.3 - 0.2, 0.3 - 0)
  const row pi = law_of(cactus{0.125}, std::array{row{0.8, 0.2, 0}, row{0.2, 0.4, 0.4}});
  CHECK(near(pi, {0.4, 0.2 + 0.4 * 0.25, 0.4 * 0.75}));
}
TEST_CASE("cactus is the paper's law, to rounding where fewer than 16 probabilities are rejected") {
  numbers n(1);
  double exact = 0, merged = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const double delta = std::exp(n.between(-9, 0));
    const auto few = related(n, 2 + n.below(14));
    exact = std::max(exact, distance(law_of(cactus{delta}, few), due(few[0], few[1], delta)));
    const auto many = related(n, 20 + n.below(300));
    merged = std::max(merged, distance(law_of(cactus{delta}, many), due(many[0], many[1], delta)));
  }
  CHECK(exact < 1e-13);
  CHECK(merged < 2e-7);
  CHECK(merged > 1e-13);  // the rest has one scale
}
TEST_CASE(
    "cactus with delta 0 is p, with a large one q, and a token that p lacks is never emitted") {
  numbers n(2);
  for (int trial = 0; trial < 50; ++trial) {
    const auto rows = related(n, 2 + n.below(100));
    CHECK(near(law_of(cactus{0}, rows), rows[1]));
  }
  for (const double large : {1e9, 1e308})
    CHECK(
        near(law_of(cactus{large}, std::array{row{0.9, 0.1, 0}, row{0.1, 0.9, 0}}), {0.9, 0.1, 0}));
  CHECK(law_of(cactus{0.5}, std::array{row{1, 0}, row{0, 1}}) == row{0, 1});
  CHECK(law_of(cactus{0.5}, std::array{row{0.5, 0.5}, row{0, 1}}) == row{0, 1});
}
TEST_CASE("cactus takes a finite bound that is not negative") {
  STATIC_REQUIRE(!reads_confidence<cactus>);
  CHECK((valid(cactus{}) && valid(cactus{2})));
  for (const double bad : {-1e-9, double(NAN), inf}) CHECK_FALSE(valid(cactus{bad}));
}
