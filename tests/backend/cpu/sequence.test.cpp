// SPDX-License-Identifier: Apache-2.0
// Several texts in one call of the layers: each has the bits that it has alone.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/sequence.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::bundled, test::weights_of, test::some_tokens, test::rows_of, test::same_bits;

static_assert(BatchLogitSource<llama> && TreeSource<llama>);

namespace {

// What one text is asked for in a call, with memory for it.
struct part {
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  std::vector<float> logits;
};
part some_part(std::mt19937& random, const llama& of, std::size_t nodes, std::size_t most) {
  part p;
  p.tokens = some_tokens(random() % (most + 1), of.vocab_size(), unsigned(random()));
  const bool tree = nodes > 0 || random() % 3 == 0;
  for (std::size_t i = 0; tree && i < p.tokens.size(); ++i)
    p.parents.push_back(std::uint32_t(random() % (nodes + i + 1)));
  p.logits.resize(random() % (p.tokens.size() + 1) * of.vocab_size());
  if (random() % 16 == 0 && !p.tokens.empty())  // refused
    p.tokens[random() % p.tokens.size()] = token_id(of.vocab_size());
  return p;
}
// A random path of the tree that these parents are: a node, and its ancestors.
std::vector<std::uint32_t> some_path(std::mt19937& random,
                                     const std::vector<std::uint32_t>& parents) {
  std::vector<std::uint32_t> path;
  for (auto n = std::uint32_t(random() % (parents.size() + 1)); n > 0; n = parents[n - 1])
    path.insert(path.begin(), n);
  return path;
}

void check_states(const llama& a, const llama& b, std::size_t nodes) {
  for (std::size_t at = 0; at < b.position(); ++at) REQUIRE(same_bits(a.hidden(at), b.hidden(at)));
  for (std::uint32_t n = 1; n <= nodes; ++n) REQUIRE(same_bits(a.node_hidden(n), b.node_hidden(n)));
}
// Keeps a path of the open tree, or rolls back, or neither.
void go_back(std::mt19937& random, llama& a, llama& b, std::vector<std::uint32_t>& tree) {
  if (!tree.empty() && random() % 2) {
    const auto path = some_path(random, tree);
    REQUIRE(a.keep_path(path) == b.keep_path(path));
    tree.clear();
  } else if (random() % 4 == 0) {
    const auto to = random() % 5 == 0 ? 0 : random() % (b.position() + 1);
    REQUIRE(a.rollback(to) == b.rollback(to));
    tree.clear();
  }
}

// `count` texts get random parts, trees among them, in calls of random texts, on `together`; each
// gets the same alone, on `alone`. Texts go back, end and begin again in between. All rows, states
// and statuses are compared.
void check_mixtures(const std::shared_ptr<const llama_weights>& weights, unsigned threads,
                    std::size_t count, int calls, std::size_t most, unsigned seed) {
  const auto pool = std::make_shared<thread_pool>(threads);
  std::mt19937 random(seed);
  std::vector<llama> together, alone;
  std::vector<std::vector<std::uint32_t>> trees(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t capacity = i == 0 ? 1 : 20 + 30 * i;
    together.emplace_back(weights, pool, capacity);
    alone.emplace_back(weights, nullptr, capacity);
    if (i % 3 == 1) {
      together.back().keep_hidden();
      alone.back().keep_hidden();
    }
  }
  std::size_t ok = 0, full = 0, refused = 0;
  for (int call = 0; call < calls; ++call) {
    std::vector<std::size_t> who;
    std::vector<part> parts;
    for (std::size_t i = 0; i < count; ++i)
      if (random() % 4 > 0) who.push_back(i);
    std::shuffle(who.begin(), who.end(), random);
    std::vector<llama::addition> all;
    parts.reserve(who.size());
    for (const std::size_t i : who) {
      auto& p = parts.emplace_back(some_part(random, together[i], trees[i].size(), most));
      all.push_back({&together[i], p.tokens, p.logits, p.parents});
    }
    const status first = llama::extend(all);
    status expected_first = status::ok;
    for (std::size_t k = 0; k < who.size(); ++k) {
      const std::size_t i = who[k];
      std::vector<float> expected(parts[k].logits.size());
      const auto& p = parts[k];
      const status why = p.parents.empty() ? alone[i].extend(p.tokens, expected)
                                           : alone[i].extend_tree(p.tokens, p.parents, expected);
      if (expected_first == status::ok) expected_first = why;
      REQUIRE(all[k].why == why);
      REQUIRE(together[i].position() == alone[i].position());
      ++(why == status::ok ? ok : why == status::context_full ? full : refused);
      if (why != status::ok) continue;
      REQUIRE(same_bits(p.logits, expected));
      trees[i].insert(trees[i].end(), p.parents.begin(), p.parents.end());
    }
    REQUIRE(first == expected_first);
    for (std::size_t i = 0; i < count; ++i) {
      check_states(together[i], alone[i], trees[i].size());
      go_back(random, together[i], alone[i], trees[i]);
    }
    if (random() % 8 == 0) {  // a text goes on as another one
      const auto a = 1 + random() % (count - 1), b = 1 + random() % (count - 1);
      if (a != b) {
        const status adopted = together[a].adopt(together[b]);
        REQUIRE(adopted == alone[a].adopt(alone[b]));
        if (adopted == status::ok) trees[a] = trees[b];
      }
    }
  }
  CHECK((ok > 0 && full > 0 && refused > 0));
}

}  // namespace

TEST_CASE(
    "random mixtures of texts, drafts and trees in one call have the bits that each has alone, on "
    "1, 2 and 4 threads") {
  const test::gguf_bytes small(test::small_model{.separate_output = 2}.write().bytes());
  unsigned seed = 0;
  for (const auto& weights : {weights_of(small), bundled("draft"), bundled("target")})
    for (const unsigned threads : {1u, 2u, 4u})
      check_mixtures(weights, threads, 9, weights->dim < 100 ? 40 : 12, 40, ++seed);
}

TEST_CASE("SmolLM2: mixtures in one call have the bits that each text has alone", "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const auto weights = std::make_shared<const llama_weights>(gguf_file::open(file));
  check_mixtures(weights, 2, 6, 10, 12, 5);
}

TEST_CASE("of several texts in one call, one that is refused changes nothing of the others") {
  const auto weights = bundled("draft");
  const std::size_t V = weights->vocab;
  const auto tokens = some_tokens(40, V), other = some_tokens(40, V, 2);
  llama a(weights, nullptr, 64), b(weights, nullptr, 1), c(weights, nullptr, 64),
      d(weights, nullptr, 64), alone(weights);
  const auto expected = rows_of(alone, tokens);
  const std::vector<token_id> wrong = {token_id(V)};
  const std::vector<std::uint32_t> no_tree = {2, 0};
  std::vector<float> row(V), second(V), two(2 * V);
  const llama strange(bundled("target"));
  llama stranger(strange);
  std::vector<llama::addition> all = {
      {&b, tokens},                                 // two do not fit
      {&a, tokens, row},                            //
      {&c, wrong},                                  //
      {&a, tokens, second},                         // again
      {&d, std::span(tokens).first(1), two},        // two rows of one
      {&stranger, std::span(tokens).first(1)},      // of another model
      {&d, std::span(other).first(2), {}, no_tree}  // again, though it was refused before
  };
  CHECK(llama::extend(all) == status::context_full);
  const auto why = [&](std::size_t i) { return all[i].why; };
  CHECK((why(0) == status::context_full && why(1) == status::ok));
  CHECK((why(2) == status::token_out_of_range && why(3) == status::invalid_parameter));
  CHECK((why(4) == status::invalid_parameter && why(5) == status::invalid_parameter));
  CHECK(why(6) == status::invalid_parameter);
  CHECK((a.position() == 40 && b.position() == 0 && c.position() == 0 && d.position() == 0));
  CHECK(stranger.position() == 0);
  CHECK(same_bits(row, std::span(expected).last(V)));
  all = {{&d, std::span(other).first(2), {}, no_tree}, {&b, std::span(tokens).first(1), second}};
  CHECK(llama::extend(all) == status::invalid_parameter);
  CHECK((d.position() == 0 && all[1].why == status::ok && b.position() == 1));
  CHECK(same_bits(second, std::span(expected).first(V)));
  CHECK(rows_of(d, std::span(tokens)) == expected);  // no tree stands
  CHECK(llama::extend(std::span<llama::addition>()) == status::ok);
}

TEST_CASE("a text that is stopped in a call for several ends alone") {
  const auto weights = bundled("draft");
  const std::size_t V = weights->vocab;
  const auto tokens = some_tokens(70, V);
  llama a(weights), b(weights), alone(weights);
  const auto expected = rows_of(alone, tokens);
  std::atomic<bool> stop = true;
  b.stop_when(&stop);
  REQUIRE(rows_of(a, std::span(tokens).first(3)).size() == 3 * V);
  std::vector<float> rows(50 * V), others(V);
  const std::vector<std::uint32_t> chain(70, 0);
  std::vector<llama::addition> all = {{&b, tokens, others, chain},
                                      {&a, std::span(tokens).subspan(3, 50), rows}};
  CHECK(llama::extend(all) == status::stopped);
  CHECK((all[0].why == status::stopped && all[1].why == status::ok));
  CHECK((a.position() == 53 && b.position() == 0));
  CHECK(same_bits(rows, std::span(expected).subspan(3 * V, 50 * V)));
  stop = false;
  CHECK(rows_of(b, std::span(tokens)) == expected);
}

TEST_CASE("NaN of one text is not seen by the others of its call") {
  test::gguf_bytes file(test::small_model{.separate_output = 1}.write().bytes());
  const auto weights = weights_of(file);
  file.put("token_embd.weight", 4 * weights->dim, std::numeric_limits<float>::quiet_NaN());
  const std::size_t V = weights->vocab;
  const std::vector<token_id> bad = {1, 4, 2}, good = {1, 3, 2};
  llama a(weights), b(weights), c(weights), alone(weights);
  const auto expected = rows_of(alone, good);
  std::vector<float> rows[3] = {std::vector<float>(3 * V), std::vector<float>(3 * V),
                                std::vector<float>(3 * V)};
  std::vector<llama::addition> all = {{&a, good, rows[0]}, {&b, bad, rows[1]}, {&c, good, rows[2]}};
  REQUIRE(llama::extend(all) == status::ok);
  CHECK((same_bits(rows[0], expected) && same_bits(rows[2], expected)));
  for (std::size_t v = 0; v < V; ++v) CHECK((rows[1][V + v] != rows[1][V + v]));
}
