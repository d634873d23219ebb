// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/verify.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("a draft ends before its first padding and behind its first end-of-text token") {
  const std::vector<token_id> y{5, 2, 7, no_token, 7};
  CHECK(draft{}.size() == 0);
  CHECK(draft{y}.size() == 3);
  CHECK(draft{y, 0, 2}.size() == 2);
  CHECK(draft{y, 0, 7}.size() == 3);
  CHECK(draft{y, 0, 9}.size() == 3);
  const draft ended{y, 0, 2};
  CHECK((!ended.ends_text(0) && !ended.ends_text(1) && ended.ends_text(2)));
}
TEST_CASE("origins have names") {
  CHECK(name(origin::accepted) == std::string("accepted"));
  CHECK(name(origin::residual) == std::string("residual"));
  CHECK(name(origin::bonus) == std::string("bonus"));
}
TEST_CASE(
    "expected tokens of a round: 1, and each position as often as all before it are accepted") {
  CHECK(expected_tokens({}) == 1);
  const std::vector<draft_acceptance> three{{0.5, 0.25}, {0.5, 1}, {0.75, 0.5}};
  CHECK(expected_tokens(three) == 1 + 0.5 + 0.25 * 0.5 + 0.25 * 1 * 0.75);
  const std::vector<draft_acceptance> sure(7, {1, 1}), never(7);
  CHECK(expected_tokens(sure) == 8);
  CHECK(expected_tokens(never) == 1);
}
TEST_CASE("scratch has room for the block sums of a row and for the draft") {
  CHECK(verify_scratch(1) == 2);
  CHECK(verify_scratch(1024) == 2);
  CHECK(verify_scratch(1025, 3) == 6);
  CHECK(verify_scratch(128256, 4) == 126 + 4 + 1);
}
TEST_CASE("a token is foreign outside the vocabulary, and where its row gives it nothing") {
  CHECK(detail::foreign(0, 3, 0.5) == status::ok);
  CHECK(detail::foreign(2, 3, 0) == status::draft_not_in_support);
  CHECK(detail::foreign(3, 3, 0.5) == status::token_out_of_range);
  CHECK(detail::foreign(-2, 3, 0.5) == status::token_out_of_range);
}
TEST_CASE(
    "token j of a draft is drawn with the number of the draft's stream at position start + j of "
    "its round") {
  const std::vector<float> logits(500, 1), invalid(500, std::nanf(""));
  std::vector<double> scratch(block_count(500));
  random_streams random(3, 4);
  softmax_row<float> row(logits);
  for (const std::uint32_t start : {0u, 17u})
    for (std::uint32_t j = 0; j < 4; ++j) {
      const token_id y = draw_draft(row, start, j, random, scratch);
      CHECK(y == draw(row, {stream::draft, start + j, start}, random, scratch));
      // normalised there
      CHECK(y == draw_draft(softmax_row<float>(logits), start, j, random, scratch));
    }
  CHECK(draw_draft(row, 0, 0, random, {}) == no_token);
  CHECK(draw_draft(softmax_row<float>(invalid), 0, 0, random, scratch) == no_token);
}
