// SPDX-License-Identifier: Apache-2.0
#include <specagg/token.hpp>

#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "support/catch.hpp"

TEST_CASE("every status has a name of its own, and a value that is none has the name unknown") {
  std::set<std::string_view> names;
  for (int s = 0; s <= static_cast<int>(specagg::status::rollback_refused); ++s) {
    names.insert(specagg::name(static_cast<specagg::status>(s)));
  }
  CHECK(names.size() == static_cast<std::size_t>(specagg::status::rollback_refused) + 1);
  CHECK(names.count("unknown") == 0);
  CHECK(std::string_view(specagg::name(static_cast<specagg::status>(255))) == "unknown");
}

TEST_CASE("a text ends with no token, with one, or with any of several") {
  using specagg::end_tokens;
  CHECK_FALSE(end_tokens().contains(specagg::no_token));
  CHECK_FALSE(end_tokens().contains(0));
  CHECK(end_tokens(3).contains(3));
  CHECK_FALSE(end_tokens(3).contains(2));
  const std::vector<specagg::token_id> ids{5, 9};
  const end_tokens several = ids;
  CHECK((several.contains(5) && several.contains(9)));
  CHECK_FALSE((several.contains(0) || several.contains(specagg::no_token)));
  STATIC_REQUIRE(std::is_constructible_v<end_tokens, const std::array<specagg::token_id, 2>&>);
  // would dangle
  STATIC_REQUIRE_FALSE(std::is_constructible_v<end_tokens, std::vector<specagg::token_id>>);
}
