// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/policies_of.hpp>

#include <array>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/decoders.hpp>

#include "policy/every_verifier.hpp"
#include "verify/random_rows.hpp"

using namespace specagg;

namespace {

using path = std::vector<token_id>;

std::vector<double> row_after(const path& prefix, std::uint32_t model) {
  std::uint32_t key = model;
  for (const token_id t : prefix) key = key * 31 + std::uint32_t(t) + 7;
  return random_row(key, 3, 2);
}
const auto q_after = [](const path& prefix) { return row_after(prefix, 5); };
const auto p_after = [](const path& prefix) { return row_after(prefix, 6); };

constexpr std::array<double, 5> weights{0.9, 0.1, 0.6, 0.35, 0.7};
// Relaxed after token 1, else the ensemble of this position.
using either = any_of<token_v3, ensemble>;
either policy_after(const path& prefix) {
  if (!prefix.empty() && prefix.back() == 1) return token_v3{0.4};
  return ensemble{weights[prefix.size()]};
}
const auto promised = [](const path& prefix) {
  return target_law(policy_after(prefix), q_after(prefix), p_after(prefix));
};

template <class V>
double error_of_chain(const V& verifier, std::size_t gamma) {
  const round_error e = worst_error_of_round(
      lossless{}, gamma, q_after, p_after,
      [&](const draft& drafted, auto& q, auto& p, const lossless&, auto& chooser, auto out,
          auto scratch) {
        const auto policies = policies_of([&](std::size_t j) {
          return policy_after({drafted.tokens.begin(), drafted.tokens.begin() + std::ptrdiff_t(j)});
        });
        return verifier.verify(drafted, q, p, policies, chooser, out, scratch);
      },
      promised);
  CHECK(e.reused == 0);
  return e.error;
}
template <class V>
double error_of_tree(const V& verifier, proposal kind, std::vector<std::size_t> shape) {
  const round_error e = worst_error_of_tree(
      lossless{}, shape, kind, q_after, p_after,
      [&](const draft_tree& tree, auto& laws, auto& q, auto& p, const lossless&, auto& chooser,
          const auto& work) {
        const auto policies = policies_of([&](std::size_t n) {
          path above;
          for (; n > 0; n = tree.parents[n - 1]) above.insert(above.begin(), tree.tokens[n - 1]);
          return policy_after(above);
        });
        return verifier.verify(tree, laws, q, p, policies, chooser, work);
      },
      promised);
  CHECK(e.reused == 0);
  return e.error;
}

}  // namespace

TEST_CASE("a policy of each position, which may depend on the drafted path: exactly its law") {
  for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
    CHECK(error_of_chain(token_verifier{}, gamma) < 1e-12);
    CHECK(error_of_chain(block_verifier{}, gamma) < 1e-12);
    CHECK(error_of_chain(match_verifier{}, gamma) < 1e-12);
  }
}
TEST_CASE("a policy of each node of a tree: exactly its law") {
  for (const proposal kind : {proposal::greedy, proposal::sampled, proposal::top}) {
    CHECK(error_of_tree(traversal{}, kind, {2, 2}) < 1e-12);
    CHECK(error_of_tree(traversal{}, kind, {2, 1, 1}) < 1e-12);
    CHECK(error_of_tree(recursive_rejection{}, kind, {2, 2}) < 1e-12);
  }
}
TEST_CASE("a list of one policy at all positions gives its bits, under every verifier") {
  const auto same_bits = []<class T>(T, const auto& policy) {
    const auto all = policies_of([&](std::size_t) { return policy; });
    using list = std::decay_t<decltype(all)>;
    using one = std::decay_t<decltype(policy)>;
    STATIC_REQUIRE(reads_draft<list> == reads_draft<one>);
    STATIC_REQUIRE(reads_confidence<list> == reads_confidence<one>);
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      for (const std::size_t V : {40u, 1500u})
        CHECK(by_every_verifier<T>(all, seed, V) == by_every_verifier<T>(policy, seed, V));
  };
  same_bits(1.f, lossless{});  // reads no draft
  same_bits(1., either{ensemble{0.4}});
}
TEST_CASE("a policy with parameters out of range ends the step at its position") {
  const std::vector<std::vector<double>> rows(3, {0.5, 0.5});
  const auto bad_at = [](std::size_t bad) {
    return policies_of([=](std::size_t j) { return ensemble{j == bad ? 2. : 0.5}; });
  };
  const std::vector<token_id> y{1, 0};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(2, 2));
  for (const std::size_t bad : {0u, 1u, 2u}) {
    const verdict v =
        verify_token(draft{y, 0}, rows, rows, bad_at(bad), random_streams(1), out, scratch);
    CHECK(v.why == status::invalid_parameter);
    CHECK(v.emitted == bad);
  }
  CHECK(verify_token(draft{y, 0}, rows, rows, bad_at(3), random_streams(1), out, scratch).emitted ==
        3);
}
