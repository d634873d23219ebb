// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/token_cascade.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/kernels.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("token-v1 takes the draft's mass off its own tokens below max p - alpha, strictly") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.125, 0.75};
  CHECK(target_law(token_v1{0.5}, q, p) == q);  // 0.25 = 0.75 - 0.5 is not below
  // tokens 1 and 2: eta = 0.5
  CHECK(target_law(token_v1{0.375}, q, p) == std::vector<double>{0.5625, 0.0625, 0.375});
  // every token: eta = 1
  CHECK(target_law(token_v1{-0.01}, q, p) == p);
}
TEST_CASE("token-v2 takes the draft's mass off tokens whose p is below max p - alpha, strictly") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.125, 0.75};
  CHECK(target_law(token_v2{0.625}, q, p) == q);
  // tokens 0, 1: eta = 0.75
  CHECK(target_law(token_v2{0.5}, q, p) == std::vector<double>{0.09375, 0.09375, 0.8125});
  CHECK(target_law(token_v2{-0.01}, q, p) == p);
}
TEST_CASE("token-v3 takes the draft's mass off tokens below (1 - alpha) max p, strictly") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.25, 0.5};
  CHECK(target_law(token_v3{0.5}, q, p) == q);  // 0.25 = 0.5 * 0.5 is not below
  CHECK(target_law(token_v3{0}, q, p) == std::vector<double>{0.1875, 0.1875, 0.625});
  CHECK(target_law(token_v3{-0.01}, q, p) == p);  // every token is below: eta = 1
}
TEST_CASE("logit-comparison takes the draft's mass off tokens that p finds less likely than q") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.25, 0.5};
  CHECK(target_law(logit_comparison{}, q, p) == std::vector<double>{0.125, 0.375, 0.5});
  CHECK(target_law(logit_comparison{}, p, p) == p);  // equal is not below
  CHECK(target_law(logit_comparison{}, std::vector<double>{1, 0, 0}, p) == p);
  // The acceptance of MAX's procedure is that of the law, or less: sum min(q, pi) >= sum (1 - r) q.
  CHECK(acceptance_rate(q, p, logit_comparison{}) == 0.625);
}
TEST_CASE("deferral reads rows at temperature 1, laws are made of sampled ones") {
  const std::vector<double> q_logits{1, 0, 0}, p_logits{0.6, 0, 1.2};
  for (const double temperature : {0.1, 0.5, 2.0}) {
    const softmax_row<double> q(q_logits, temperature), p(p_logits, temperature);
    const auto plain = normalise(softmax_row<double>(p_logits));
    REQUIRE(plain.why() == status::ok);
    const double top = std::max({plain[0], plain[1], plain[2]});
    const double alpha = 1 - plain[0] / top * 1.001;  // keeps tokens 0 and 2 by p at temperature 1
    const auto qt = normalise(q), pt = normalise(p);
    REQUIRE(qt.why() == status::ok);
    REQUIRE(pt.why() == status::ok);
    const auto law = target_law(token_v3{1 - plain[0] / top + 1e-6}, q, p);
    CHECK(law[0] == Approx(qt[0] + qt[1] * pt[0]).epsilon(1e-12));
    CHECK(law[1] == Approx(qt[1] * pt[1]).epsilon(1e-12));
    CHECK(law[2] == Approx(qt[2] + qt[1] * pt[2]).epsilon(1e-12));
    CHECK(target_law(token_v3{alpha}, q, p)[0] == Approx((qt[0] + qt[1]) * pt[0]).epsilon(1e-12));
  }
}
TEST_CASE("alpha of a token-specific cascade may be any finite number") {
  CHECK((valid(token_v1{-1}) && valid(token_v2{0}) && valid(token_v3{2})));
  for (const double bad : {double(NAN), double(INFINITY)})
    CHECK_FALSE((valid(token_v1{bad}) || valid(token_v2{bad}) || valid(token_v3{bad})));
}
