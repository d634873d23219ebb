// SPDX-License-Identifier: Apache-2.0
#include <specagg/token.hpp>

#include <set>
#include <string_view>

#include "support/catch.hpp"

TEST_CASE("every status has a name of its own, and a value that is none has the name unknown") {
  std::set<std::string_view> names;
  for (int s = 0; s <= static_cast<int>(specagg::status::rollback_refused); ++s) {
    names.insert(specagg::name(static_cast<specagg::status>(s)));
  }
  CHECK(names.size() == static_cast<std::size_t>(specagg::status::rollback_refused) + 1);
  CHECK(names.count("unknown") == 0);
  CHECK(specagg::name(static_cast<specagg::status>(255)) == "unknown");
}
