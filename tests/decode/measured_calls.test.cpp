// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/measured_calls.hpp>

#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "support/catch.hpp"

using namespace specagg;
using plan::call_times;

namespace {

// A model of which a row takes no time. It fails when asked for `fails` tokens.
struct failing : toy_source<float> {
  std::size_t fails = 1000;
  using toy_source<float>::toy_source;
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    return tokens.size() == fails ? status::model_failed
                                  : toy_source<float>::extend(tokens, logits);
  }
};

}  // namespace

TEST_CASE("measured times rise with the rows, of calls that the source has room for") {
  failing source(50, 1, 2, 3, 40);
  const std::vector<token_id> text(8, 1);
  REQUIRE(source.extend(text, {}) == status::ok);
  const std::size_t rows[] = {1, 2, 8, 32, 33};
  const call_times t = measured_calls(source, rows);
  REQUIRE(t.points.size() == 4);  // 8 + 33 tokens are too many
  for (std::size_t i = 0; i < 4; ++i) CHECK(t.points[i].rows == rows[i]);
  CHECK((t(1) > 0 && t(2) >= t(1) && t(8) >= t(2) && t(32) > t(1)));
  CHECK((source.position() == 8 && source.misuses == 0));
  source.fails = 8;
  CHECK(measured_calls(source, rows).points.size() == 2);
  CHECK(measured_calls(source, std::span(rows).first(0)).points.empty());
}
