// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/verify.hpp>

#include <array>
#include <string>
#include <vector>

#include <specagg/policy/combine.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/verify/detail/decision.hpp>
#include <specagg/verify/detail/law.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// How often a text ended by an accepted token, a residual token and a bonus token.
struct ends_seen {
  std::array<int, 3> by{};
  int open = 0;
  // The verdict names the end token that is the last emitted one.
  void see(const verdict& v, const end_tokens& ends, std::span<const emission> out) {
    REQUIRE(v.emitted > 0);
    const emission& last = out[v.emitted - 1];
    CHECK(v.ended == (ends.contains(last.token) ? last.token : no_token));
    if (v.ended == no_token) ++open;
    else ++by[std::size_t(last.from)];
  }
  bool all() const { return by[0] > 0 && by[1] > 0 && by[2] > 0 && open > 0; }
};

// A draft of three tokens over six, and its rows.
struct ended_round {
  static constexpr std::size_t V = 6, g = 3;
  std::array<std::array<double, V>, g + 1> q{}, p{};
  random_streams chooser;
  std::array<token_id, g> y{};
  std::array<double, verify_scratch(V, g)> scratch{};
  std::array<emission, g + 1> out{};
  explicit ended_round(std::uint64_t seed) : chooser(seed) {
    numbers n(seed);
    for (auto* rows : {&q, &p})
      for (auto& row : *rows) {
        double sum = 0;
        for (double& x : row) sum += x = n.uniform();
        for (double& x : row) x /= sum;
      }
  }
  template <class V>
  void propose(const V& verifier) {
    for (std::size_t j = 0; j < g; ++j) {
      dense_row<double> row(q[j]);
      y[j] = verifier.propose(row, 0, j, chooser, scratch);
    }
  }
};

}  // namespace

TEST_CASE("a draft ends before its first padding and after its first end-of-text token") {
  const std::vector<token_id> y{5, 2, 7, no_token, 7};
  CHECK(draft{}.size() == 0);
  CHECK(draft{y}.size() == 3);
  CHECK(draft{y, 0, 2}.size() == 2);
  CHECK(draft{y, 0, 7}.size() == 3);
  CHECK(draft{y, 0, 9}.size() == 3);
  const draft ended{y, 0, 2};
  CHECK((!ended.ends_text(0) && !ended.ends_text(1) && ended.ends_text(2)));
}
TEST_CASE("origins have names") {
  CHECK(name(origin::accepted) == std::string("accepted"));
  CHECK(name(origin::residual) == std::string("residual"));
  CHECK(name(origin::bonus) == std::string("bonus"));
}
TEST_CASE(
    "expected tokens of a round: 1, and each position as often as all before it are accepted") {
  CHECK(expected_tokens({}) == 1);
  const std::vector<draft_acceptance> three{{0.5, 0.25}, {0.5, 1}, {0.75, 0.5}};
  CHECK(expected_tokens(three) == 1 + 0.5 + 0.25 * 0.5 + 0.25 * 1 * 0.75);
  const std::vector<draft_acceptance> sure(7, {1, 1}), never(7);
  CHECK(expected_tokens(sure) == 8);
  CHECK(expected_tokens(never) == 1);
}
TEST_CASE("scratch has room for the block sums of a row and for the draft") {
  CHECK(verify_scratch(1) == 2);
  CHECK(verify_scratch(1024) == 2);
  CHECK(verify_scratch(1025, 3) == 2 + 3 * 129 + 1);
  CHECK(verify_scratch(128256, 4) == 126 + 4 * 129 + 1);
}
TEST_CASE(
    "a token outside the vocabulary, or to which its row gives nothing, is outside the support") {
  CHECK(detail::outside_support(0, 3, 0.5) == status::ok);
  CHECK(detail::outside_support(2, 3, 0) == status::draft_not_in_support);
  CHECK(detail::outside_support(3, 3, 0.5) == status::token_out_of_range);
  CHECK(detail::outside_support(-2, 3, 0.5) == status::token_out_of_range);
}
TEST_CASE(
    "token j of a draft is drawn with the number of the draft's stream at position start + j of "
    "its round") {
  const std::vector<float> logits(500, 1), invalid(500, std::nanf(""));
  std::vector<double> scratch(block_count(500));
  random_streams random(3, 4);
  const auto row = normalise(softmax_row<float>(logits));
  for (const std::uint32_t start : {0u, 17u})
    for (std::uint32_t j = 0; j < 4; ++j) {
      const token_id y = draw_draft(row, start, j, random, scratch);
      CHECK(y == draw(row, {stream::draft, start + j, start}, random, scratch));
      // normalised there
      CHECK(y == draw_draft(softmax_row<float>(logits), start, j, random, scratch));
    }
  CHECK(draw_draft(row, 0, 0, random, {}) == no_token);
  CHECK(draw_draft(softmax_row<float>(invalid), 0, 0, random, scratch) == no_token);
}
TEST_CASE("the verdict of every verifier names the token that ended the text, of several too") {
  const std::array<token_id, 2> two{1, 4};
  for (const end_tokens& ends : {end_tokens(4), end_tokens(two)}) {
    for_each_verifier(1, 2, [&](const auto& verifier) {
      ends_seen seen;
      for (std::uint64_t seed = 0; seed < 4000; ++seed) {
        ended_round r(seed);
        r.propose(verifier);
        verification one{draft{r.y, 0, ends}, std::span(r.q), std::span(r.p),
                         ensemble{0.3},       r.chooser,      std::span<emission>(r.out)};
        seen.see(verify(one, verifier, r.scratch), ends, r.out);
      }
      INFO(verifier.name);
      CHECK(seen.all());
    });
    const auto trees = [&](const auto& verifier) {
      ends_seen seen;
      const std::array<std::uint32_t, 3> parents{0, 0, 1};  // two children, and one of the first
      for (std::uint64_t seed = 0; seed < 4000; ++seed) {
        ended_round r(seed);
        const std::array<std::size_t, 3> row_of{0, 0, 1};
        for (std::uint32_t i = 1; i <= 3; ++i)
          r.y[i - 1] = draw_node(dense_row<double>(r.q[row_of[i - 1]]), 0, i, i < 3 ? 1 : 2,
                                 r.chooser, r.scratch);
        const std::array laws{r.q[0], r.q[0], r.q[0], r.q[1]};
        std::array<tree_node, 4> nodes;
        std::array<double, 2 * ended_round::V> residual;
        const tree_memory<double> work{r.out, nodes, residual, r.scratch};
        const tree_verdict v = verifier.verify(draft_tree{r.y, parents, 0, ends}, laws, r.q, r.p,
                                               lossless(), r.chooser, work);
        seen.see(v, ends, r.out);
      }
      CHECK(seen.all());
    };
    trees(traversal());
    trees(recursive_rejection());
  }
}
TEST_CASE("a verdict without an end token, or without a token, ended nothing") {
  ended_round r(1);
  r.propose(token_verifier());
  const verdict v = verify_token(draft{r.y}, r.q, r.p, lossless(), r.chooser, r.out, r.scratch);
  CHECK(v.ended == no_token);
  const verdict none =
      verify_token(draft{{}, 0, 4, false}, r.q, r.p, lossless(), r.chooser, r.out, r.scratch);
  CHECK((none.emitted == 0 && none.ended == no_token));
}
