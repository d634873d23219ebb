// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/acceptance_record.hpp>

#include <cmath>
#include <vector>

#include <specagg/random.hpp>

#include "support/catch.hpp"

using namespace specagg;
using plan::acceptance_record;

TEST_CASE("a record counts steps by accepted tokens, and its length is pooled over steps") {
  acceptance_record r;
  CHECK(r.length() == 1);
  CHECK(r.rate() == 0);
  CHECK(r.acceptances().empty());
  for (int i = 0; i < 39; ++i) r.observe(3, 0);
  r.observe(3, 1);
  for (int i = 0; i < 3; ++i) r.observe(3, 3);
  r.observe(0, 0);  // no draft, no step
  // the example of vLLM's pull request 48915
  CHECK(r.accepted == std::vector<double>{39, 1, 0, 3});
  CHECK(r.steps() == 43);
  CHECK(r.accepted_tokens() == 10);
  CHECK(r.drafted == 129);
  CHECK(r.length() == 1.2325581395348837);
  CHECK(r.rate() == 0.07751937984496124);
  const std::vector<double> a = r.acceptances();
  REQUIRE(a.size() == 3);
  CHECK(a[0] == 4. / 43);
  CHECK(a[1] == 3. / 4);
  CHECK(a[2] == 1);
  CHECK(plan::expected_tokens(a) == Approx(r.length()).epsilon(1e-14));
}
TEST_CASE("a sum of records pools their steps, which is not the mean of their lengths") {
  acceptance_record many, one, all;
  for (int i = 0; i < 9; ++i) many.observe(2, 2);
  one.observe(4, 0);
  all.add(many);
  all.add(one);
  CHECK(many.length() == 3);
  CHECK(one.length() == 1);
  CHECK(all.length() == 2.8);
  CHECK(all.drafted == 22);
  CHECK(all.steps() == 10);
}
TEST_CASE("a draft that ended early says nothing of the positions that it had not") {
  // Every position is accepted with probability 0.7, but drafts have 1 to 5 tokens.
  acceptance_record r, blind;
  random_streams random(1);
  const int n = 200'000;
  for (int i = 0; i < n; ++i) {
    const auto u = [&](stream s, int k) {
      return random.uniform({s, std::uint32_t(i), 0, std::uint32_t(k)});
    };
    const std::size_t g = 1 + std::size_t(5 * u(stream::draft, 0));
    std::size_t a = 0;
    while (a < g && u(stream::coin, int(a)) < 0.7) ++a;
    r.observe(g, a);
  }
  blind.accepted = r.accepted;  // as a histogram alone says
  const auto seen = r.acceptances(), as_if = blind.acceptances();
  REQUIRE(seen.size() == 5);
  double reached = n;
  for (std::size_t k = 0; k < 5; ++k) {
    reached *= 0.7 * double(5 - k) / 5;  // at least so many
    CHECK(seen[k] == Approx(0.7).margin(5 * std::sqrt(0.21 / reached)));
  }
  CHECK(as_if[3] < 0.5);
}
TEST_CASE("rows count every outcome of a step with its probability") {
  acceptance_record r;
  r.observe_rows(std::vector{0.5, 0.25});
  r.observe_rows(std::vector{1., 0.75});
  CHECK(r.steps() == 2);
  CHECK(r.accepted == std::vector{0.5, 0.5 * 0.75 + 0.25, 0.125 + 0.75});
  CHECK(r.drafted == 4);
  const auto a = r.acceptances();
  CHECK(a[0] == 0.75);
  CHECK(a[1] == Approx(0.875 / 1.5).epsilon(1e-14));
  CHECK(r.length() == Approx(plan::expected_tokens(a)).epsilon(1e-14));
}
