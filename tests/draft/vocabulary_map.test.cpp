// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/vocabulary_map.hpp>

#include "draft/toy_vocabularies.hpp"
#include "support/allocations.hpp"

using namespace specagg;

TEST_CASE("a map made from data has the given pairs, in the order of the target's tokens") {
  vocabulary_map map;
  REQUIRE(make_vocabulary_map(tokens{7, no_token, 2, 9}, 10, map) == status::ok);
  CHECK((map.draft_size() == 4 && map.target_size() == 10 && map.size() == 3));
  CHECK((map.to(0) == 7 && map.to(1) == no_token && map.to(2) == 2 && map.to(3) == 9));
  CHECK((map.to(-1) == no_token && map.to(4) == no_token));
  CHECK((map.from(7) == 0 && map.from(2) == 2 && map.from(9) == 3));
  CHECK((map.from(0) == no_token && map.from(-1) == no_token && map.from(10) == no_token &&
         map.from(8) == no_token));
  CHECK(std::ranges::equal(map.targets(), tokens{2, 7, 9}));
  CHECK(std::ranges::equal(map.drafts(), tokens{2, 0, 3}));
}
TEST_CASE(
    "a map takes memory for the draft's tokens, for any size that the target is said to have") {
  constexpr std::size_t most = std::numeric_limits<token_id>::max();
  vocabulary_map map;
  const std::size_t before = allocated_bytes;
  REQUIRE(make_vocabulary_map(tokens{7, no_token, token_id(most) - 1}, most, map) == status::ok);
  CHECK(allocated_bytes - before < 1000);
  CHECK((map.target_size() == most && map.size() == 2 && map.from(token_id(most) - 1) == 2));
}
TEST_CASE(
    "a map with ids out of range or with two tokens mapped to one is refused, and the old one "
    "stays") {
  vocabulary_map map;
  REQUIRE(make_vocabulary_map(tokens{1}, 2, map) == status::ok);
  CHECK(make_vocabulary_map(tokens{0, 5}, 5, map) == status::token_out_of_range);
  CHECK(make_vocabulary_map(tokens{0, -2}, 5, map) == status::token_out_of_range);
  CHECK(make_vocabulary_map(tokens{0}, 0, map) == status::token_out_of_range);
  CHECK(make_vocabulary_map(tokens{3, no_token, 3}, 5, map) == status::invalid_parameter);
  CHECK((map.size() == 1 && map.to(0) == 1 && map.target_size() == 2));
  CHECK(
      (make_vocabulary_map({}, 0, map) == status::ok && map.size() == 0 && map.draft_size() == 0));
}
TEST_CASE(
    "tokens of equal bytes are mapped once each, special ones by name, never special with text or "
    "spare ones") {
  CHECK(toy_map.target_size() == 4);
  const token_id due[] = {1, 3, 0, no_token, no_token, no_token, no_token, no_token};
  for (token_id d = 0; d < 8; ++d) CHECK(toy_map.to(d) == due[d]);
  CHECK(toy_map.size() == 3);
  // A name in the text is not the special token, and bytes of none are no token of a text.
  CHECK(map_of_equal_tokens(texts{{"<end>"}, {""}}, of_target).size() == 0);
  CHECK(map_of_equal_tokens(texts{{"a", kind::special}}, of_target).size() == 0);
  CHECK(map_of_equal_tokens(texts{{""}}, texts{{""}}).size() == 0);
  // Duplicates of the target: the one that is not spare, else the lowest.
  CHECK(map_of_equal_tokens(texts{{"x"}}, texts{{"x", kind::spare}, {"x"}, {"x"}}).to(0) == 1);
}
TEST_CASE(
    "mapped logits are the draft's at their places and masked elsewhere. Z is the mass that they "
    "keep") {
  const std::vector<double> logits{0.5, -1, 2, 3, 1, 0, -2, 0.25};
  std::vector<double> row(4, 7);
  CHECK(map_logits<double>(toy_map, logits, row));
  CHECK((row[0] == 2 && row[1] == 0.5 && row[3] == -1));
  CHECK(is_masked(row[2]));
  double all = 0, kept = 0;
  for (std::size_t d = 0; d < 8; ++d)
    (toy_map.to(token_id(d)) == no_token ? all : kept) += std::exp(logits[d]);
  CHECK(mass_kept<double>(logits, row) == Approx(kept / (all + kept)).epsilon(1e-14));
  constexpr double masked = -std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> none(8, 1);
  for (const token_id d : toy_map.drafts()) none[std::size_t(d)] = masked;
  CHECK_FALSE(map_logits<double>(toy_map, none, row));
  none[2] = nan;
  CHECK(map_logits<double>(toy_map, none, row));           // the row must be found invalid
  std::vector<bf16> small(8, bf16{0x3f80}), small_row(4);  // 1
  CHECK(map_logits<bf16>(toy_map, small, small_row));
  CHECK(is_masked(small_row[2]));
  CHECK_FALSE(is_masked(small_row[0]));
}
