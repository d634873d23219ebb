// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/toy_source.hpp>

#include <vector>

#include "support/catch.hpp"

using namespace specagg;

static_assert(LogitSource<toy_source<double>> && LogitSource<toy_source<float>>);

namespace {

using tokens = std::vector<token_id>;
std::vector<double> row_after(const toy_source<>& model, const tokens& text) {
  std::vector<double> row(model.vocab_size());
  model.row(text, row);
  return row;
}

}  // namespace

TEST_CASE("a toy model's rows depend on the last tokens, `order` of them, and on the seed") {
  const toy_source<> none(5, 1, 0), two(5, 1, 2), other(5, 2, 2);
  CHECK(row_after(none, {1, 2}) == row_after(none, {}));
  CHECK(row_after(two, {4, 1, 2}) == row_after(two, {3, 1, 2}));
  CHECK(row_after(two, {1, 2}) != row_after(two, {2, 1}));
  CHECK(row_after(two, {1, 2}) != row_after(two, {3, 2}));
  CHECK(row_after(two, {2}) != row_after(two, {0, 2}));
  CHECK(row_after(two, {1, 2}) != row_after(other, {1, 2}));
  for (const double x : row_after(toy_source<>(200, 1, 2, 0.5), {1, 2})) CHECK((x >= 0 && x < 0.5));
}
TEST_CASE(
    "a toy model gives the rows after its last tokens, however they were grouped, and forgets what "
    "it must") {
  toy_source<> model(5, 1, 2);
  std::vector<double> rows(10);
  REQUIRE(model.extend(tokens{0, 1, 2, 3}, rows) == status::ok);
  auto due = row_after(model, {0, 1, 2});
  const auto last = row_after(model, {0, 1, 2, 3});
  due.insert(due.end(), last.begin(), last.end());
  CHECK(rows == due);
  REQUIRE(model.rollback(2) == status::ok);
  CHECK(model.position() == 2);
  std::vector<double> row(5);
  REQUIRE(model.extend(tokens{4}, row) == status::ok);
  CHECK(row == row_after(model, {0, 1, 4}));
  CHECK((model.calls == 2 && model.misuses == 0));
}
TEST_CASE(
    "calls that no correct decoder makes are counted, append nothing, and say what is wrong") {
  toy_source<> model(5, 1, 2, 3, 4);
  std::vector<double> rows(10);
  CHECK(model.extend(tokens{1}, rows) == status::invalid_parameter);  // two rows of one token
  CHECK(model.extend(tokens{1}, std::span(rows).first(4)) == status::invalid_parameter);
  CHECK(model.extend(tokens{5}, {}) == status::token_out_of_range);
  CHECK(model.extend(tokens{0, -1}, {}) == status::token_out_of_range);
  CHECK(model.misuses == 4);
  CHECK(model.extend(tokens(5), {}) == status::context_full);  // a decoder may ask
  CHECK((model.misuses == 4 && model.position() == 0 && model.calls == 0));
  CHECK(model.rollback(1) == status::ok);  // forward
  CHECK((model.misuses == 5 && model.position() == 0));
}
