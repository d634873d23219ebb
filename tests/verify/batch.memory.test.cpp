// SPDX-License-Identifier: Apache-2.0
// What docs/types.md says about memory: what a verification keeps, and what may be shared. Under
// AddressSanitizer these tests also show that nothing is read after it was freed.
#include <specagg/verify/batch.hpp>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <specagg/thread_pool.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 700, most = 3;
// Which policy it is does not matter here: the verifiers are compiled once for these.
using any_policy = compiled_once<any_of<lossless, token_v3, ensemble>>;

// Logits of most + 1 rows of draft and target that are not far apart.
struct logits {
  std::vector<float> q = std::vector<float>((most + 1) * V), p = q;
  explicit logits(std::uint64_t seed) {
    numbers noise(seed);
    for (std::size_t i = 0; i < q.size(); ++i) {
      p[i] = float(12 * noise.uniform());
      q[i] = p[i] + float(noise.uniform());
    }
  }
};
std::vector<processed_row<float>> rows_over(const std::vector<float>& l) {
  std::vector<processed_row<float>> rows;
  for (std::size_t j = 0; j <= most; ++j) rows.emplace_back(std::span(l).subspan(j * V, V));
  return rows;
}

// Draws a draft and verifies it, both with the same scratch, in which `before` stands each time.
template <class Verifier>
std::vector<double> round_over(std::uint64_t seed, const Verifier& verifier, double before) {
  std::vector<double> scratch(verify_scratch(V, most)), seen;
  const auto soil = [&] { std::fill(scratch.begin(), scratch.end(), before); };
  const logits l(seed);
  random_streams chooser(seed);
  std::vector<token_id> tokens;
  auto q = rows_over(l.q), p = rows_over(l.p);
  for (std::size_t j = 0; j < most; ++j) {
    soil();
    tokens.push_back(verifier.propose(q[j], 0, j, chooser, scratch));
    seen.push_back(tokens.back());
  }
  soil();
  std::vector<emission> out(most + 1);
  std::vector<draft_acceptance> acceptances(most);
  const verdict v = verifier.verify(draft{.tokens = tokens, .acceptances = acceptances}, q, p,
                                    any_policy(token_v3{0.3}), chooser, out, scratch);
  seen.insert(seen.end(), {double(v.accepted), double(v.emitted), double(v.why)});
  for (std::size_t i = 0; i < v.emitted; ++i)
    seen.insert(seen.end(), {double(out[i].token), out[i].log_pi});
  for (const draft_acceptance& a : acceptances) seen.insert(seen.end(), {a.of_row, a.of_token});
  return seen;
}

}  // namespace

TEST_CASE("scratch keeps nothing: drafts and verifications may use it in turn") {
  for_each_verifier(3, 0, [](const auto& verifier) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto clean = round_over(seed, verifier, 0);
      CHECK(clean == round_over(seed, verifier, std::nan("")));
      CHECK(clean == round_over(seed, verifier, 1e300));
    }
  });
}

TEST_CASE("the scratch of a tree keeps nothing, and its residual weights neither") {
  const logits l(5);
  const std::vector<std::uint32_t> parents{0, 0, 1};
  const auto verified = [&](auto&& verifier, double before) {
    auto q = rows_over(l.q), p = rows_over(l.p);
    std::vector<double> scratch(verify_scratch(V), before);
    std::vector<float> residual(2 * V, float(before));
    std::vector<tree_node> nodes(parents.size() + 1);
    std::vector<emission> out(3);
    random_streams chooser(9);
    std::vector<token_id> tokens;
    const std::vector<processed_row<float>> laws{q[0], q[0], q[0], q[1]};
    for (std::size_t i = 1; i < laws.size(); ++i) {
      auto law = laws[i];
      tokens.push_back(draw_node(law, 0, i, i == 3 ? 2 : 1, chooser, scratch));
    }
    std::fill(scratch.begin(), scratch.end(), before);
    const tree_verdict v = verifier.verify(draft_tree{.tokens = tokens, .parents = parents}, laws,
                                           q, p, any_policy(lossless{}), chooser,
                                           tree_memory<float>{out, nodes, residual, scratch});
    REQUIRE(v.why == status::ok);
    std::vector<double> seen{double(v.accepted), double(v.node)};
    for (std::size_t i = 0; i < v.emitted; ++i)
      seen.insert(seen.end(), {double(out[i].token), out[i].log_pi});
    return seen;
  };
  CHECK(verified(traversal{}, 0) == verified(traversal{}, std::nan("")));
  CHECK(verified(recursive_rejection{}, 0) == verified(recursive_rejection{}, std::nan("")));
}

TEST_CASE("a verification writes no row that it is given: threads may share a list of rows") {
  const logits l(11);
  const auto q = rows_over(l.q), p = rows_over(l.p);  // const, and not normalised
  constexpr std::size_t requests = 16;
  const std::vector<token_id> tokens(most, 7);
  const auto all = [&](auto&& pool) {
    std::vector<verdict> verdicts(requests);
    std::vector<emission> out(requests * (most + 1));
    std::vector<double> scratch(requests * verify_scratch(V, most));
    verify_batch(
        [&](std::size_t i) {
          return verification{draft{.tokens = tokens},
                              std::span(q),
                              std::span(p),
                              any_policy(lossless{}),
                              random_streams(1, i),
                              std::span(out).subspan(i * (most + 1), most + 1)};
        },
        verdicts, scratch, token_verifier{}, pool);
    std::vector<token_id> emitted;
    for (std::size_t i = 0; i < requests; ++i) {
      REQUIRE(verdicts[i].why == status::ok);
      emitted.push_back(out[i * (most + 1)].token);
    }
    return emitted;
  };
  thread_pool pool(4);
  CHECK(all(this_thread()) == all(pool));
}

TEST_CASE("what a verification gives back needs none of what it was given") {
  auto l = std::make_unique<logits>(2);
  auto tokens = std::make_unique<std::vector<token_id>>(most, token_id(1));
  auto ends = std::make_unique<std::vector<token_id>>(std::vector<token_id>{5, 6});
  auto scratch = std::make_unique<std::vector<double>>(verify_scratch(V, most));
  std::vector<emission> out(most + 1);
  const verdict v =
      verify(verification{draft{.tokens = *tokens, .end_of_text = *ends}, rows_of_logits(l->q, V),
                          rows_of_logits(l->p, V), any_policy(ensemble{0.5}), random_streams(4),
                          std::span(out)},
             block_verifier{}, *scratch);
  l.reset();
  tokens.reset();
  ends.reset();
  scratch.reset();
  REQUIRE(v.why == status::ok);
  REQUIRE(v.emitted > 0);
  CHECK(out[v.emitted - 1].token >= 0);
  CHECK(std::isfinite(out[v.emitted - 1].log_pi));
}

TEST_CASE("a row remembers its logits' normaliser: after they were changed it must be made anew") {
  std::vector<float> l(V);
  l[3] = 9;
  const auto row = normalise(processed_row<float>(l, {.top_k = 5}));
  REQUIRE(row.why() == status::ok);
  const float before = row[3];
  for (float& x : l) x -= 4;
  CHECK(normalise(row).why() == status::ok);
  CHECK(row[3] < 0.5f * before);  // e^-4 of it: the normaliser is the old one
  const auto anew = normalise(processed_row<float>(l, {.top_k = 5}));
  REQUIRE(anew.why() == status::ok);
  CHECK(std::fabs(anew[3] - before) < 1e-6f);
}

TEST_CASE("copies of a chooser of the library draw the same numbers, in any order") {
  const random_streams one(8, 2);
  random_streams other = one;
  const moment a{stream::coin, 3, 1}, b{stream::draft, 9, 1};
  const double first = one.uniform(a);
  CHECK(other.uniform(b) == one.uniform(b));
  CHECK(other.uniform(a) == first);
}
