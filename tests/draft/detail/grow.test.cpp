// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/detail/grow.hpp>

#include <array>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// Wants two likely tokens and a drawn one wherever a node is reached with at least 0.1.
struct plain_growth {
  struct children {
    std::size_t most_likely = 0;
    bool draws = false;
  };
  struct path_record {
    double likely = 0, drawn = 0;
    std::size_t accepted_likely = 0, accepted_drawn = 0;
  };
  void begin() {}
  bool worth_level(double reached) const { return reached >= 0.1; }
  bool worth_node(double reached) const { return reached >= 0.1; }
  double of_likely(double reached, double share) const { return reached * share; }
  double of_drawn(double reached, double rest) const { return reached * rest / 2; }
  children of_node(double, std::span<const double> shares, std::size_t most, bool may_draw) const {
    const std::size_t two = std::min<std::size_t>(shares.size(), 2);
    return {std::min(two, most - may_draw), may_draw};
  }
};

}  // namespace

TEST_CASE(
    "the children of a growing tree are the drawn one, then the most likely, with their shares") {
  const std::array<float, 4> p{0.125f, 0.5f, 0.25f, 0.125f};
  std::array<double, 8> reached{}, shares{};
  std::array<token_id, 3> tokens{};
  detail::growing_tree<plain_growth> tree{{}, reached, shares};
  const auto row = normalise(dense_row<float>(p));
  REQUIRE(row.why() == status::ok);
  const auto propose = [&](proposal kind, std::size_t count) {
    const std::array<token_id, 3> top{1, 2, 0}, greedy{3, 1, 2};
    std::copy_n((kind == proposal::top ? top : greedy).begin(), count, tokens.begin());
    return count;
  };
  tree.begin();
  CHECK(tree.worth_level(0, 1));
  REQUIRE(tree.children_of(0, 1, 3, row, true, tokens, propose) == 3);
  CHECK(std::vector(shares.begin() + 1, shares.begin() + 4) == std::vector{0.25, 0.5, 0.25});
  CHECK(std::vector(reached.begin() + 1, reached.begin() + 4) == std::vector{0.125, 0.5, 0.25});
  CHECK((tree.worth_level(1, 2) && tree.worth_level(1, 4)));
  reached[3] = 0.0625;
  CHECK(tree.children_of(3, 4, 3, row, true, tokens, propose) == 0);
  CHECK_FALSE(tree.worth_level(3, 4));
  // Node 2 was accepted, and has one likely child and a drawn one, 4.
  shares[4] = 0.125;
  shares[5] = 0.375;
  const std::array<std::uint32_t, 5> parents{0, 0, 0, 2, 2};
  const auto path = tree.path_to(2, parents, [](std::size_t n) { return n == 1 || n == 4; });
  CHECK((path.likely == 0.5 + 0.25 + 0.375 && path.drawn == 0.25 + 0.125));
  CHECK((path.accepted_likely == 1 && path.accepted_drawn == 0));
}
