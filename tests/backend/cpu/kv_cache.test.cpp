// SPDX-License-Identifier: Apache-2.0
// Pages of keys and values: what they hold, who shares them, when memory comes and goes.
#define SPECAGG_COUNT_ALLOCATIONS
#include <specagg/backend/cpu/kv_cache.hpp>

#include <specagg/backend/cpu/llama.hpp>

#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "backend/cpu/models.hpp"
#include "support/allocations.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::weights_of, test::some_tokens, test::rows_of, test::same_bits;

namespace {

constexpr std::size_t page = kv_cache::page_positions;

const std::shared_ptr<const llama_weights>& small() {
  static const test::gguf_bytes bytes(test::small_model{.context = 600}.write().bytes());
  static const auto weights = weights_of(bytes);
  return weights;
}
// The row after these tokens, of a model that has seen nothing else.
std::vector<float> row_after(std::span<const token_id> tokens) {
  llama fresh(small(), nullptr, tokens.size());
  std::vector<float> row(fresh.vocab_size());
  REQUIRE(fresh.extend(tokens, row) == status::ok);
  return row;
}
// The row after what `model` holds and one token more, which it does not keep.
std::vector<float> next_row(llama& model, token_id token = 5) {
  std::vector<float> row(model.vocab_size());
  REQUIRE(model.extend(std::span(&token, 1), row) == status::ok);
  REQUIRE(model.rollback(model.position() - 1) == status::ok);
  return row;
}
void check_next(llama& model) {
  std::vector<token_id> tokens(model.tokens().begin(), model.tokens().end());
  tokens.push_back(5);
  REQUIRE(same_bits(next_row(model), row_after(tokens)));
}

}  // namespace

TEST_CASE("a cache holds numbers as the nearest f16, and NaN for those that are too large") {
  constexpr std::size_t layers = 2, heads = 3, positions = 150;
  for (const std::size_t dims : {2u, 16u, 22u, 64u}) {
    kv_cache cache(layers, heads, dims, positions, kv_cache::memory_for(layers, heads, dims));
    cache.open(0, positions);
    std::mt19937 random(3);
    std::vector<float> numbers(2 * layers * heads * positions * dims);
    for (float& x : numbers)
      x = std::ldexp(float(int(random() % 2001) - 1000), int(random() % 26) - 20);
    const auto of = [&](std::size_t layer, std::size_t head, std::size_t p, bool value) {
      return numbers.data() + ((((layer * heads) + head) * positions + p) * 2 + value) * dims;
    };
    of(1, 2, 70, false)[0] = 65519.996f;  // the largest that is rounded down
    of(1, 2, 71, false)[1] = 65520;
    of(1, 2, 72, true)[0] = -std::numeric_limits<float>::infinity();
    of(1, 2, 73, true)[1] = -std::numeric_limits<float>::quiet_NaN();
    for (std::size_t p = 0; p < positions; ++p)
      for (std::size_t layer = 0; layer < layers; ++layer)
        for (std::size_t head = 0; head < heads; ++head)
          cache.store(layer, head, p, of(layer, head, p, false), of(layer, head, p, true));
    std::size_t wrong = 0, nans = 0;
    const auto check = [&](f16 given, float x) {
      const bool fits = std::fabs(x) < 65520;
      nans += !fits;
      wrong += given.bits != (fits ? specagg::detail::stored<f16>(x).bits : 0x7e00);
    };
    for (std::size_t p = 0; p < positions; ++p)
      for (std::size_t layer = 0; layer < layers; ++layer)
        for (std::size_t head = 0; head < heads; ++head) {
          const auto at = p % page;
          const auto *keys = cache.keys(p / page, layer, head),
                     *values = cache.values(p / page, layer, head);
          for (std::size_t d = 0; d < dims; ++d) {
            check(keys[at / 16 * 16 * dims + 16 * d + at % 16], of(layer, head, p, false)[d]);
            check(values[at * padded(dims) + d], of(layer, head, p, true)[d]);
          }
          for (auto d = dims; d < padded(dims); ++d)
            wrong += values[at * padded(dims) + d].bits != 0;
        }
    CHECK(wrong == 0);
    CHECK(nans == 3);
  }
}

TEST_CASE("a key that is too large for f16 makes NaN of every row that attends to it") {
  test::gguf_bytes file(test::small_model{.separate_output = 1}.write().bytes());
  file.put("blk.1.attn_v.weight", 3, 1e30f);
  llama model(weights_of(file));
  for (const float x : rows_of(model, std::vector<token_id>{1, 2, 3})) CHECK(x != x);
}

namespace {
// The pages that were made since this was.
struct page_count {
  std::size_t before = aligned_blocks;
  std::size_t operator()() const { return aligned_blocks - before; }
};
void read_to(llama& m, std::span<const token_id> tokens, std::size_t end) {
  REQUIRE(m.extend(tokens.subspan(m.position(), end - m.position()), {}) == status::ok);
}
}  // namespace

TEST_CASE("memory follows what is used: pages come with the text, are shared by copies, and go") {
#ifdef SPECAGG_ALLOCATIONS_OF_TSAN
  return;
#endif
  const auto tokens = some_tokens(300, small()->vocab);
  const auto pool = std::make_shared<thread_pool>(1);
  const page_count pages;
  const auto read = [&](llama& m, std::size_t end) { read_to(m, tokens, end); };
  {
    llama a(small(), pool);
    CHECK(pages() == 0);
    for (const std::size_t end : {1u, 64u, 65u, 128u, 200u}) {
      read(a, end);
      CHECK(pages() == (end + page - 1) / page);
    }
    llama b(a), c(small(), pool);
    REQUIRE(c.adopt(a) == status::ok);
    CHECK(pages() == 4);
    read(b, 201);  // copies the page that it writes to
    CHECK(pages() == 5);
    read(a, 201);
    CHECK(pages() == 6);
    read(c, 201);  // the only one that holds it now
    CHECK(pages() == 6);
    CHECK(a.rollback(150) == status::ok);  // in the third page: the fourth is kept
    CHECK(pages() == 6);
    CHECK(a.rollback(128) == status::ok);
    CHECK(pages() == 5);
    CHECK(a.rollback(64) == status::ok);  // what the others hold stays
    CHECK(pages() == 5);
    read(a, 65);
    CHECK(pages() == 6);
    for (llama* m : {&a, &b, &c}) check_next(*m);
    CHECK(pages() == 6);
    CHECK(b.adopt(a) == status::ok);  // gives back its fourth page
    CHECK(pages() == 5);
    CHECK(c.rollback(0) == status::ok);
    CHECK(pages() == 3);  // the first of all, the second of a and b, the third of b
    CHECK(a.rollback(0) == status::ok);
    CHECK(a.reserve(601) == status::context_full);
    CHECK(pages() == 3);
    CHECK(a.reserve(257) == status::ok);
    CHECK(pages() == 8);
    CHECK(a.rollback(0) == status::ok);
    CHECK(pages() == 8);
    const std::size_t all = allocations;
    const status s = a.extend(std::span(tokens).first(257), {});
    CHECK(allocations == all);
    CHECK(s == status::ok);
    CHECK(a.reserve(0) == status::ok);
    CHECK(a.rollback(0) == status::ok);
    CHECK(pages() == 4);
    llama moved(std::move(b));
    CHECK(pages() == 4);
    check_next(moved);
  }
  CHECK(pages() == 0);
}

TEST_CASE("extend allocates nothing within a page, nor does a text that goes back and forth") {
#ifdef SPECAGG_ALLOCATIONS_OF_TSAN
  return;
#endif
  llama model(small());
  const auto tokens = some_tokens(128, small()->vocab);
  std::vector<float> row(model.vocab_size());
  REQUIRE(model.extend(std::span(tokens).first(65), row) == status::ok);
  bool ok = true;
  const std::size_t all = allocations;
  for (std::size_t i = 65; i < 128; ++i)
    ok = ok && model.extend(std::span(tokens).subspan(i, 1), row) == status::ok;
  (void)model.rollback(60);
  ok = ok && model.extend(std::span(tokens).subspan(60), row) == status::ok;
  CHECK(allocations == all);
  CHECK(ok);
}

TEST_CASE("where there is no memory for a page no text of the call has changed") {
#ifdef SPECAGG_ALLOCATIONS_OF_TSAN
  return;
#endif
  const auto tokens = some_tokens(200, small()->vocab);
  llama a(small()), b(small()), c(small());
  REQUIRE(a.extend(std::span(tokens).first(10), {}) == status::ok);
  REQUIRE(b.extend(std::span(tokens).first(64), {}) == status::ok);
  REQUIRE(c.adopt(a) == status::ok);
  std::vector<float> row(a.vocab_size());
  std::vector<llama::addition> all = {{&a, std::span(tokens).subspan(10, 3), row},
                                      {&b, std::span(tokens).subspan(64, 1)}};
  const auto fails = [&](auto&& call) {
    aligned_blocks_left = 0;
    CHECK_THROWS_AS(call(), std::bad_alloc);
    aligned_blocks_left = std::size_t(-1);
    CHECK((a.position() == 10 && b.position() == 64 && c.position() == 10));
    CHECK((a.tokens().size() == 10 && b.tokens().size() == 64 && c.tokens().size() == 10));
  };
  fails([&] { return llama::extend(all); });
  const std::vector<std::uint32_t> parents = {0, 1, 0};
  fails([&] { return b.extend_tree(std::span(tokens).first(3), parents, {}); });
  fails([&] { return c.extend(std::span(tokens).first(1), {}); });  // the copy of a page
  fails([&] { return b.reserve(65); });
  for (llama* m : {&a, &b, &c}) check_next(*m);
  REQUIRE(llama::extend(all) == status::ok);
  CHECK(same_bits(row, row_after(std::span(tokens).first(13))));
  for (llama* m : {&a, &b, &c}) check_next(*m);
  // The first page of a call is there, the second is not.
  llama d(small());
  aligned_blocks_left = 1;
  CHECK_THROWS_AS(d.extend(tokens, {}), std::bad_alloc);
  aligned_blocks_left = std::size_t(-1);
  CHECK(d.position() == 0);
  CHECK(same_bits(rows_of(d, tokens), [&] {
    llama fresh(small());
    return rows_of(fresh, tokens);
  }()));
}

TEST_CASE("texts that share pages have the rows that each has alone, however they go on") {
  std::mt19937 random(1);
  const auto pool = std::make_shared<thread_pool>(2);
  std::deque<llama> texts;
  for (int i = 0; i < 5; ++i) texts.emplace_back(small(), pool);
  const auto some = [&](std::size_t n) {
    return some_tokens(n, small()->vocab, unsigned(random()));
  };
  for (int step = 0; step < 150; ++step) {
    llama &a = texts[random() % texts.size()], &b = texts[random() % texts.size()];
    const auto n = std::min<std::size_t>(random() % 90, a.capacity() - a.position());
    switch (random() % 6) {
      case 0: REQUIRE(a.rollback(random() % (a.position() + 1)) == status::ok); break;
      case 1: REQUIRE(a.adopt(b) == status::ok); break;
      case 2: {
        texts.emplace_back(b);
        texts.pop_front();
        break;
      }
      case 3: {
        std::vector<std::uint32_t> parents, path;
        for (std::size_t i = 0; i < n; ++i) parents.push_back(std::uint32_t(random() % (i + 1)));
        if (n == 0) break;
        REQUIRE(a.extend_tree(some(n), parents, {}) == status::ok);
        for (auto k = std::uint32_t(1 + random() % n); k > 0; k = parents[k - 1])
          path.insert(path.begin(), k);
        REQUIRE(a.keep_path(path) == status::ok);
        break;
      }
      default: {
        const auto x = some(n), y = some(3);
        std::vector<llama::addition> all = {{&a, x}};
        if (&a != &b && b.position() + 3 <= b.capacity()) all.push_back({&b, y});
        REQUIRE(llama::extend(all) == status::ok);
      }
    }
    for (llama& m : texts)
      if (m.position() < m.capacity() && random() % 3 == 0) check_next(m);
  }
}

TEST_CASE("texts that share pages may run at the same time, each on a thread of its own") {
  const auto tokens = some_tokens(300, small()->vocab);
  llama first(small());
  REQUIRE(first.extend(std::span(tokens).first(100), {}) == status::ok);
  std::vector<std::vector<float>> rows(4);
  {
    std::vector<std::thread> threads;
    for (auto& row : rows)
      threads.emplace_back([&, i = std::size_t(&row - rows.data())] {
        for (int round = 0; round < 20; ++round) {
          llama copy(first);
          row.resize(copy.vocab_size());
          (void)copy.extend(std::span(tokens).subspan(100 + i, 40), row);
        }
      });
    for (auto& t : threads) t.join();
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<token_id> all(tokens.begin(), tokens.begin() + 100);
    all.insert(all.end(), tokens.begin() + 100 + std::ptrdiff_t(i),
               tokens.begin() + 140 + std::ptrdiff_t(i));
    CHECK(same_bits(rows[i], row_after(all)));
  }
  check_next(first);
}
