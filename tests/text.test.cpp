// SPDX-License-Identifier: Apache-2.0
#include <specagg/text.hpp>

#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 3;

// A processor that remembers what was pushed, and changes logits by how much that is.
struct counting {
  std::vector<token_id> pushed;
  void push(token_id t) { pushed.push_back(t); }
  void pop() { pushed.pop_back(); }
  void apply(std::span<double> logits) const { logits[0] += double(pushed.size()); }
};

// Says which tokens it holds, and refuses to go back to any place but the first.
struct stubborn : toy_source<double> {
  using toy_source<double>::toy_source;
  std::vector<token_id> held;
  std::span<const token_id> tokens() const { return held; }
  status extend(std::span<const token_id> t, std::span<double> logits) {
    held.insert(held.end(), t.begin(), t.end());
    return toy_source<double>::extend(t, logits);
  }
  status rollback(std::size_t n) {
    if (n != 0) return status::rollback_refused;
    held.clear();
    return toy_source<double>::rollback(0);
  }
};

}  // namespace

TEST_CASE("a text holds as many tokens as its buffer and every model do") {
  std::vector<token_id> buffer(100);
  const toy_source<double> model(V, 1);
  text t{buffer, 0};
  CHECK(detail::ready(t, V, model) == status::invalid_parameter);
  t.size = 1;
  CHECK(detail::ready(t, V, model) == status::ok);
  CHECK(detail::ready(t, V + 1, model) == status::vocabulary_mismatch);
  CHECK(detail::room(t, model) == std::min<std::size_t>(100, model.capacity()));
  t.tokens = t.tokens.first(1);
  CHECK(detail::ready(t, V, model) == status::context_full);
}

TEST_CASE("a text is cut together with its processor and its models") {
  std::vector<token_id> buffer(8);
  toy_source<double> model(V, 1);
  counting processor;
  text t{buffer, 0};
  for (const token_id x : {0, 1, 2, 1}) append(t, x, processor);
  CHECK(model.extend(std::span<const token_id>(buffer).first(4), {}) == status::ok);
  CHECK(truncate(t, 2, processor, model) == status::ok);
  CHECK(t.size == 2);
  CHECK(model.position() == 2);
  CHECK(processor.pushed == std::vector<token_id>{0, 1});
}

TEST_CASE("a model that refuses to go back begins again") {
  stubborn model(V, 1);
  const std::vector<token_id> tokens{0, 1, 2};
  CHECK(model.extend(tokens, {}) == status::ok);
  CHECK(rollback(3, model) == status::ok);
  CHECK(model.position() == 3);
  CHECK(rollback(2, model) == status::ok);
  CHECK(model.position() == 0);
}

TEST_CASE("every scored row is processed for its own prefix") {
  const std::vector<token_id> tokens{0, 1, 2, 1}, other{0, 2};
  stubborn model(V, 1);
  CHECK(model.extend(other, {}) == status::ok);
  counting processor{tokens};
  std::vector<double> rows(3 * V);
  CHECK(score(std::span(tokens), model, processor, std::span(rows)) == status::ok);
  CHECK(model.held == tokens);
  CHECK(processor.pushed == tokens);
  for (std::size_t j = 0; j < 3; ++j) {
    std::vector<double> expected(V);
    model.row(std::span(tokens).first(2 + j), expected);
    expected[0] += double(2 + j);
    CHECK(std::vector(rows.begin() + long(j * V), rows.begin() + long(j * V + V)) == expected);
  }
}
