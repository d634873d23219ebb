// SPDX-License-Identifier: Apache-2.0
// Trees of drafts in libllama: each path to a leaf is a sequence.
#include <specagg/decoders.hpp>

#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <atomic>
#include <random>
#include <vector>

#include "backend/cpu/models.hpp"
#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using test::loaded;
using test::row;
using test::small_context;
using test::some_tokens;

namespace {

constexpr std::size_t branches = 15;
constexpr double tolerance = 0.02;  // a row of a tree has not the bits of its path alone

struct tree {
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  // The tokens of the path to node n, counted from 1, and its nodes.
  std::vector<std::uint32_t> nodes_to(std::uint32_t n) const {
    std::vector<std::uint32_t> path;
    for (; n != 0; n = parents[n - 1]) path.insert(path.begin(), n);
    return path;
  }
  std::vector<token_id> tokens_to(std::uint32_t n) const {
    std::vector<token_id> path;
    for (const auto i : nodes_to(n)) path.push_back(tokens[i - 1]);
    return path;
  }
};
// Every node but `leaves` continues the node before it or an older one.
tree random_tree(std::size_t nodes, std::size_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  tree t{some_tokens(nodes, vocab, seed + 100), {}};
  for (std::size_t i = 0; i < nodes; ++i)
    t.parents.push_back(std::uint32_t(random() % 3 == 0 ? random() % (i + 1) : i));
  return t;
}
std::vector<float> rows_of_nodes(llama_cpp::source& s, const tree& t, std::size_t from,
                                 std::size_t to) {
  std::vector<float> logits((to - from) * s.vocab_size());
  REQUIRE(s.extend_tree(std::span(t.tokens).subspan(from, to - from),
                        std::span(t.parents).subspan(from, to - from), logits) == status::ok);
  return logits;
}
std::vector<float> last_row(llama_cpp::source& s, std::span<const token_id> tokens) {
  std::vector<float> logits(s.vocab_size());
  REQUIRE(s.extend(tokens, logits) == status::ok);
  return logits;
}

}  // namespace

static_assert(TreeSource<llama_cpp::source>);

TEST_CASE(
    "libllama: a node's row is that of its path alone, in one call or several, after any text") {
  loaded model(test::bundled_file("target"), small_context(512, branches + 1),
               {.branches = branches});
  loaded alone(test::bundled_file("target"));
  auto& s = model.source;
  REQUIRE(s.scores_trees());
  const std::size_t V = s.vocab_size();
  for (unsigned seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    const auto before = some_tokens(seed * 5, V, seed);  // the first tree begins the text
    const tree t = random_tree(14, V, seed);
    REQUIRE(s.rollback(0) == status::ok);
    REQUIRE(s.extend(before, {}) == status::ok);
    std::vector<float> rows;
    const std::vector<std::size_t> ends =
        seed % 2 ? std::vector<std::size_t>{14} : std::vector<std::size_t>{1, 4, 5, 14};
    for (std::size_t from = 0, k = 0; from < 14; from = ends[k++]) {
      const auto some = rows_of_nodes(s, t, from, ends[k]);
      rows.insert(rows.end(), some.begin(), some.end());
    }
    CHECK(s.position() == before.size() + 14);
    CHECK(std::ranges::equal(s.tokens(), before));
    for (std::uint32_t n = 1; n <= 14; ++n) {
      REQUIRE(alone.source.rollback(0) == status::ok);
      REQUIRE(alone.source.extend(before, {}) == status::ok);
      CHECK(test::difference(last_row(alone.source, t.tokens_to(n)), row(rows, n - 1, V)) <
            tolerance);
    }
    // Keep the path to a node, and go on: as if nothing else had been there.
    const std::uint32_t kept = 1 + seed % 14;
    const auto path = t.nodes_to(kept);
    REQUIRE(s.keep_path(path) == status::ok);
    CHECK(s.position() == before.size() + path.size());
    std::vector<token_id> held = before;
    for (const token_id token : t.tokens_to(kept)) held.push_back(token);
    CHECK(std::ranges::equal(s.tokens(), held));
    const std::vector<token_id> next = {5, 6, 7};
    const auto after = last_row(s, next);
    REQUIRE(alone.source.rollback(0) == status::ok);
    REQUIRE(alone.source.extend(before, {}) == status::ok);
    REQUIRE(alone.source.extend(t.tokens_to(kept), {}) == status::ok);
    CHECK(test::difference(last_row(alone.source, next), after) < tolerance);
  }
}

TEST_CASE("libllama: a tree ends without a trace where nothing is kept, and on a rollback") {
  loaded model(test::bundled_file("target"), small_context(512, branches + 1),
               {.branches = branches});
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto before = some_tokens(9, V);
  const token_id next = 8;
  REQUIRE(s.extend(before, {}) == status::ok);
  const auto expected = last_row(s, std::span(&next, 1));
  for (int way = 0; way < 4; ++way) {
    REQUIRE(s.rollback(9) == status::ok);
    rows_of_nodes(s, random_tree(14, V, unsigned(way)), 0, 14);
    CHECK(s.extend(std::span(&next, 1), {}) == status::invalid_parameter);  // end the tree first
    if (way == 0) REQUIRE(s.keep_path({}) == status::ok);
    if (way == 1) REQUIRE(s.rollback(9) == status::ok);
    if (way == 2) REQUIRE(s.rollback(23) == status::ok);  // into the tree: all of it goes
    if (way == 3) {
      REQUIRE(s.rollback(5) == status::ok);
      REQUIRE(s.extend(std::span(before).subspan(5), {}) == status::ok);
    }
    CHECK(std::ranges::equal(s.tokens(), before));
    CHECK(s.position() == 9);
    for (llama_seq_id b = 1; b <= llama_seq_id(branches); ++b)
      CHECK(llama_memory_seq_pos_max(llama_get_memory(model.context.get()), b) == -1);
    CHECK(test::difference(last_row(s, std::span(&next, 1)), expected) < tolerance);
  }
}

TEST_CASE("libllama: what cannot be a tree is refused and changes nothing") {
  loaded model(test::bundled_file("target"), small_context(256, 3), {.branches = 2});
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto before = some_tokens(9, V), tokens = some_tokens(248, V);
  REQUIRE(s.extend(before, {}) == status::ok);
  const auto part = [&](std::size_t n) { return std::span(tokens).first(n); };
  const std::vector<std::uint32_t> three = {0, 0, 0}, four = {0, 0, 0, 0}, ahead = {0, 2};
  std::vector<float> logits(4 * V);
  CHECK(s.extend_tree(part(2), three, {}) == status::invalid_parameter);
  CHECK(s.extend_tree(part(2), ahead, {}) == status::invalid_parameter);
  CHECK(s.extend_tree(part(3), three, logits) == status::invalid_parameter);
  CHECK(s.extend_tree(part(4), four, logits) == status::context_full);  // four leaves, two branches
  const std::vector<token_id> outside = {1, token_id(V), 2};
  CHECK(s.extend_tree(outside, three, {}) == status::token_out_of_range);
  std::vector<std::uint32_t> long_chain(248);  // 247 cells are left
  for (std::uint32_t i = 0; i < 248; ++i) long_chain[i] = i;
  CHECK(s.extend_tree(tokens, long_chain, {}) == status::context_full);
  CHECK(s.position() == 9);
  const tree t{{tokens[0], tokens[1], tokens[2]}, three};
  const auto rows = rows_of_nodes(s, t, 0, 3);
  // a fourth leaf
  CHECK(s.extend_tree(part(1), std::span(three).first(1), {}) == status::context_full);
  CHECK(s.position() == 12);
  for (const std::vector<std::uint32_t>& path :
       {std::vector<std::uint32_t>{4}, {0}, {1, 2}, {2, 1}}) {
    CHECK(s.keep_path(path) == status::invalid_parameter);
    CHECK(s.position() == 12);
  }
  const std::vector<std::uint32_t> second = {2};
  REQUIRE(s.keep_path(second) == status::ok);
  // Branches are free again; and what was refused has left nothing.
  loaded alone(test::bundled_file("target"), small_context(256));
  REQUIRE(alone.source.extend(before, {}) == status::ok);
  REQUIRE(alone.source.extend(std::span(tokens).subspan(1, 1), {}) == status::ok);
  const auto again = rows_of_nodes(s, t, 0, 3);
  for (std::size_t n = 0; n < 3; ++n) {
    REQUIRE(alone.source.rollback(10) == status::ok);
    CHECK(test::difference(last_row(alone.source, part(3).subspan(n, 1)), row(again, n, V)) <
          tolerance);
  }
  CHECK(!alone.source.scores_trees());  // it has no branches
  CHECK(alone.source.extend_tree(part(1), std::span(three).first(1), {}) ==
        status::invalid_parameter);
}

TEST_CASE("libllama: sequences with buffers of their own score no trees") {
  auto how = small_context(256, 4);
  how.kv_unified = false;
  loaded model(test::bundled_file("draft"), how, {.branches = 3});
  CHECK(!model.source.scores_trees());
}

TEST_CASE("libllama: a tree that is stopped leaves the nodes before it") {
  auto how = small_context(512, branches + 1);
  loaded model(test::bundled_file("target"), how, {.branches = branches});
  auto& s = model.source;
  const std::size_t V = s.vocab_size();
  const auto before = some_tokens(9, V);
  const tree t = random_tree(14, V, 4);
  REQUIRE(s.extend(before, {}) == status::ok);
  const auto expected = rows_of_nodes(s, t, 0, 14);
  REQUIRE(s.rollback(9) == status::ok);
  rows_of_nodes(s, t, 0, 6);
  std::atomic<bool> stop = true;
  s.stop_when(&stop);
  CHECK(s.extend_tree(std::span(t.tokens).subspan(6), std::span(t.parents).subspan(6), {}) ==
        status::stopped);
  CHECK(s.position() == 15);
  s.stop_when(nullptr);
  const auto rest = rows_of_nodes(s, t, 6, 14);
  CHECK(test::difference(rest, std::span(expected).subspan(6 * V)) < tolerance);
}

TEST_CASE(
    "libllama: greedy decoding with trees emits the argmax of the row of every node it accepts") {
  loaded target(test::bundled_file("target"), small_context(512, branches + 1),
                {.branches = branches});
  loaded draft(test::bundled_file("draft"), small_context(512, branches + 1),
               {.branches = branches});
  const std::size_t V = target.source.vocab_size();
  const std::vector<std::size_t> shape = {3, 2, 1};
  std::vector<token_id> buffer(200);
  const std::vector<token_id> prompt = {1, 1000, 1001, 1002};
  std::copy(prompt.begin(), prompt.end(), buffer.begin());
  text t{buffer, prompt.size()};
  tree_workspace<float> work(
      V, {.shape = shape, .propose = proposal::top, .sample = {.temperature = 0}});
  random_streams random(3);
  std::size_t rounds = 0, emitted = 0, checked = 0;
  while (emitted < 60) {
    const auto r = tree_round(draft.source, target.source, lossless{}, random,
                              {.text = t, .most = 60 - emitted, .work = work});
    REQUIRE(r.why == status::ok);
    // work.target_logits: by node; the nodes on the path follow from the tokens.
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < r.emitted; ++i) {
      const auto logits = row(std::span<const float>(work.target_logits), at, V);
      CHECK(token_id(std::max_element(logits.begin(), logits.end()) - logits.begin()) ==
            work.emissions[i].token);
      ++checked;
      if (work.emissions[i].from != origin::accepted) break;
      std::uint32_t next = 0;
      for (std::uint32_t n = 1; n <= r.drafted; ++n)
        if (work.parents[n - 1] == at && work.tokens[n - 1] == work.emissions[i].token) next = n;
      REQUIRE(next > 0);
      at = next;
    }
    emitted += r.emitted;
    ++rounds;
  }
  CHECK(checked == emitted);
  CHECK(rounds < emitted);  // so paths were kept
}
