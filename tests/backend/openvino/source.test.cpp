// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/openvino/source.hpp>

#include <string>

#include "backend/engine_checks.hpp"
#include "backend/openvino/models.hpp"

using namespace specagg;
using test::ov_builder;
using test::ov_options;
static_assert(LogitSource<openvino_source>);

namespace {

const openvino_options small{.capacity = ov_builder::positions, .most = 50};

ov::CompiledModel attention(const ov_options& how = {}) {
  return test::compiled(ov_builder(how).attention_model());
}
bool refused(const std::string& part, const std::shared_ptr<ov::Model>& model,
             const openvino_options& how = small) {
  return test::is_refused([&] { openvino_source source(test::compiled(model), how); }, part);
}

}  // namespace

TEST_CASE("rows come again after a rollback, of models of every form") {
  for (const ov_options& how :
       {ov_options{}, ov_options{.stateful = false}, ov_options{.last_row_only = true},
        ov_options{.stateful = false, .last_row_only = true}}) {
    INFO(how.stateful << how.last_row_only);
    openvino_source s(attention(how), small);
    CHECK(s.vocab_size() == ov_builder::V);
    test::check_engine(s, 1e-4);
  }
  for (const auto type : {ov::element::f16, ov::element::bf16}) {
    openvino_source s(attention({.logits = type}), small);
    test::check_engine(s, type == ov::element::f16 ? 2e-2 : 2e-1);
  }
}

TEST_CASE("models of every form have the same rows, stored in their type") {
  const auto tokens = test::random_tokens(40, ov_builder::V);
  openvino_source whole(attention(), small);
  const auto due = test::rows_in_calls_of(40, whole, tokens);
  for (const ov_options& how : {ov_options{.stateful = false}, ov_options{.last_row_only = true}}) {
    openvino_source s(attention(how), small);
    CHECK(test::difference(test::rows_in_calls_of(7, s, tokens), due) < 1e-4);
  }
  for (const auto type : {ov::element::f16, ov::element::bf16}) {
    openvino_source s(attention({.logits = type}), small);
    const auto rows = test::rows_in_calls_of(40, s, tokens);
    // OpenVINO cuts off the lower bits of a float for bf16 in places.
    test::check_rounded(rows, due, type == ov::element::f16 ? 0x1p-11 : 0x1p-7, 1e-4);
  }
}

TEST_CASE("texts with drafts are the target's own at temperature 0, and have its law at 1") {
  for (const bool stateful : {true, false}) {
    openvino_source draft(attention({.seed = 2, .stateful = stateful}), small),
        target(attention({.stateful = stateful}), small);
    test::check_texts_at_0(draft, target, 30);
  }
  openvino_source draft(attention({.seed = 2}), small);
  for (const auto type : {ov::element::f32, ov::element::f16, ov::element::bf16}) {
    openvino_source target(attention({.logits = type}), small);
    test::check_law(draft, target, type == ov::element::f32 ? 6'000 : 2'000);
  }
}

TEST_CASE(
    "a recurrent model is fed the whole text again, also if its state has as many numbers as "
    "there are tokens") {
  for (const std::size_t size : {16u, 5u, 3u}) {
    const auto model = [&](unsigned seed) {
      return test::compiled(ov_builder({.seed = seed}).recurrent_model(size));
    };
    openvino_source s(model(1), small), fresh(model(1), small), draft(model(2), small);
    const auto tokens = test::random_tokens(6, ov_builder::V);
    const auto due = test::rows_in_calls_of(6, fresh, tokens);
    test::rows_in_calls_of(2, s, std::span(tokens).first(5));
    CHECK(s.rollback(3) == status::rollback_refused);
    CHECK(s.position() == 5);
    const auto next = test::rows_in_calls_of(1, s, std::span(tokens).last(1));
    CHECK(test::difference(next, std::span(due).last(ov_builder::V)) < 1e-4);
    test::check_texts_at_0(draft, s, 10);
  }
}

TEST_CASE("a cache of u8 makes rows depend on the calls, and going back does not change it") {
  const auto tokens = test::random_tokens(40, ov_builder::V);
  const auto model = ov_builder({}).attention_model();
  openvino_source exact(test::compiled(model), small),
      rough(test::compiled(model, ov::element::u8), small);
  const auto due = test::rows_in_calls_of(1, exact, tokens);
  const auto alone = test::rows_in_calls_of(1, rough, tokens);
  CHECK(test::difference(alone, due) > 1e-3);
  for (const std::size_t at : {39u, 20u, 3u}) {
    REQUIRE(rough.rollback(at) == status::ok);
    const auto again = test::rows_in_calls_of(1, rough, std::span(tokens).subspan(at));
    CHECK(test::difference(again, std::span(alone).subspan(at * ov_builder::V)) < 1e-4);
  }
  REQUIRE(rough.rollback(0) == status::ok);
  const auto at_once = test::rows_in_calls_of(40, rough, tokens);
  CHECK(test::difference(at_once, alone) > 1e-2);
}

TEST_CASE("sources of one compiled model are texts of their own") {
  const ov::CompiledModel model = attention();
  openvino_source alone(attention(), small), first(model, small), second(model, small);
  test::check_texts_apart(alone, first, second, 1e-4);
}

TEST_CASE("what a model cannot do is refused by name") {
  CHECK(refused("capacity", ov_builder({}).attention_model(), {}));
  CHECK(refused("most", ov_builder({}).attention_model(), {.capacity = 8, .most = 0}));
  const auto renamed = ov_builder({}).attention_model();
  renamed->input("beam_idx").set_names({"cache_position"});
  CHECK(refused("cache_position", renamed));
  CHECK(refused("logits", ov_builder({.logits = ov::element::f64}).attention_model()));
}
