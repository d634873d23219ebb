// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/row_without.hpp>

#include <vector>

#include <specagg/rows/process.hpp>

#include "support/catch.hpp"
#include "verify/random_rows.hpp"

using namespace specagg;

namespace {
struct counted_row : dense_row<double> {  // counts the blocks that are read
  std::size_t* blocks = nullptr;
  counted_row(std::span<const double> x, std::size_t& n)
      : dense_row<double>(x.data(), x.size()), blocks(&n) {}
  status why() const { return status::ok; }
  auto open(std::size_t begin, std::size_t count) const {
    ++*blocks;
    return dense_row<double>::open({}, begin, count);
  }
};
}  // namespace

TEST_CASE("a row without some tokens: they have probability 0, the others are renormalised") {
  for (const std::size_t V :
       {std::size_t(3), std::size_t(17), std::size_t(1024), std::size_t(2500)}) {
    const auto x = random_row(std::uint32_t(V), V);
    for (const std::vector<token_id>& left_out : {std::vector<token_id>{}, std::vector<token_id>{0},
                                                  std::vector<token_id>{token_id(V) - 1, 1, 1}}) {
      const auto row = normalise(row_without(normalise(dense_row<double>(x)), left_out));
      REQUIRE(row.why() == status::ok);
      REQUIRE(row.size() == V);
      double rest = 0, sum = 0;
      const auto out = [&](std::size_t v) {
        return std::find(left_out.begin(), left_out.end(), token_id(v)) != left_out.end();
      };
      for (std::size_t v = 0; v < V; ++v) rest += out(v) ? 0 : x[v];
      for (std::size_t v = 0; v < V; ++v) {
        sum += row[v];
        if (out(v)) REQUIRE(row[v] == 0);
        else REQUIRE(row[v] == Approx(x[v] / rest).epsilon(1e-13));
      }
      CHECK(sum == Approx(1).epsilon(1e-12));
    }
  }
}
TEST_CASE("a row of which nothing is left, and an invalid one") {
  const std::vector<double> x{1, 0, 0};
  const std::vector<token_id> only{0}, other{1};
  const auto all = normalise(dense_row<double>(x));
  CHECK(normalise(row_without(all, only)).why() == status::invalid_row);
  CHECK(normalise(row_without(all, other)).why() == status::ok);
  const std::vector<float> masked(3, -std::numeric_limits<float>::infinity());
  CHECK(normalise(row_without(normalise(processed_row<float>(masked)), other)).why() ==
        status::invalid_row);
}
TEST_CASE("what is almost nothing is renormalised, not lost to cancellation") {
  const std::vector<float> logits{40, 0, 1};
  const std::vector<token_id> top{0};
  const auto row = normalise(row_without(normalise(softmax_row<float>(logits), true), top), true);
  REQUIRE(row.why() == status::ok);
  CHECK(double(row[1]) == Approx(1 / (1 + std::exp(1.))).epsilon(1e-6));
  CHECK(row.open(0, 3).confidence<vec<float, 1>>(0, 1).v == 0);
  CHECK(row.open(0, 3).confidence<vec<float, 1>>(1, 1).v > 0);
}
TEST_CASE("a row that was normalised, and its copies, cost no pass again") {
  const auto x = random_row(7, 3000);
  const std::vector<token_id> left_out{2, 999};
  std::size_t blocks = 0;
  const auto row = normalise(row_without(counted_row(x, blocks), left_out));
  REQUIRE(row.why() == status::ok);
  CHECK(blocks > 0);
  const double third = row[3];
  const auto copy = row;
  blocks = 0;
  CHECK(normalise(copy).why() == status::ok);
  CHECK(normalise(row, true).why() == status::ok);
  CHECK(blocks == 0);
  CHECK(copy[3] == third);
}
