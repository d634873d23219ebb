// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/stateful.hpp>

#include <specagg/policy/catalogue.hpp>
#include <specagg/policy/phase.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// Its law has no state, but it has a type of this name.
struct no_state {
  struct state {};
};

}  // namespace

TEST_CASE("what is a policy with state, and what its advance() takes") {
  using marks = phase<lossless, lossless>;
  STATIC_REQUIRE((StatefulPolicy<regret_budget> && StatefulPolicy<marks>));
  STATIC_REQUIRE((!StatefulPolicy<lossless> && !StatefulPolicy<no_state>));
  STATIC_REQUIRE((detail::advances_by_token<marks> && !detail::advances_by_token<regret_budget>));
  const std::vector<token_id> open{1};
  CHECK(detail::advanced(marks{{}, {}, open, {}}, {}, 0, 1).is_inside == 1);  // rows are not read
  CHECK((detail::is_state_of(regret_budget{}, {1}) && !detail::is_state_of(regret_budget{}, {-1})));
}
TEST_CASE("the catalogue says which policies have state") {
  std::size_t with = 0, without = 0;
  for_each_in_catalogue<true>([&](const auto& line) {
    STATIC_REQUIRE(StatefulPolicy<typename std::decay_t<decltype(line)>::type>);
    ++with;
  });
  for_each_in_catalogue([&](const auto& line) {
    STATIC_REQUIRE(!StatefulPolicy<typename std::decay_t<decltype(line)>::type>);
    ++without;
  });
  CHECK(with == 2);
  CHECK(with + without == std::tuple_size_v<decltype(std::tuple_cat(catalogue, presets))>);
}
