// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/layers.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/logit_source.hpp>

#include <random>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::bundled, test::weights_of, test::some_tokens, test::rows_of, test::same_bits;

static_assert(HiddenSource<llama>);

namespace {

llama keeping_hidden(const std::shared_ptr<const llama_weights>& weights) {
  llama model(weights);
  model.keep_hidden();
  return model;
}
// The hidden states of all positions, one after another.
std::vector<float> hidden_of(const llama& model) {
  std::vector<float> all;
  for (std::size_t i = 0; i < model.position(); ++i) {
    const auto h = model.hidden(i);
    REQUIRE(h.size() == model.hidden_size());
    all.insert(all.end(), h.begin(), h.end());
  }
  return all;
}

}  // namespace

TEST_CASE(
    "a row is the output matrix times the hidden state, and keeping hidden states changes no row") {
  const test::gguf_bytes small(test::small_model{.separate_output = 2}.write().bytes());
  for (const auto& weights : {bundled("target"), weights_of(small)}) {
    const auto tokens = some_tokens(70, weights->vocab);
    llama plain(weights), model = keeping_hidden(weights);
    const auto rows = rows_of(model, tokens);
    CHECK(same_bits(rows, rows_of(plain, tokens)));
    CHECK(plain.hidden(0).empty());
    CHECK(model.hidden(70).empty());
    std::vector<float> weight(padded(weights->dim));
    for (const std::size_t i : {0u, 1u, 31u, 32u, 69u})
      for (std::size_t v = 0; v < weights->vocab; v += 7) {
        read_row(weights->output, v, weight.data());
        double sum = 0, size = 0;
        for (std::size_t c = 0; c < weights->dim; ++c) {
          const double term = double{weight[c]} * double{model.hidden(i)[c]};
          sum += term;
          size += std::abs(term);
        }
        CHECK(std::abs(sum - double{rows[i * weights->vocab + v]}) <= 1e-5 * size + 1e-12);
      }
  }
}

TEST_CASE(
    "hidden states have the same bits fed at once, without rows, in parts and after rollbacks") {
  const auto weights = bundled("draft");
  const auto tokens = some_tokens(77, weights->vocab);
  llama at_once = keeping_hidden(weights), model = keeping_hidden(weights);
  const auto all_rows = rows_of(at_once, tokens);
  const auto expected = hidden_of(at_once);
  REQUIRE(model.extend(tokens, {}) == status::ok);
  CHECK(same_bits(hidden_of(model), expected));
  std::mt19937 random(5);
  for (int step = 0; step < 30; ++step) {
    const std::size_t i = random() % (model.position() + 1);
    (void)model.rollback(i);
    CHECK(model.hidden(i).empty());
    REQUIRE(model.extend(some_tokens(random() % 4, weights->vocab, 99), {}) == status::ok);
    (void)model.rollback(i);
    const auto n = std::min<std::size_t>(tokens.size() - i, random() % 40);
    std::vector<float> rows(random() % (n + 1) * weights->vocab);
    REQUIRE(model.extend(std::span(tokens).subspan(i, n), rows) == status::ok);
    CHECK(same_bits(rows, std::span(all_rows).first((i + n) * weights->vocab).last(rows.size())));
    CHECK(same_bits(hidden_of(model), std::span(expected).first(model.position() * weights->dim)));
  }
}

TEST_CASE("hidden states are kept from the moment they are asked for, and by copies") {
  const auto weights = bundled("draft");
  const auto tokens = some_tokens(12, weights->vocab);
  llama all = keeping_hidden(weights), late(weights);
  rows_of(all, tokens);
  REQUIRE(late.extend(std::span(tokens).first(8), {}) == status::ok);
  late.keep_hidden();
  REQUIRE(late.extend(std::span(tokens).subspan(8), {}) == status::ok);
  CHECK(late.hidden(7).empty());
  CHECK(same_bits(late.hidden(8), all.hidden(8)));
  REQUIRE(late.rollback(5) == status::ok);  // read again from here: kept
  REQUIRE(late.extend(std::span(tokens).subspan(5), {}) == status::ok);
  CHECK(late.hidden(4).empty());
  CHECK(same_bits(late.hidden(5), all.hidden(5)));
  const llama copy(all);
  CHECK(same_bits(hidden_of(copy), hidden_of(all)));
  llama other(weights);
  rows_of(other, tokens);
  REQUIRE(all.adopt(other) == status::ok);  // it has no hidden states to copy
  CHECK(all.hidden(11).empty());
}

TEST_CASE(
    "the hidden state of a tree's node is that of its path alone, before the path is kept and "
    "after") {
  const auto weights = bundled("draft");
  const auto text = some_tokens(9, weights->vocab), nodes = some_tokens(6, weights->vocab, 2);
  llama model = keeping_hidden(weights), alone = keeping_hidden(weights);
  rows_of(model, text);
  //  1 - 3 - 6
  //  2 - 4, 5
  const std::vector<std::uint32_t> parents = {0, 0, 1, 2, 2, 3}, path = {2, 5};
  std::vector<float> rows(6 * weights->vocab);
  REQUIRE(model.extend_tree(nodes, parents, rows) == status::ok);
  CHECK(model.hidden(9).empty());
  CHECK_FALSE(model.hidden(8).empty());
  std::vector<float> of_path;
  for (const auto node : path) {
    const auto h = model.node_hidden(node);
    REQUIRE(h.size() == model.hidden_size());
    of_path.insert(of_path.end(), h.begin(), h.end());
  }
  CHECK(model.node_hidden(0).empty());
  CHECK_FALSE(model.node_hidden(6).empty());
  CHECK(model.node_hidden(7).empty());
  REQUIRE(model.keep_path(path) == status::ok);
  CHECK(model.node_hidden(1).empty());
  REQUIRE(alone.extend(text, {}) == status::ok);
  REQUIRE(alone.extend(std::vector{nodes[1], nodes[4]}, {}) == status::ok);
  const auto expected = hidden_of(alone);
  CHECK(same_bits(hidden_of(model), expected));
  CHECK(same_bits(of_path, std::span(expected).last(of_path.size())));
}

TEST_CASE(
    "hidden states that are asked for while a tree stands begin after what was computed, and "
    "stay") {
  const auto weights = bundled("draft");
  const auto text = some_tokens(6, weights->vocab), nodes = some_tokens(3, weights->vocab, 2);
  const std::vector<std::uint32_t> parents = {0, 0, 1}, path = {1};
  llama model(weights), all = keeping_hidden(weights);
  rows_of(model, text);
  REQUIRE(model.extend_tree(std::span(nodes).first(2), std::span(parents).first(2), {}) ==
          status::ok);
  model.keep_hidden();
  CHECK(model.node_hidden(1).empty());
  REQUIRE(model.extend_tree(std::span(nodes).subspan(2), std::span(parents).subspan(2), {}) ==
          status::ok);
  CHECK(model.node_hidden(2).empty());
  CHECK_FALSE(model.node_hidden(3).empty());
  REQUIRE(model.keep_path(path) == status::ok);
  REQUIRE(model.extend(nodes, {}) == status::ok);
  REQUIRE(all.extend(text, {}) == status::ok);
  REQUIRE(all.extend(std::span(nodes).first(1), {}) == status::ok);
  REQUIRE(all.extend(nodes, {}) == status::ok);
  CHECK(model.hidden(6).empty());
  for (std::size_t i = 7; i < 10; ++i) CHECK(same_bits(model.hidden(i), all.hidden(i)));
}
