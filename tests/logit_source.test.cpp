// SPDX-License-Identifier: Apache-2.0
#include <specagg/logit_source.hpp>

#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// Knows how many tokens it was given, and refuses what does not fit.
struct counter {
  using value_type = float;
  std::size_t size = 0;
  std::size_t vocab_size() const { return 3; }
  std::size_t capacity() const { return 100; }
  std::size_t position() const { return size; }
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (size + tokens.size() > capacity()) return status::context_full;
    size += tokens.size();
    for (float& x : logits) x = float(size);
    return status::ok;
  }
  status rollback(std::size_t position) {
    size = position;
    return status::ok;
  }
};
struct forgets_nothing {
  using value_type = float;
  std::size_t vocab_size() const { return 3; }
  std::size_t capacity() const { return 100; }
  std::size_t position() const { return 0; }
  status extend(std::span<const token_id>, std::span<float>) { return status::ok; }
};

static_assert(LogitSource<counter> && LogitSource<metered<counter>> &&
              !LogitSource<forgets_nothing>);

}  // namespace

TEST_CASE(
    "a metered model is the model, and counts calls, tokens and time by the tokens of a call") {
  counter model;
  metered<counter> meter(model);
  const std::vector<token_id> tokens(100);
  std::vector<float> row(3);
  CHECK((meter.vocab_size() == 3 && meter.capacity() == 100));
  CHECK(meter.extend(std::span(tokens).first(1), row) == status::ok);
  CHECK(row == std::vector<float>(3, 1));
  CHECK(meter.extend(std::span(tokens).first(2), {}) == status::ok);
  CHECK(meter.extend(std::span(tokens).first(1), row) == status::ok);
  CHECK((meter.position() == 4 && model.size == 4));
  CHECK(meter.rollback(0) == status::ok);
  CHECK(meter.extend(std::span(tokens).first(63), {}) == status::ok);
  CHECK(meter.rollback(0) == status::ok);
  CHECK(meter.extend(tokens, {}) == status::ok);
  // a call, all the same
  CHECK(meter.extend(std::span(tokens).first(1), row) == status::context_full);
  CHECK((meter.calls == 6 && meter.tokens_in == 168));
  CHECK((meter.calls_of[1] == 3 && meter.calls_of[2] == 1 && meter.calls_of[63] == 2));
  double seconds = 0;
  for (std::size_t n = 0; n <= meter.most; ++n) {
    seconds += meter.seconds_of[n];
    CHECK(double(meter.calls_of[n]) * meter.fastest_of[n] <= meter.seconds_of[n] * (1 + 1e-12));
  }
  CHECK(seconds == Approx(meter.seconds).epsilon(1e-12));
}
