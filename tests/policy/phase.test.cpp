// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/phase.hpp>

#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/policy/combine.hpp>
#include <specagg/policy/lossless.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("a phase begins after a token that opens it, and ends with one that closes it") {
  const std::vector<double> q{0.25, 0.75}, p{0.75, 0.25}, mixed{0.5, 0.5};
  const std::vector<token_id> open{1, 5}, close{2};
  const phase<ensemble, lossless> policy{{0.5}, {}, open, close};
  auto s = policy.begin();
  const auto pi = [&] { return target_law(policy.at(s), q, p); };
  CHECK(pi() == p);
  for (const token_id y : {token_id(2), token_id(0)}) CHECK(!(s = policy.advance(s, y)).is_inside);
  CHECK((s = policy.advance(s, 5)).is_inside == 1);
  CHECK(pi() == mixed);
  for (const token_id y : open) CHECK((s = policy.advance(s, y)).is_inside == 1);
  CHECK(!(s = policy.advance(s, 2)).is_inside);
  CHECK(pi() == p);
}
TEST_CASE("a phase declares what its two policies declare, and is valid if both are") {
  using both = phase<ensemble, lossless>;
  STATIC_REQUIRE(std::is_same_v<phase<ensemble, ensemble>::one, ensemble>);
  STATIC_REQUIRE((reads_draft<both> && !reads_draft<phase<lossless, lossless>>));
  STATIC_REQUIRE(!reads_confidence<phase<lossless, lossless>>);
  CHECK((valid(both{}) && !valid(both{{2}, {}, {}, {}}) &&
         !valid(phase<lossless, ensemble>{{}, {-1}, {}, {}})));
  CHECK((both{}.is_state({0}) && both{}.is_state({1}) && !both{}.is_state({0.5})));
}
