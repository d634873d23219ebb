// SPDX-License-Identifier: Apache-2.0
// A source over an engine that is written here: what adapters share needs no library.
#include <specagg/backend/engine_source.hpp>

#include <cstring>

#include "backend/engine_checks.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 11;

// A row depends on all tokens before it. The engine checks how it is called.
struct toy {
  unsigned seed = 1;
  std::size_t most_tokens = 5;
  bool all = true;  // rows of all tokens
  bool goes_back = true;
  int* fails_in = nullptr;  // the call that fails, counted down; then the engine cannot go back
  std::vector<token_id> held = {};

  std::size_t vocab_size() const { return V; }
  std::size_t capacity() const { return 40; }
  std::size_t most() const { return most_tokens; }
  bool rows_of_all() const { return all; }
  static void row(std::span<const token_id> text, unsigned seed, std::span<float> to) {
    std::uint32_t hash = seed;
    for (const token_id t : text) hash = (hash ^ std::uint32_t(t + 1)) * 2654435761u + 12345;
    for (float& x : to) x = float((hash = hash * 1664525u + 1013904223u) >> 24) / 100;
  }
  status call(std::span<const token_id> text, std::size_t from, std::span<float> rows) {
    REQUIRE(from == held.size());
    REQUIRE(std::ranges::equal(text.first(from), held));
    const std::size_t n = text.size() - from, given = rows.size() / V;
    REQUIRE((n >= 1 && n <= most_tokens && given <= (all ? n : 1)));
    if (fails_in && (*fails_in)-- == 0) return status::model_failed;
    held.assign(text.begin(), text.end());
    for (std::size_t j = 0; j < given; ++j)
      row(text.first(text.size() - given + j + 1), seed, rows.subspan(j * V, V));
    return status::ok;
  }
  status cut(std::size_t position) {
    if (position > 0 && !goes_back) return status::rollback_refused;
    REQUIRE(position <= held.size());
    held.resize(position);
    return status::ok;
  }
};
using toy_engine_source = engine_source<toy>;
static_assert(LogitSource<toy_engine_source>);

}  // namespace

TEST_CASE("an engine's rows come again after a rollback, and what is refused appends nothing") {
  for (const std::size_t most : {1u, 5u, 100u})
    for (const bool all : {true, false}) {
      toy_engine_source s(toy{.most_tokens = most, .all = all});
      test::check_engine(s, 0);
    }
}

TEST_CASE("texts with drafts are the target's own at temperature 0, and have its law at 1") {
  for (const bool goes_back : {true, false}) {
    toy_engine_source draft(toy{.seed = 2, .goes_back = goes_back}),
        target(toy{.goes_back = goes_back});
    test::check_texts_at_0(draft, target, 20);
  }
  toy_engine_source draft(toy{.seed = 2}), target(toy{});
  test::check_law(draft, target, 20'000);
}

TEST_CASE("a call that fails in the middle leaves the text as it was, or empty") {
  const auto tokens = test::random_tokens(12, V);
  for (const bool goes_back : {true, false})
    for (int call = 0; call < 3; ++call) {
      int fails_in = 1000;
      toy_engine_source s(toy{.goes_back = goes_back, .fails_in = &fails_in});
      REQUIRE(s.extend(std::span(tokens).first(4), {}) == status::ok);
      fails_in = call;
      CHECK(s.extend(tokens, {}) == status::model_failed);
      const std::size_t left = goes_back ? 4 : 0;
      CHECK(s.position() == left);
      CHECK(std::ranges::equal(s.tokens(), std::span(tokens).first(left)));
      fails_in = 1000;
      REQUIRE(s.extend(std::span(tokens).subspan(left), {}) == status::ok);
      CHECK(std::ranges::equal(s.tokens(), tokens));
    }
}

TEST_CASE("logits of 16 bits are copied without error") {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint16_t(i);
  std::vector<float> half(all.size()), upper(all.size()), same(all.size());
  detail::copy_logits<f16>(all.data(), half);
  detail::copy_logits<bf16>(all.data(), upper);
  CHECK((half[0x3c00] == 1 && half[0xc000] == -2 && half[1] == 0x1p-24f && half[0x7bff] == 65504));
  CHECK((upper[0x3f80] == 1 && upper[0xc000] == -2 && upper[1] == 0x1p-133f));
  CHECK((std::isinf(half[0x7c00]) && std::isnan(half[0x7c01]) && std::isinf(upper[0x7f80])));
  detail::copy_logits<float>(half.data(), same);
  CHECK(std::memcmp(same.data(), half.data(), same.size() * sizeof(float)) == 0);
}
