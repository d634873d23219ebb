// SPDX-License-Identifier: Apache-2.0
// Trees of tokens: what their nodes see, and a model's rows after them.
#include <specagg/backend/cpu/tree_paths.hpp>

#include <atomic>
#include <memory>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/logit_source.hpp>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::cpu;

using test::same_bits;

namespace {

// The models of the tests, with the files in memory that they read.
struct tree_model {
  test::gguf_bytes bytes;
  std::shared_ptr<const llama_weights> weights = test::weights_of(bytes);
  explicit tree_model(const test::small_model& m) : bytes(m.write().bytes()) {}
};
template <class F>
void for_each_model(F&& f) {
  for (const auto type : {tensor_type::f32, tensor_type::q4_0, tensor_type::q8_0})
    f(tree_model(test::small_model{.type = type, .context = 400}).weights);
  f(test::bundled("draft"));
}

}  // namespace

static_assert(TreeSource<llama> && TreeSource<metered<llama>>);

TEST_CASE("paths of a tree, what is none, and a tree that is cut") {
  tree_paths t;
  for (const std::uint32_t parent : {0u, 1u, 0u, 2u, 3u}) t.add(parent);
  const auto path = [&](std::size_t n) {
    const auto p = t.path(n);
    return std::vector<std::uint32_t>(p.begin(), p.end());
  };
  CHECK(path(4) == std::vector<std::uint32_t>{1, 2, 4});
  CHECK(path(5) == std::vector<std::uint32_t>{3, 5});
  const auto is_path = [&](std::vector<std::uint32_t> nodes) { return t.is_path(nodes); };
  CHECK((is_path({}) && is_path({1}) && is_path({1, 2, 4}) && is_path({3, 5})));
  CHECK_FALSE(
      (is_path({0}) || is_path({2}) || is_path({1, 4}) || is_path({6}) || is_path({1, 2, 2})));
  t.cut(3);
  CHECK(t.size() == 3);
  t.add(2);
  CHECK(path(4) == std::vector<std::uint32_t>{1, 2, 4});
}

namespace {

// Tokens of a random tree after `before` others.
struct random_tree {
  std::size_t before;
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  std::vector<std::uint32_t> path_to(std::uint32_t i) const {
    std::vector<std::uint32_t> path;
    for (; i > 0; i = parents[i - 1]) path.insert(path.begin(), i);
    return path;
  }
  std::vector<token_id> tokens_to(std::uint32_t i) const {
    std::vector<token_id> all;
    for (const auto p : path_to(i)) all.push_back(tokens[p - 1]);
    return all;
  }
};

std::vector<token_id> some(numbers& random, std::size_t V, std::size_t count) {
  std::vector<token_id> tokens(count);
  for (auto& t : tokens) t = token_id(random.below(V));
  return tokens;
}

// The path to one node is kept: what follows it is as if it alone had been read. A tree that is
// rolled back has left nothing.
void keep_one_path(llama& with, llama& alone, const random_tree& t, numbers& random) {
  const std::size_t V = with.vocab_size(), n = t.tokens.size();
  const auto last = std::uint32_t(1 + random.below(n));
  const std::vector<std::uint32_t> path = t.path_to(last);
  std::vector<std::uint32_t> wrong = path;
  wrong.back() = std::uint32_t(n + 1);
  CHECK(with.keep_path(wrong) == status::invalid_parameter);
  REQUIRE(with.keep_path(path) == status::ok);
  CHECK(with.position() == t.before + path.size());
  REQUIRE(alone.rollback(t.before) == status::ok);
  REQUIRE(alone.extend(t.tokens_to(last), {}) == status::ok);
  const auto more = some(random, V, 3);
  std::vector<float> a(3 * V), b(3 * V);
  REQUIRE(with.extend(more, a) == status::ok);
  REQUIRE(alone.extend(more, b) == status::ok);
  CHECK(same_bits(a, std::span<const float>(b)));
  REQUIRE(with.extend_tree(t.tokens, t.parents, {}) == status::ok);
  REQUIRE(with.rollback(with.position() - n) == status::ok);
  REQUIRE(with.extend(more, a) == status::ok);
  REQUIRE(alone.extend(more, b) == status::ok);
  CHECK(same_bits(a, std::span<const float>(b)));
}

}  // namespace

TEST_CASE(
    "rows of a tree have the bits of each path alone, for any model, tree, calls and threads") {
  for_each_model([](const std::shared_ptr<const llama_weights>& weights) {
    const std::size_t V = weights->vocab;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      numbers random(seed);
      random_tree t{std::size_t{seed < 4 ? 1 + seed * 13 : 117 + 113 * (seed - 4)}, {}, {}};
      const std::size_t n = 1 + random.below(seed == 5 ? 70 : 20);
      llama with(weights, std::make_shared<thread_pool>(1 + seed % 3)), alone(weights);
      const auto text = some(random, V, t.before);
      t.tokens = some(random, V, n);
      REQUIRE(with.extend(text, {}) == status::ok);
      REQUIRE(alone.extend(text, {}) == status::ok);
      for (std::size_t i = 0; i < n; ++i)
        t.parents.push_back(std::uint32_t(seed == 0 ? i : random.below(i + 1)));
      // In two calls.
      std::vector<float> rows(n * V), row(V);
      const std::size_t first = random.below(n + 1);
      const std::span<const token_id> tokens(t.tokens);
      const std::span<const std::uint32_t> parents(t.parents);
      if (first > 0)
        REQUIRE(with.extend_tree(tokens.first(first), parents.first(first),
                                 std::span(rows).first(first * V)) == status::ok);
      REQUIRE(with.extend_tree(tokens.subspan(first), parents.subspan(first),
                               std::span(rows).subspan(first * V)) == status::ok);
      CHECK(with.position() == t.before + n);
      // a tree is open
      CHECK(with.extend(tokens.first(1), {}) == status::invalid_parameter);
      for (std::uint32_t i = 1; i <= n; ++i) {
        REQUIRE(alone.rollback(t.before) == status::ok);
        REQUIRE(alone.extend(t.tokens_to(i), row) == status::ok);
        REQUIRE(same_bits(row, std::span<const float>(rows).subspan((i - 1) * V, V)));
      }
      keep_one_path(with, alone, t, random);
    }
  });
}

TEST_CASE("what is no tree, does not fit or is stopped appends nothing") {
  const tree_model small{test::small_model{}};
  const auto& weights = small.weights;
  llama m(weights, nullptr, 20);
  const std::vector<token_id> tokens(8, 1), bad{1, token_id(weights->vocab)};
  std::vector<float> rows(8 * weights->vocab);
  REQUIRE(m.extend(tokens, {}) == status::ok);
  const auto tree = [&](std::vector<token_id> t, std::vector<std::uint32_t> parents) {
    const auto s = m.extend_tree(t, parents, std::span(rows).first(t.size() * weights->vocab));
    CHECK(m.position() == (s == status::ok ? 8 + t.size() : 8));
    return s;
  };
  CHECK(tree({1, 1}, {1, 0}) == status::invalid_parameter);
  CHECK(tree({1, 1}, {0}) == status::invalid_parameter);
  CHECK(tree(bad, {0, 0}) == status::token_out_of_range);
  CHECK(tree(std::vector<token_id>(13, 1), std::vector<std::uint32_t>(13)) == status::context_full);
  std::atomic<bool> stop = true;
  m.stop_when(&stop);
  CHECK(tree({1, 1}, {0, 1}) == status::stopped);
  stop = false;
  CHECK(m.extend(std::span(tokens).first(1), {}) == status::ok);  // no tree was left open
  CHECK(m.rollback(8) == status::ok);
  CHECK(tree({1, 1}, {0, 1}) == status::ok);
  CHECK(m.keep_path({}) == status::ok);
  CHECK(m.position() == 8);
}
