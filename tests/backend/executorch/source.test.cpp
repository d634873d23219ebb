// SPDX-License-Identifier: Apache-2.0
// Programs that export.py wrote, in the folder SPECAGG_EXECUTORCH_PROGRAMS.
#include <specagg/backend/executorch/source.hpp>

#include <memory>
#include <string>

#include "backend/engine_checks.hpp"

using namespace specagg;
using Module = executorch::extension::Module;
static_assert(LogitSource<executorch_source>);

namespace {

struct program {
  Module module;
  executorch_source source;
  explicit program(const std::string& name, const executorch_options& how = {})
      : module(std::string(SPECAGG_EXECUTORCH_PROGRAMS) + "/" + name + ".pte"),
        source(module, how) {}
};

bool refused(const std::string& part, const std::string& name, const executorch_options& how = {}) {
  return test::is_refused([&] { program opened(name, how); }, part);
}

}  // namespace

TEST_CASE("rows come again after a rollback, of programs of every form") {
  for (const std::string name :
       {"target", "target_last", "target_static", "target_positions", "target_uncached"}) {
    INFO(name);
    program p(name);
    CHECK(p.source.vocab_size() == 17);
    CHECK(p.source.capacity() == (name == "target_uncached" ? 63 : 64));
    test::check_engine(p.source, 1e-5);
  }
  for (const std::string name : {"target_f16", "target_bf16"}) {
    program p(name);
    test::check_engine(p.source, name == "target_f16" ? 2e-3 : 2e-2);
  }
}

TEST_CASE("programs of every form have the same rows, stored in their type") {
  const auto tokens = test::random_tokens(40, 17);
  program whole("target");
  const auto due = test::rows_in_calls_of(40, whole.source, tokens);
  for (const std::string name :
       {"target_last", "target_static", "target_positions", "target_uncached"}) {
    program p(name);
    CHECK(test::difference(test::rows_in_calls_of(7, p.source, tokens), due) < 1e-5);
  }
  for (const std::string name : {"target_f16", "target_bf16"}) {
    program p(name);
    const auto rows = test::rows_in_calls_of(40, p.source, tokens);
    test::check_rounded(rows, due, name == "target_f16" ? 0x1p-11 : 0x1p-8, 1e-5);
  }
}

TEST_CASE("with exact calls a row has the same bits in calls of all sizes") {
  const auto tokens = test::random_tokens(40, 17);
  for (const std::string name : {"target", "target_positions", "target_uncached"})
    for (const std::size_t exact : {1u, 8u, 63u}) {
      if (name == "target_uncached" && exact != 63) continue;  // it takes all of a text
      INFO(name << ", " << exact);
      program p(name, {.exact_calls = exact});
      const std::size_t room = name == "target_uncached" ? 63 : 64 - exact + 1;
      CHECK(p.source.capacity() == room);
      const auto some = std::span(tokens).first(std::min<std::size_t>(room, 40));
      const auto due = test::rows_in_calls_of(1, p.source, some);
      for (const std::size_t most : {2u, 3u, 8u, 40u}) {
        REQUIRE(p.source.rollback(0) == status::ok);
        const auto rows = test::rows_in_calls_of(most, p.source, some);
        CHECK(test::difference(rows, due) == 0);
      }
    }
}

TEST_CASE("texts with drafts are the target's own at temperature 0, and have its law at 1") {
  for (const std::size_t exact : {0u, 4u}) {
    program draft("draft", {.exact_calls = exact}), target("target", {.exact_calls = exact});
    test::check_texts_at_0(draft.source, target.source, 30);
  }
  program recurrent("target", {.goes_back = false}), draft("draft");
  test::check_texts_at_0(draft.source, recurrent.source, 10);
  for (const std::string name : {"target", "target_f16", "target_bf16"}) {
    program target(name);
    test::check_law(draft.source, target.source, name == "target" ? 6'000 : 2'000);
  }
}

TEST_CASE("modules of one loaded program are texts of their own") {
  program alone("target"), first("target");
  Module second(first.module.program());
  executorch_source source(second);
  test::check_texts_apart(alone.source, first.source, source, 0);
}

TEST_CASE("what a program cannot do is refused by name") {
  CHECK(refused("ExecuTorch cannot load it", "absent"));
  CHECK(refused("method backward", "target", {.method = "backward"}));
  CHECK(refused("exact_calls", "target", {.exact_calls = 64}));
  CHECK(refused("exact_calls", "target_last", {.exact_calls = 2}));
  CHECK(refused("capacity", "target", {.capacity = 4, .exact_calls = 5}));
  CHECK(!refused("", "target", {.capacity = 5, .exact_calls = 5}));
  program forgets("target", {.goes_back = false});
  const auto tokens = test::random_tokens(5, 17);
  REQUIRE(forgets.source.extend(tokens, {}) == status::ok);
  CHECK(forgets.source.rollback(3) == status::rollback_refused);
  CHECK(forgets.source.position() == 5);
  CHECK(forgets.source.rollback(0) == status::ok);
  CHECK(forgets.source.position() == 0);
}
