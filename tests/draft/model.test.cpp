// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/model.hpp>

#include <vector>

#include "decode/toy_text.hpp"

using namespace specagg;

TEST_CASE(
    "a model as a drafter gives its processed rows, one for each position, and forgets what is "
    "rolled back") {
  toy_source<double> source(vocabulary, 1);
  std::vector<double> logits(3 * vocabulary);
  const sampling how{0.5, 2};
  const penalty_options penalty{.repetition = 1.7};
  model_drafter drafter(source, std::span(logits), how);
  static_assert(Drafter<model_drafter<toy_source<double>>, penalties>);
  penalty_memory memory;
  auto processor = memory.with(penalty);
  std::vector<token_id> tokens{0, 2};
  for (const token_id t : tokens) (void)processor.push(t);
  std::array<normal_form<processed_row<double>>, 3> rows;
  for (std::size_t j = 0; j < 3; ++j) {
    double confidence = -1;
    REQUIRE(drafter.next({tokens, j, j > 0}, processor, rows[j], confidence) == status::ok);
    CHECK(drafter.position() == tokens.size());
    if (j == 0) CHECK(confidence == 0);
    else CHECK(confidence == rows[j].largest_confidence());
    tokens.push_back(1);
    (void)processor.push(1);
  }
  for (std::size_t j = 0; j < 3; ++j) {  // all are readable
    const auto due = probabilities(source, {tokens.begin(), tokens.begin() + std::ptrdiff_t(2 + j)},
                                   how, penalty);
    for (std::size_t v = 0; v < vocabulary; ++v) CHECK(rows[j][v] == Approx(due[v]).epsilon(1e-12));
  }
  REQUIRE(drafter.rollback(2) == status::ok);
  CHECK(source.position() == 2);
  CHECK(source.misuses == 0);
}
TEST_CASE(
    "a drafting model without room in its context or in its memory has no row, and says which") {
  toy_source<double> source(vocabulary, 1, 2, 3, 2);
  std::vector<double> logits(2 * vocabulary);
  model_drafter drafter(source, std::span(logits));
  no_processor none;
  normal_form<processed_row<double>> row;
  double confidence;
  const std::vector<token_id> tokens{0, 1, 2};
  CHECK(drafter.next({tokens, 0}, none, row, confidence) == status::context_full);
  CHECK(drafter.next({std::span(tokens).first(2), 2}, none, row, confidence) ==
        status::invalid_parameter);
  CHECK(drafter.next({std::span(tokens).first(2), 1}, none, row, confidence) == status::ok);
}
