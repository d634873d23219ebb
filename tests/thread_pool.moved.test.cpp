// SPDX-License-Identifier: Apache-2.0
#define SPECAGG_ALLOW_DEPRECATED
#include <specagg/backend/cpu/parallel.hpp>
#include <specagg/decode/text.hpp>
#include <specagg/site/side.hpp>

#include <type_traits>

#include "support/catch.hpp"

TEST_CASE("what moved in version 0.3 is found where it was, too") {
  STATIC_REQUIRE(std::is_same_v<specagg::cpu::thread_pool, specagg::thread_pool>);
}
