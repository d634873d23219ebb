// SPDX-License-Identifier: Apache-2.0
#define SPECAGG_ALLOW_DEPRECATED
// clang-format off: in the order in which users had them
#include <specagg/backend/cpu/parallel.hpp>
#include <specagg/core.hpp>
#include <specagg/any_row.hpp>
#include <specagg/audit/audit_rule.hpp>
#include <specagg/decode/text.hpp>
#include <specagg/distribution.hpp>
#include <specagg/net/gathered.hpp>
#include <specagg/process.hpp>
#include <specagg/rows.hpp>
#include <specagg/site/aggregate.hpp>
#include <specagg/site/side.hpp>
#include <specagg/site/split.hpp>
#include <specagg/verify/tree_walk.hpp>
// clang-format on

#include <type_traits>

#include "support/catch.hpp"

TEST_CASE("what moved in version 0.3 is found where it was, too") {
  STATIC_REQUIRE(std::is_same_v<specagg::cpu::thread_pool, specagg::thread_pool>);
  STATIC_REQUIRE(specagg::Distribution<specagg::processed_row<float>>);
  STATIC_REQUIRE(std::is_same_v<specagg::rule_audit, specagg::policy_audit>);
  STATIC_REQUIRE(std::is_same_v<specagg::shared_noise, specagg::coupled_noise>);
  CHECK(specagg::with_rule(specagg::any_of<specagg::lossless>(specagg::lossless{}),
                           [](const auto& policy) { return specagg::valid(policy); }));
  CHECK(specagg::keep(0) == specagg::status::ok);
  CHECK(specagg::audit_rule(specagg::lossy{-1}, specagg::token_verifier()).worst.why ==
        specagg::status::invalid_parameter);
}
