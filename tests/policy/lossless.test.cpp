// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/lossless.hpp>

#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/catch.hpp"

using namespace specagg;

static_assert(!reads_draft<lossless> && !reads_confidence<lossless> && !may_be_unanimous<lossless>);

TEST_CASE("lossless is the target's row, for any draft") {
  const std::vector<double> p{0.5, 0.25, 0.25, 0};
  for (const std::vector<double>& q : {p, {0, 0, 0, 1}, {0.25, 0.25, 0.25, 0.25}})
    CHECK(target_law(lossless{}, q, p) == p);
}
TEST_CASE("lossless is the target's sampled row") {
  const std::vector<double> q_logits{1, 2, 3},
      p_logits{std::log(0.5), std::log(0.25), std::log(0.25)};
  const auto law = target_law(lossless{}, softmax_row<double>(q_logits, 0.5),
                              softmax_row<double>(p_logits, 0.5));
  CHECK(law[0] == Approx(4.0 / 6).epsilon(1e-15));  // p^2, normalised
  CHECK(law[1] == Approx(1.0 / 6).epsilon(1e-15));
  CHECK(law[2] == Approx(1.0 / 6).epsilon(1e-15));
}
TEST_CASE(
    "a lossless draft is accepted with probability 1 - TV(q, p), and no row of the draft is read "
    "for the bonus") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};
  std::size_t most_asked = 0;
  const auto accepted = exact_law([&](auto& chooser) {
    std::vector<double> scratch(verify_scratch(3, 1));
    std::vector<emission> out(2);
    const auto row = normalise(dense_row<double>(q));
    REQUIRE(row.why() == status::ok);
    const std::vector<token_id> y{draw(row, {stream::draft, 0, 0}, chooser, scratch)};
    const auto q_row = rows_of(2, [&](std::size_t j) {
      most_asked = std::max(most_asked, j);
      return q;
    });
    return verify_token({y}, q_row, std::vector(2, p), lossless{}, chooser, out, scratch).accepted;
  });
  CHECK(accepted.at(1) == Approx(0.625).epsilon(1e-15));
  CHECK(most_asked == 0);
}
