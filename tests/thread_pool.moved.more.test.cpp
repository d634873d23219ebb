// SPDX-License-Identifier: Apache-2.0
#define SPECAGG_ALLOW_DEPRECATED
// clang-format off: in the order in which users had them
#include <specagg/backend/cpu/parallel.hpp>
#include <specagg/core.hpp>
#include <specagg/any_row.hpp>
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
}
