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

static_assert(BatchLogitSource<llama_cpp::source>);

namespace {

status extend(std::vector<llama_cpp::source::addition> all) {
  return llama_cpp::source::extend(all);
}

}  // namespace

namespace {

// Three sequences of one context, and the rows of two texts alone.
struct three_sequences {
  using source = llama_cpp::source;
  loaded model{test::bundled_file("target"), small_context(512, 3)};
  source& a = model.source;
  source b{model.context.get(), {.sequence = 1}}, c{model.context.get(), {.sequence = 2}};
  const std::size_t V = a.vocab_size();
  const std::vector<token_id> text = some_tokens(40, V, 5), other = some_tokens(40, V, 6),
                              many = some_tokens(100, V, 7);
  const std::vector<float> expected = test::rows_of(a, text), of_other = test::rows_of(b, other);
  std::vector<float> first = std::vector<float>(2 * V), second = std::vector<float>(V);

  three_sequences() {
    REQUIRE(a.rollback(0) == status::ok);
    REQUIRE(b.rollback(0) == status::ok);
  }
  // 25 tokens of a, 10 of b, 30 of c.
  void read_some() {
    REQUIRE(extend({{&a, of(text, 0, 25), {}},
                    {&b, of(other, 0, 10), {}},
                    {&c, of(text, 0, 30), {}}}) == status::ok);
  }
  // All go on as if nothing had happened since.
  void check_next() {
    REQUIRE(extend({{&a, of(text, 25, 1), second}, {&c, of(text, 30, 2), first}}) == status::ok);
    CHECK(test::difference(second, row(expected, 25, V)) < 0.02);
    CHECK(test::difference(first, std::span(expected).subspan(30 * V, 2 * V)) < 0.02);
  }
  static std::span<const token_id> of(const std::vector<token_id>& t, std::size_t from,
                                      std::size_t n) {
    return std::span(t).subspan(from, n);
  }
};

}  // namespace

TEST_CASE("several sequences in one call have the rows of each alone within 0.02") {
  three_sequences s;
  const std::size_t V = s.V;
  REQUIRE(extend({{&s.a, s.of(s.text, 0, 20), {}},
                  {&s.b, s.of(s.other, 0, 7), s.second},
                  {&s.c, s.of(s.text, 0, 30), s.first}}) == status::ok);
  CHECK(s.a.position() == 20);
  CHECK(s.b.position() == 7);
  CHECK(s.c.position() == 30);
  CHECK(test::difference(s.second, row(s.of_other, 6, V)) < 0.02);
  CHECK(test::difference(s.first, std::span(s.expected).subspan(28 * V, 2 * V)) < 0.02);
  // in another order, from where each stands
  REQUIRE(extend({{&s.b, s.of(s.other, 7, 3), s.second}, {&s.a, s.of(s.text, 20, 5), s.first}}) ==
          status::ok);
  CHECK(test::difference(s.second, row(s.of_other, 9, V)) < 0.02);
  CHECK(test::difference(s.first, std::span(s.expected).subspan(23 * V, 2 * V)) < 0.02);
  s.check_next();
  REQUIRE(s.a.rollback(25) == status::ok);
  // n_batch is 128: three calls
  REQUIRE(extend({{&s.a, s.of(s.many, 0, 100), {}},
                  {&s.b, s.of(s.other, 10, 29), s.second},
                  {&s.c, s.of(s.many, 0, 100), {}}}) == status::ok);
  CHECK(test::difference(s.second, row(s.of_other, 38, V)) < 0.02);
  CHECK((s.a.position() == 125 && s.c.position() == 132));
}

TEST_CASE("what is refused in a call of several sequences changes nothing of the others") {
  three_sequences s;
  using source = llama_cpp::source;
  s.read_some();
  // here a, by a token
  const auto refused = [&](std::vector<source::addition> all, std::size_t which, status why) {
    CHECK(source::extend(all) == why);
    for (std::size_t i = 0; i < all.size(); ++i)
      CHECK(all[i].why == (i == which ? why : status::ok));
    CHECK(s.a.position() == 26);
    CHECK(s.b.position() == 10);
    CHECK(s.c.position() == 30);
    REQUIRE(s.a.rollback(25) == status::ok);
  };
  // twice
  refused({{&s.a, s.of(s.text, 25, 1), {}}, {&s.a, s.of(s.text, 26, 1), {}}}, 1,
          status::invalid_parameter);
  // 2 rows of 1
  refused({{&s.b, s.of(s.other, 10, 1), s.first}, {&s.a, s.of(s.text, 25, 1), s.second}}, 0,
          status::invalid_parameter);
  CHECK(test::difference(s.second, row(s.expected, 25, s.V)) < 0.02);
  const std::vector<token_id> wrong{token_id(s.V)};
  refused({{&s.a, s.of(s.text, 25, 1), {}}, {&s.b, wrong, {}}}, 1, status::token_out_of_range);
  loaded another(test::bundled_file("target"));
  refused({{&s.a, s.of(s.text, 25, 1), {}}, {&another.source, s.of(s.text, 0, 1), {}}}, 1,
          status::invalid_parameter);
  s.check_next();
}

TEST_CASE(
    "several sequences that are stopped, or have no cell left, go on as if nothing was read") {
  three_sequences s;
  using source = llama_cpp::source;
  s.read_some();
  std::atomic<bool> stop = true;
  s.a.stop_when(&stop);
  std::vector<source::addition> both = {{&s.a, s.of(s.text, 25, 1), {}},
                                        {&s.b, s.of(s.other, 10, 1), {}}};
  CHECK(source::extend(both) == status::stopped);  // the context stops
  CHECK((both[0].why == status::stopped && both[1].why == status::stopped));
  CHECK((s.a.position() == 25 && s.b.position() == 10));
  s.a.stop_when(nullptr);
  // libllama has no cell left: 512 in all, of which 65 are taken
  for (int i = 0; i < 4; ++i) REQUIRE(s.c.extend(s.of(s.many, 0, 100), {}) == status::ok);
  CHECK(extend({{&s.a, s.of(s.many, 0, 24), {}}, {&s.b, s.of(s.many, 0, 24), {}}}) ==
        status::context_full);
  CHECK(s.a.position() == 25);
  CHECK(s.b.position() == 10);
  REQUIRE(s.c.rollback(30) == status::ok);
  // with as many tokens as a call has
  REQUIRE(s.b.extend(s.of(s.many, 0, 3), {}) == status::ok);
  REQUIRE(s.b.rollback(10) == status::ok);
  REQUIRE(extend({{&s.a, s.of(s.many, 0, 28), {}}, {&s.c, s.of(s.many, 0, 100), {}}}) ==
          status::ok);
  REQUIRE(s.a.rollback(25) == status::ok);
  REQUIRE(s.c.rollback(30) == status::ok);
  s.check_next();
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
    const status why = extend(
        {{&a, std::span(text).subspan(20, 60), {}}, {&b, std::span(other).subspan(10, 60), {}}});
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
    REQUIRE(extend({{&a, std::span(text).subspan(20, 1), first},
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
    REQUIRE(extend({{&b, std::span(other).subspan(i, 5), second},
                    {&a, std::span(text).subspan(i, 3), first}}) == status::ok);
    REQUIRE(b.rollback(i + 3) == status::ok);
    CHECK(same_bits(first, std::span(expected).subspan(i * V, 3 * V)));
    CHECK(same_bits(second, std::span(of_other).subspan((i + 2) * V, 3 * V)));
  }
  // the second is refused alone
  const std::size_t before = a.position();
  const std::vector<token_id> long_text(300, 1);
  CHECK(extend({{&a, std::span(text).subspan(0, 1), {}}, {&b, long_text, {}}}) ==
        status::context_full);
  CHECK(a.position() == before + 1);
}

TEST_CASE("several sequences in one call: a tree among them has calls of its own") {
  loaded model(test::bundled_file("target"), small_context(512, 5),
               {.first_branch = 2, .branches = 3});
  using source = llama_cpp::source;
  source& a = model.source;
  source b(model.context.get(), {.sequence = 1});
  const std::size_t V = a.vocab_size();
  const auto text = some_tokens(30, V, 5), other = some_tokens(30, V, 6);
  const auto expected = test::rows_of(a, text), of_other = test::rows_of(b, other);
  REQUIRE(a.rollback(20) == status::ok);
  REQUIRE(b.rollback(20) == status::ok);
  const std::vector<std::uint32_t> parents = {0, 0, 1}, path = {1, 3};
  const std::vector<token_id> nodes = {text[20], other[3], text[21]};
  std::vector<float> rows(3 * V), second(V);
  std::vector<source::addition> all = {{&a, nodes, rows, parents},
                                       {&b, std::span(other).subspan(20, 1), second}};
  REQUIRE(source::extend(all) == status::ok);
  CHECK(test::difference(second, row(of_other, 20, V)) < 0.02);
  CHECK(test::difference(row(rows, 0, V), row(expected, 20, V)) < 0.02);
  CHECK(test::difference(row(rows, 2, V), row(expected, 21, V)) < 0.02);
  REQUIRE(a.keep_path(path) == status::ok);
  CHECK((a.position() == 22 && b.position() == 21));
}
