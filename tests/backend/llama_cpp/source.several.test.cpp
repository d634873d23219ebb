// SPDX-License-Identifier: Apache-2.0
// Several sequences of one context in one call of libllama.
#include <specagg/backend/llama_cpp/source.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "backend/cpu/models.hpp"
#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using test::loaded;
using test::row;
using test::same_bits;
using test::small_context;
using test::some_tokens;

TEST_CASE(
    "several sequences in one call have the rows of each alone within 0.02; a failure changes "
    "nothing") {
  auto how = small_context(512, 3);
  loaded model(test::bundled_file("target"), how);
  using source = llama_cpp::source;
  source& a = model.source;
  source b(model.context.get(), {.sequence = 1}), c(model.context.get(), {.sequence = 2});
  const std::size_t V = a.vocab_size();
  const auto text = some_tokens(40, V, 5), other = some_tokens(40, V, 6);
  const auto expected = test::rows_of(a, text), of_other = test::rows_of(b, other);
  REQUIRE(a.rollback(0) == status::ok);
  REQUIRE(b.rollback(0) == status::ok);
  std::vector<float> first(2 * V), second(V);
  const auto of = [](const std::vector<token_id>& t, std::size_t from, std::size_t n) {
    return std::span(t).subspan(from, n);
  };
  REQUIRE(source::extend(std::vector<source::addition>{{&a, of(text, 0, 20), {}},
                                                       {&b, of(other, 0, 7), second},
                                                       {&c, of(text, 0, 30), first}}) ==
          status::ok);
  CHECK(a.position() == 20);
  CHECK(b.position() == 7);
  CHECK(c.position() == 30);
  CHECK(test::difference(second, row(of_other, 6, V)) < 0.02);
  CHECK(test::difference(first, std::span(expected).subspan(28 * V, 2 * V)) < 0.02);
  // in another order, from where each stands
  REQUIRE(source::extend(std::vector<source::addition>{
              {&b, of(other, 7, 3), second}, {&a, of(text, 20, 5), first}}) == status::ok);
  CHECK(test::difference(second, row(of_other, 9, V)) < 0.02);
  CHECK(test::difference(first, std::span(expected).subspan(23 * V, 2 * V)) < 0.02);

  const auto refused = [&](std::vector<source::addition> all, status why) {
    CHECK(source::extend(all) == why);
    CHECK(a.position() == 25);
    CHECK(b.position() == 10);
    CHECK(c.position() == 30);
  };
  // twice
  refused({{&a, of(text, 25, 1), {}}, {&a, of(text, 26, 1), {}}}, status::invalid_parameter);
  // 2 rows of 1
  refused({{&b, of(other, 10, 1), second}, {&a, of(text, 25, 1), first}},
          status::invalid_parameter);
  const auto many = some_tokens(100, V, 7);
  // n_batch is 128
  refused({{&a, of(many, 0, 100), {}}, {&b, of(many, 0, 29), {}}}, status::invalid_parameter);
  const std::vector<token_id> wrong{token_id(V)};
  refused({{&a, of(text, 25, 1), {}}, {&b, wrong, {}}}, status::token_out_of_range);
  loaded another(test::bundled_file("target"));
  refused({{&a, of(text, 25, 1), {}}, {&another.source, of(text, 0, 1), {}}},
          status::invalid_parameter);
  std::atomic<bool> stop = true;
  a.stop_when(&stop);
  refused({{&a, of(text, 25, 1), {}}, {&b, of(other, 10, 1), {}}}, status::stopped);
  a.stop_when(nullptr);
  // libllama has no cell left: 512 in all, of which 65 are taken
  for (int i = 0; i < 4; ++i) REQUIRE(c.extend(of(many, 0, 100), {}) == status::ok);
  CHECK(source::extend(std::vector<source::addition>{
            {&a, of(many, 0, 24), {}}, {&b, of(many, 0, 24), {}}}) == status::context_full);
  CHECK(a.position() == 25);
  CHECK(b.position() == 10);
  REQUIRE(c.rollback(30) == status::ok);
  REQUIRE(b.extend(of(many, 0, 3), {}) == status::ok);  // with as many tokens as a call has
  REQUIRE(b.rollback(10) == status::ok);
  REQUIRE(source::extend(std::vector<source::addition>{{&a, of(many, 0, 28), {}},
                                                       {&c, of(many, 0, 100), {}}}) == status::ok);
  REQUIRE(a.rollback(25) == status::ok);
  REQUIRE(c.rollback(30) == status::ok);
  // all go on as if nothing had been refused
  REQUIRE(source::extend(std::vector<source::addition>{
              {&a, of(text, 25, 1), second}, {&c, of(text, 30, 2), first}}) == status::ok);
  CHECK(test::difference(second, row(expected, 25, V)) < 0.02);
  CHECK(test::difference(first, std::span(expected).subspan(30 * V, 2 * V)) < 0.02);
}

TEST_CASE(
    "several sequences in one call, each with a buffer of its own, have the rows of each alone "
    "within 0.02") {
  auto how = small_context(1024, 4);
  how.kv_unified = false;
  loaded model(test::bundled_file("target"), how);
  using source = llama_cpp::source;
  source b(model.context.get(), {.sequence = 1}), c(model.context.get(), {.sequence = 2}),
      d(model.context.get(), {.sequence = 3});
  const std::vector<source*> all{&model.source, &b, &c, &d};
  const std::size_t V = b.vocab_size();
  CHECK(b.capacity() == 256);
  std::vector<std::vector<token_id>> texts;
  std::vector<std::vector<float>> expected, rows(4, std::vector<float>(5 * V));
  for (unsigned i = 0; i < 4; ++i) {
    texts.push_back(some_tokens(40, V, i));
    expected.push_back(test::rows_of(*all[i], texts[i]));
    REQUIRE(all[i]->rollback(0) == status::ok);
  }
  // in any order, with any number of tokens, one of them with none
  for (const auto& counts : {std::vector<std::size_t>{3, 1, 5, 2}, {1, 4, 0, 5}, {2, 2, 2, 2}})
    for (const auto& order : {std::vector<std::size_t>{0, 1, 2, 3}, {2, 3, 1, 0}}) {
      std::vector<source::addition> calls;
      std::vector<std::size_t> before(4);
      for (const std::size_t i : order) {
        before[i] = all[i]->position();
        const auto part = std::span(texts[i]).subspan(before[i], counts[i]);
        if (!part.empty()) calls.push_back({all[i], part, std::span(rows[i]).first(counts[i] * V)});
      }
      REQUIRE(source::extend(calls) == status::ok);
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(test::difference(std::span(rows[i]).first(counts[i] * V),
                               std::span(expected[i]).subspan(before[i] * V, counts[i] * V)) <
              0.02);
    }
}

TEST_CASE(
    "several sequences in one call: where libllama stops in the middle of it, each is as it was") {
  auto how = small_context(512, 2);
  how.n_ubatch = 8;  // libllama keeps what it has computed of a call
  loaded model(test::bundled_file("target"), how);
  using source = llama_cpp::source;
  source& a = model.source;
  source b(model.context.get(), {.sequence = 1});
  const std::size_t V = a.vocab_size();
  const auto text = some_tokens(80, V, 5), other = some_tokens(80, V, 6);
  const auto expected = test::rows_of(a, text), of_other = test::rows_of(b, other);
  REQUIRE(a.rollback(20) == status::ok);
  REQUIRE(b.rollback(10) == status::ok);
  std::atomic<bool> stop = false;
  a.stop_when(&stop);
  std::size_t stopped = 0;
  std::vector<float> first(V), second(V);
  for (int i = 0; i < 60 && stopped < 3; ++i) {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
      stop = true;
    });
    const status why = source::extend(std::vector<source::addition>{
        {&a, std::span(text).subspan(20, 60), {}}, {&b, std::span(other).subspan(10, 60), {}}});
    later.join();
    stop = false;
    if (why == status::ok) {
      REQUIRE(a.rollback(20) == status::ok);
      REQUIRE(b.rollback(10) == status::ok);
      continue;
    }
    ++stopped;
    REQUIRE(why == status::stopped);
    REQUIRE(a.position() == 20);
    REQUIRE(b.position() == 10);
    REQUIRE(source::extend(std::vector<source::addition>{
                {&a, std::span(text).subspan(20, 1), first},
                {&b, std::span(other).subspan(10, 1), second}}) == status::ok);
    CHECK(test::difference(first, row(expected, 20, V)) < 0.02);
    CHECK(test::difference(second, row(of_other, 10, V)) < 0.02);
    REQUIRE(a.rollback(20) == status::ok);
    REQUIRE(b.rollback(10) == status::ok);
  }
  CHECK(stopped > 0);
}

TEST_CASE("exact batches: several sequences have the rows that each has alone, bit for bit") {
  auto how = small_context(512, 2);
  how.kv_unified = false;  // in one buffer, cells of two sequences would alternate
  loaded model(test::bundled_file("target"), how, {.exact_batches = 1});
  using source = llama_cpp::source;
  source& a = model.source;
  source b(model.context.get(), {.sequence = 1, .exact_batches = 1});
  const std::size_t V = a.vocab_size();
  const auto text = some_tokens(40, V, 5), other = some_tokens(40, V, 6);
  const auto expected = test::rows_of(a, text), of_other = test::rows_of(b, other);
  REQUIRE(a.rollback(0) == status::ok);
  REQUIRE(b.rollback(0) == status::ok);
  std::vector<float> first(3 * V), second(3 * V);
  for (std::size_t i = 0; i + 5 < 40; i += 3) {
    REQUIRE(source::extend(std::vector<source::addition>{
                {&b, std::span(other).subspan(i, 5), second},
                {&a, std::span(text).subspan(i, 3), first}}) == status::ok);
    REQUIRE(b.rollback(i + 3) == status::ok);
    CHECK(same_bits(first, std::span(expected).subspan(i * V, 3 * V)));
    CHECK(same_bits(second, std::span(of_other).subspan((i + 2) * V, 3 * V)));
  }
  // a failure of the second undoes the first
  const std::size_t before = a.position();
  const std::vector<token_id> long_text(300, 1);
  CHECK(source::extend(std::vector<source::addition>{{&a, std::span(text).subspan(0, 1), {}},
                                                     {&b, long_text, {}}}) == status::context_full);
  CHECK(a.position() == before);
}
