// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/rows.hpp>

#include <array>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

constexpr std::size_t drafts = 3;
const std::vector<token_id> drafted(drafts, 1);
using row_list = std::vector<std::array<double, 3>>;
// All of them are certain of token 1, so every verifier keeps what is drafted.
row_list certain(std::size_t count) { return row_list(count, {0, 1, 0}); }

const auto token = [](const auto& q, const auto& p, const auto& policy, std::span<emission> out,
                      std::span<draft_acceptance> acceptances = {}) {
  std::array<double, 1> scratch;
  random_streams chooser(1);
  return verify_token({.tokens = drafted, .acceptances = acceptances}, q, p, policy, chooser, out,
                      scratch);
};
const auto block = [](const auto& q, const auto& p, const auto& policy, std::span<emission> out) {
  std::array<double, verify_scratch(3, drafts)> scratch;
  random_streams chooser(1);
  return verify_block({drafted}, q, p, policy, chooser, out, scratch);
};
const auto match = [](const auto& q, const auto& p, const auto& policy, std::span<emission> out) {
  std::array<double, 1> scratch;
  random_streams chooser(1);
  return verify_match({drafted}, q, p, policy, chooser, out, scratch);
};
const auto coupled = [](const auto& q, const auto& p, const auto& policy, std::span<emission> out) {
  return verify_coupled(coupled_draft{{drafted}}, q, p, policy, coupled_noise(1), out);
};
// A chain, as a tree. Its laws are there.
template <bool Traversal>
verdict by_tree(const row_list& q, const row_list& p, const auto& policy, std::span<emission> out) {
  const std::vector<std::uint32_t> parents{0, 1, 2};
  std::array<tree_node, drafts + 1> nodes;
  std::array<double, 3 * drafts> residual;
  std::array<double, 1> sums;
  const tree_memory<double> work{out, nodes, residual, sums};
  random_streams chooser(1);
  if constexpr (Traversal)
    return verify_tree({drafted, parents}, certain(drafts + 1), q, p, policy, chooser, work);
  else
    return verify_tree_recursive({drafted, parents}, certain(drafts + 1), q, p, policy, chooser,
                                 work);
}
const auto traversed = [](auto&&... a) { return by_tree<true>(a...); };
const auto recursive = [](auto&&... a) { return by_tree<false>(a...); };

using either = any_of<lossless, ensemble>;  // one at a time is compiled, so lossless reads no draft

// The verdict with so many rows of draft and target; all tokens that were emitted are right.
const auto verdict_of = [](const auto& verify, std::size_t q_rows, std::size_t p_rows,
                           const auto& policy) {
  std::array<emission, drafts + 1> out;
  const verdict v = verify(certain(q_rows), certain(p_rows), policy, std::span<emission>(out));
  for (std::size_t i = 0; i < v.emitted; ++i) CHECK(out[i].token == 1);
  return std::tuple(v.accepted, v.emitted, v.why);
};

}  // namespace

static_assert(RowList<const std::vector<std::vector<float>>> &&
              RowList<std::array<processed_row<float>, 2>> &&
              RowList<std::span<const one_hot_row<double>>>);
static_assert(!RowList<std::vector<float>> && !RowList<processed_row<float>> &&
              !RowList<const processed_row<float>*>);

TEST_CASE("a matrix of logits has whole rows, or none") {
  const std::vector<float> logits{0, 1, 2, 5, 4, 3};
  const auto rows = rows_of_logits(logits, 3, {.temperature = 0});
  CHECK(rows.size() == 2);
  const auto second = normalise(rows[1]);
  CHECK(second.why() == status::ok);
  CHECK((second.size() == 3 && second[0] == 1));
  CHECK(rows_of_logits(logits, 4).size() == 0);
  CHECK(rows_of_logits(logits, 9).size() == 0);
  CHECK(rows_of_logits(logits, 0).size() == 0);
  CHECK(rows_of_logits(std::span<const float>(), 3).size() == 0);
}
TEST_CASE("logits that are no whole number of rows are a vocabulary_mismatch for every verifier") {
  const std::vector<float> logits(16, 1);
  const std::vector<token_id> drafted{1, 0, 2};
  const auto why = [&](std::size_t of_q, std::size_t of_p, auto verify) {
    std::vector<emission> out(4);
    std::vector<double> scratch(verify_scratch(4, 3));
    const verdict v = verify(draft{drafted}, rows_of_logits(std::span(logits).first(12), of_q),
                             rows_of_logits(logits, of_p), out, scratch);
    return v.emitted == 0 ? v.why : status::ok;
  };
  const auto each = [&](auto verify) {
    CHECK(why(4, 4, verify) == status::ok);
    CHECK(why(5, 4, verify) == status::vocabulary_mismatch);
    CHECK(why(4, 5, verify) == status::vocabulary_mismatch);
    CHECK(why(4, 0, verify) == status::vocabulary_mismatch);
  };
  each([](auto&&... all) {
    const auto [d, q, p, out, scratch] = std::tie(all...);
    return verify_token(d, q, p, lossless{}, random_streams(1), out, scratch);
  });
  each([](auto&&... all) {
    const auto [d, q, p, out, scratch] = std::tie(all...);
    return verify_block(d, q, p, lossless{}, random_streams(1), out, scratch);
  });
}

TEST_CASE(
    "a row of the draft or target that was not given is missing_row. The tokens before it remain "
    "emitted") {
  const auto check = [](const auto& verify) {
    const either policy = ensemble{0.5};  // reads the draft
    const either lossless_one = lossless{};
    CHECK(verdict_of(verify, drafts + 1, drafts + 1, policy) ==
          std::tuple(drafts, drafts + 1, status::ok));
    for (std::size_t n = 0; n <= drafts; ++n) {
      CHECK(verdict_of(verify, n, drafts + 1, policy) == std::tuple(n, n, status::missing_row));
      CHECK(verdict_of(verify, drafts + 1, n, policy) == std::tuple(n, n, status::missing_row));
      CHECK(verdict_of(verify, drafts + 1, n, lossless_one) ==
            std::tuple(n, n, status::missing_row));
    }
    // A policy that does not read the draft needs no row of it for the bonus.
    CHECK(verdict_of(verify, drafts, drafts + 1, lossless_one) ==
          std::tuple(drafts, drafts + 1, status::ok));
  };
  check(token);
  check(block);
  check(match);
  check(coupled);
  check(traversed);
  check(recursive);
  const either one = lossless{};
  CHECK(verdict_of(token, 1, drafts + 1, one) == std::tuple(1u, 1u, status::missing_row));
  CHECK(verdict_of(block, 1, drafts + 1, one) == std::tuple(1u, 1u, status::missing_row));
  CHECK(verdict_of(match, 0, drafts + 1, one) == std::tuple(drafts, drafts + 1, status::ok));
  CHECK(verdict_of(coupled, 0, drafts + 1, one) == std::tuple(drafts, drafts + 1, status::ok));
  // By its type, too.
  CHECK(verdict_of(token, drafts, drafts + 1, lossless{}) ==
        std::tuple(drafts, drafts + 1, status::ok));
}

TEST_CASE("acceptances of positions without rows are 0") {
  std::array<emission, drafts + 1> out;
  std::array<draft_acceptance, drafts> acceptances;
  acceptances.fill({0.3, 0.3});
  const verdict v = token(certain(2), certain(drafts + 1), lossless{}, out, std::span(acceptances));
  CHECK(v.why == status::missing_row);
  CHECK((acceptances[1].of_row == 1 && acceptances[2].of_row == 0 && acceptances[2].of_token == 0));
}

TEST_CASE(
    "a node whose law was not given is left out with what hangs below it, and the law stays "
    "exact") {
  const std::vector<std::uint32_t> parents{0, 1, 2};
  for (const bool whole : {true, false})
    for (std::size_t n = 1; n <= drafts + 1; ++n) {
      std::array<tree_node, drafts + 1> nodes;
      std::array<double, 3 * drafts> residual;
      std::array<double, 1> sums;
      std::array<emission, drafts + 1> out;
      const tree_memory<double> work{out, nodes, residual, sums};
      random_streams chooser(1);
      const auto rows = certain(drafts + 1), laws = certain(n);
      const draft_tree tree{drafted, parents};
      const tree_verdict v =
          whole ? verify_tree(tree, laws, rows, rows, lossless{}, chooser, work)
                : verify_tree_recursive(tree, laws, rows, rows, lossless{}, chooser, work);
      CHECK(v.why == status::ok);
      CHECK(v.accepted == n - 1);
      CHECK(v.emitted == n);
      CHECK(out[n - 1].why == (n > drafts ? status::ok : status::missing_row));
    }
  // The law of the second of two siblings is missing: whether the walk comes to it is a matter of a
  // coin.
  const std::vector<double> q{0.25, 0.25, 0.25, 0.25}, p{0.1, 0.2, 0.3, 0.4};
  const std::vector<std::uint32_t> siblings{0, 0};
  const std::vector<std::vector<double>> laws(2, q), p_rows(3, p);
  for (const bool whole : {true, false}) {
    std::vector<double> counts(4);
    for (std::uint64_t request = 0; request < 20000; ++request) {
      std::array<tree_node, 3> nodes;
      std::array<double, 8> residual;
      std::vector<double> sums(verify_scratch(4));
      std::array<emission, 2> out;
      random_streams chooser(3, request);
      std::vector<token_id> y;
      for (const std::size_t i : {1u, 2u})
        y.push_back(draw_node(dense_row<double>(q), 0, i, 1, chooser, sums));
      const tree_memory<double> work{out, nodes, residual, sums};
      const draft_tree tree{y, siblings};
      const auto v =
          whole ? verify_tree(tree, laws, p_rows, p_rows, lossless{}, chooser, work)
                : verify_tree_recursive(tree, laws, p_rows, p_rows, lossless{}, chooser, work);
      REQUIRE(v.emitted > 0);
      counts[std::size_t(out[0].token)] += 1;
    }
    CHECK(goodness_of_fit(counts, p, 1e-9).passed);
  }
}

TEST_CASE("raw logits: a row that was not given is missing_row") {
  std::array<emission, drafts + 1> out;
  std::vector<double> memory(3), scratch(1);
  const std::vector<double> logits{0, 99, 0};
  const auto rows = [&](std::size_t count) {
    return rows_of(count, [&](std::size_t) { return processed_row<double>(logits); });
  };
  for (const auto& [q, p] : {std::pair(drafts + 1, drafts + 1), std::pair(drafts, drafts + 1),
                             std::pair(drafts + 1, drafts), std::pair(std::size_t(1), drafts + 1),
                             std::pair(drafts + 1, std::size_t(1))}) {
    const auto q_rows = rows(q), p_rows = rows(p);
    const std::size_t least = std::min(q, p);
    random_streams chooser(1);
    const raw_logits_verifier verifier(token_verifier{}, std::span(memory), sampling{});
    const verdict v =
        verifier.verify(draft{drafted}, q_rows, p_rows, raw_logits{geometric{0.5}}, chooser,
                        std::span<emission>(out), std::span<double>(scratch));
    CHECK(v.why == (least > drafts ? status::ok : status::missing_row));
    CHECK(v.emitted == least);
  }
}

TEST_CASE(
    "a request of a batch that lacks a row has a status, takes no row of another, and the next one "
    "goes on") {
  // Requests in one tensor, [request][drafts][V]: after the rows of the first stand those of the
  // second.
  using any_policy = any_of<lossless, token_v3, ensemble>;
  constexpr std::size_t V = 4, requests = 3;
  std::vector<float> q(requests * drafts * V), p(requests * (drafts + 1) * V);
  for (std::size_t i = drafts * V; i < q.size(); ++i) q[i] = float(i % V == 3 ? 9 : 0);
  const any_policy policies[requests] = {ensemble{0.3}, lossless{}, token_v3{0.4}};
  std::vector<double> scratch(requests * verify_scratch(V));
  std::vector<emission> out(requests * (drafts + 1));
  std::vector<verdict> verdicts(requests);
  std::array<std::size_t, requests> missing{};
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::vector<token_id> tokens(requests * drafts);
    const auto part = [&](const std::vector<float>& all, std::size_t i, std::size_t rows) {
      return rows_of_logits(std::span(all).subspan(i * rows * V, rows * V), V);
    };
    for (std::size_t i = 0; i < requests; ++i) {
      random_streams random(seed, i);
      for (std::size_t j = 0; j < drafts; ++j)
        tokens[i * drafts + j] = draw_draft(part(q, i, drafts)[j], 7, j, random, scratch);
    }
    const auto one = [&](std::size_t i) {
      return verification{
          draft{.tokens = std::span(tokens).subspan(i * drafts, drafts), .start = 7},
          part(q, i, drafts),
          part(p, i, drafts + 1),
          policies[i],
          random_streams(seed, i),
          std::span(out).subspan(i * (drafts + 1), drafts + 1)};
    };
    verify_batch(one, verdicts, scratch);
    for (std::size_t i = 0; i < requests; ++i) {
      const bool needs_row = i != 1 && verdicts[i].accepted == drafts;
      CHECK(verdicts[i].why == (needs_row ? status::missing_row : status::ok));
      CHECK(verdicts[i].emitted == verdicts[i].accepted + !needs_row);
      missing[i] += needs_row;
    }
  }
  // q = p in request 0: each of its drafts is accepted
  CHECK((missing[0] == 500 && missing[1] == 0));
  CHECK(missing[2] > 0);
}
