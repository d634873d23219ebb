// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/mapped_row.hpp>

#include <random>

#include <specagg/draft/vocabulary_map.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using tokens = std::vector<token_id>;

TEST_CASE(
    "a mapped row is the softmax of V logits masked outside the map, with every filter, block by "
    "block") {
  static_assert(Row<mapped_row<float>> && Row<mapped_row<bf16>>);
  std::mt19937 random(1);
  for (const std::size_t v : {1u, 5u, 17u, 1024u, 1025u, 5000u})
    for (const double share : {0.01, 0.3, 1.0})
      for (const sampling s : {sampling{}, sampling{0.6}, sampling{1, 3}, sampling{1.3, 0, 0.8},
                               sampling{1, 0, 1, 0.2}, sampling{0}}) {
        tokens ids;
        std::vector<double> logits, all(v, -std::numeric_limits<double>::infinity());
        for (std::size_t t = 0; t < v; ++t)
          if (double(random() % 1000) < 1000 * share || (t + 1 == v && ids.empty())) {
            ids.push_back(token_id(t));
            logits.push_back(all[t] = double(random() % 20) / 4);  // with ties
          }
        const auto row = normalise(mapped_row<double>(ids, logits, v, s), true);
        const auto due = normalise(processed_row<double>(all, s), true);
        REQUIRE(row.why() == status::ok);
        REQUIRE(due.why() == status::ok);
        REQUIRE(row.size() == v);
        CHECK(row.largest_confidence() == Approx(due.largest_confidence()).epsilon(1e-14));
        const row_pair<true, normal_form<mapped_row<double>>, normal_form<processed_row<double>>>
            both(row, due);
        CHECK(both.sum([](auto at) { return at.q; }) == Approx(1).epsilon(1e-13));
        CHECK(both.sum([](auto at) { return max(at.q - at.p, at.p - at.q); }) < 1e-13);
        CHECK(both.sum([](auto at) {
          return max(at.confidence_q - at.confidence_p, at.confidence_p - at.confidence_q);
        }) < 1e-13);
        for (std::size_t t = 0; t < v; t += 1 + v / 50)
          CHECK(row[t] == Approx(due[t]).epsilon(1e-13).margin(1e-300));
      }
}
TEST_CASE("q' is q over the mass Z of the mapped tokens") {
  const tokens ids{1, 4};
  // the other half is on tokens without a place
  const std::vector<double> mapped{std::log(0.2), std::log(0.3)};
  const auto row = normalise(mapped_row<double>(ids, mapped, 6));
  REQUIRE(row.why() == status::ok);
  const double due[] = {0, 0.4, 0, 0, 0.6, 0};
  for (std::size_t v = 0; v < 6; ++v) CHECK(row[v] == Approx(due[v]).epsilon(1e-14).margin(0));
}
TEST_CASE("a mapped row says what is wrong with it") {
  const tokens ids{1, 4};
  const std::vector<double> logits{1, 2, 3};
  CHECK(normalise(mapped_row<double>()).why() == status::invalid_row);
  CHECK(normalise(mapped_row<double>(ids, logits, 6)).why() == status::vocabulary_mismatch);
  CHECK(normalise(mapped_row<double>(ids, std::span(logits).first(2), 4)).why() ==
        status::vocabulary_mismatch);
  CHECK(normalise(mapped_row<double>(ids, std::span(logits).first(2), 6, {.temperature = -1}))
            .why() == status::invalid_parameter);
  std::vector<double> bad{1, std::numeric_limits<double>::quiet_NaN()};
  CHECK(normalise(mapped_row<double>(ids, bad, 6)).why() == status::invalid_row);
  bad.assign(2, -std::numeric_limits<double>::infinity());
  CHECK(normalise(mapped_row<double>(ids, bad, 6)).why() == status::invalid_row);
}
