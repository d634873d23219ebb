// SPDX-License-Identifier: Apache-2.0
#if __has_include(<fmt/format.h>)
#include <specagg/format.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE(
    "statuses and origins are formatted by their names, with the width and alignment of text") {
  CHECK(fmt::format("{}", status::context_full) == "context_full");
  CHECK(fmt::format("[{:>9}]", status::stopped) == "[  stopped]");
  CHECK(fmt::format("{}, {}", origin::accepted, origin::bonus) == "accepted, bonus");
}
#endif
