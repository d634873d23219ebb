// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/rate_bound.hpp>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

double overlap(const row& a, const row& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += std::min(a[v], b[v]);
  return sum;
}

}  // namespace

TEST_CASE(
    "rate_bound accepts at the given rate or at p's own, and is as near to p as that allows") {
  numbers n(1);
  int nearer = 0, exact = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t size = 1 + n.below(60);
    const bool holes = n.below(2) == 0;
    const std::array<row, 2> rows{softmax(random_logits(n, size, holes)),
                                  softmax(random_logits(n, size, holes))};
    const auto& [q, p] = rows;
    const double rate = n.between(0, 1), own = overlap(q, p);
    const row pi = law_of(rate_bound{rate}, rows);
    CHECK(overlap(q, pi) == Approx(std::max(rate, own)).margin(1e-13));
    // |accept(pi) - accept(p)| <= TV(pi, p) for every law pi
    CHECK(1 - overlap(pi, p) == Approx(std::max(rate - own, 0.)).margin(1e-13));
    if (rate <= own) CHECK(near(pi, p));
    (rate <= own ? exact : nearer)++;
  }
  CHECK((nearer > 50 && exact > 50));
}
TEST_CASE("rate_bound at rate 0 is p, at rate 1 q, and disjoint rows accept at the rate") {
  const std::array<row, 2> rows{row{0.5, 0.25, 0.25}, row{0.125, 0.125, 0.75}},
      apart{row{1, 0}, row{0, 1}}, equal{row{0.5, 0.5}, row{0.5, 0.5}};
  CHECK(law_of(rate_bound{0}, rows) == rows[1]);
  CHECK(law_of(rate_bound{1}, rows) == rows[0]);
  CHECK(law_of(rate_bound{0.25}, apart) == row{0.25, 0.75});
  CHECK(law_of(rate_bound{1}, equal) == row{0.5, 0.5});
  STATIC_REQUIRE(!reads_confidence<rate_bound>);
  for (const double bad : {-1e-9, 1 + 1e-9, double(NAN), inf}) CHECK_FALSE(valid(rate_bound{bad}));
}
