// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/catalogue.hpp>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// f(line) for all lines: of policies without state, and with it.
template <class F>
void for_each_line(F&& f) {
  for_each_in_catalogue(f);
  for_each_in_catalogue<true>(f);
}
// A policy with one of its parameters set.
template <class Line, class Parameter>
auto with(const Line& line, const Parameter& one, double x) {
  auto policy = line.values[0];
  policy.*one.number = x;
  return policy;
}

}  // namespace

TEST_CASE("every name stands in the catalogue once, in small letters, digits and hyphens") {
  std::set<std::string> names;
  std::size_t lines = 0;
  for_each_line([&](const auto& line) {
    ++lines;
    names.insert(line.name);
    CHECK(std::string(line.name).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") ==
          std::string::npos);
    CHECK(std::string(line.law) != "");
    std::set<std::string> parameters;
    for (const auto& one : line.parameters) {
      parameters.insert(one.name);
      CHECK((one.number == nullptr) != (one.flag == nullptr));
    }
    CHECK(parameters.size() == line.parameters.size());
    CHECK((line.parameters.empty() || line.values.size() > 1));  // something to try it with
  });
  CHECK(names.size() == lines);
  std::size_t without_state = 0;
  std::apply([&](const auto&... line) { ((without_state += !line.has_state), ...); }, catalogue);
  CHECK(std::variant_size_v<decltype(any_catalogued::chosen)> == without_state);
}
TEST_CASE(
    "the policies and the values of the catalogue are valid, and laws of floats and doubles") {
  for_each_in_catalogue([](const auto& line) {
    using policy = typename std::decay_t<decltype(line)>::type;
    STATIC_REQUIRE(TargetPolicy<policy, float>);
    STATIC_REQUIRE(TargetPolicy<policy, double>);
    INFO(line.name);
    for (const policy& r : line.values) CHECK(valid(r));
    CHECK(any_catalogued(line.values[0]).valid());
  });
}
TEST_CASE("a policy's valid() and the ranges of the catalogue are of one mind") {
  constexpr double inf = infinity, nan = std::numeric_limits<double>::quiet_NaN();
  std::size_t bounds = 0, anything = 0;
  for_each_line([&](const auto& line) {
    for (const auto& one : line.parameters) {
      if (!one.number) continue;
      INFO(line.name << ": " << one.name);
      CHECK(line.values[0].*one.number >= one.low);
      CHECK(line.values[0].*one.number <= one.high);
      CHECK(!valid(with(line, one, nan)));
      CHECK(!valid(with(line, one, -inf)));
      if (one.low > -inf) {
        CHECK(valid(with(line, one, one.low)));
        CHECK(!valid(with(line, one, one.low - 0.001)));
      } else {
        CHECK(valid(with(line, one, -1000)));
      }
      if (one.high < inf) {
        CHECK(valid(with(line, one, one.high)) == !one.open);
        CHECK(!valid(with(line, one, one.high + 0.001)));
      } else {
        CHECK(valid(with(line, one, 1000)));
      }
      (one.low > -inf ? bounds : anything) += 1;
    }
  });
  CHECK((bounds > 5 && anything > 10));
}
TEST_CASE("lenient and realign are lossy and geometric with the parameters that their names say") {
  CHECK((lenient(0.3).alpha == 0.3 && lenient(0.3).beta == 1));
  CHECK(realign(1.5).lambda == 1.5);
}
