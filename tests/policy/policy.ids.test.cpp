// SPDX-License-Identifier: Apache-2.0
// Policies that read the token's id.
#include <array>
#include <cmath>
#include <vector>

#include <specagg/audit/audit_policy.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/decoders.hpp>

#include "policy/every_verifier.hpp"
#include "policy/ids.hpp"

namespace {

using row = std::vector<double>;

// pi of from_target, written out.
row by_hand(const row& q, const row& p, std::span<const token_id> set) {
  const auto in = [&](std::size_t v) { return std::ranges::count(set, token_id(v)) > 0; };
  double left_q = 0, left_p = 0;
  for (std::size_t v = 0; v < q.size(); ++v) {
    if (in(v)) continue;
    left_q += q[v];
    left_p += p[v];
  }
  row pi = p;
  for (std::size_t v = 0; v < q.size() && left_q > 0; ++v)
    if (!in(v)) pi[v] = q[v] * left_p / left_q;
  return pi;
}
row random_row(numbers& n, std::size_t size) {
  row x(size);
  double sum = 0;
  for (double& one : x) sum += one = n.uniform() + 1e-3;
  for (double& one : x) one /= sum;
  return x;
}

// A policy that says that it reads ids, and does not.
template <class Policy>
struct with_ids : Policy {
  static constexpr bool reads_ids = true;
  with_ids(const Policy& policy) : Policy(policy) {}
};

}  // namespace

TEST_CASE("a policy that reads ids has its law at every id, in every block") {
  numbers n(1);
  for (const std::size_t size : {1u, 2u, 17u, 1023u, 1025u, 5000u}) {
    const auto last = token_id(size - 1);
    const from_target<4> policy{{0, last, token_id(size / 2), 1024}};
    const row q = random_row(n, size), p = random_row(n, size);
    const row due = by_hand(q, p, policy.set), pi = target_law(policy, q, p);
    REQUIRE(pi.size() == size);
    double worst = 0;
    for (std::size_t v = 0; v < size; ++v) worst = std::max(worst, std::fabs(pi[v] - due[v]));
    CHECK(worst < 1e-15);
    const std::vector<float> fq(q.begin(), q.end()), fp(p.begin(), p.end());
    const std::vector<double> seen = target_law(policy, fq, fp);
    REQUIRE(seen.size() == size);
    double away = 0;
    for (std::size_t v = 0; v < size; ++v) away += std::fabs(seen[v] - due[v]);
    CHECK(away < 1e-5);
  }
}

TEST_CASE("a policy that reads ids emits exactly its law with every verifier") {
  using either = compiled_once<any_of<lossless, from_target<2>, checked<from_target<2>>>>;
  const policy_audit found = audit_policy(either(from_target<2>{{1, 1}}));
  CHECK(found.passed());
  CHECK(found.worst.error < 1e-14);
  CHECK(audit_policy(either(checked{from_target<2>{{0, 2}}}), block_verifier()).passed());
}

TEST_CASE("a policy is the same, bit by bit, whether its views have ids or not") {
  const auto same_as = []<class T>(T, const auto& policy) {
    const with_ids numbered(policy);
    for (const std::size_t V : {6u, 3000u})
      for (std::uint64_t seed = 0; seed < 6; ++seed)
        CHECK(by_every_verifier<T>(policy, seed, V) == by_every_verifier<T>(numbered, seed, V));
  };
  same_as(1.f, token_v3{0.2});
  same_as(1., lossless());  // reads no draft
}

TEST_CASE(
    "ids reach the rows of many models, of a target alone, and of one-hot and sparse drafts") {
  // p without token 1: reads no draft
  const without_token policy{1};
  const row p{0.5, 0.25, 0.25};
  const token_id y = 0;
  const random_streams chooser(1);
  std::array<emission, 2> out;
  std::array<double, verify_scratch(3, 1)> scratch;
  for (std::uint32_t start = 0; start < 50; ++start) {
    random_streams c = chooser;
    const verdict v = verify_token(draft{{&y, 1}, start}, std::array{one_hot_row<double>(0, 3)},
                                   std::array{p, p}, policy, c, out, scratch);
    REQUIRE(v.why == status::ok);
    for (std::size_t i = 0; i < v.emitted; ++i) CHECK(out[i].token != 1);
    CHECK((v.accepted == 1) == (out[0].token == 0));
  }
  CHECK(std::fabs(acceptance_rate(one_hot_row<double>(0, 3), p, policy) - 2.0 / 3) < 1e-15);
  const std::array<token_id, 2> ids{1, 2};
  const row values{0.5, 0.5};
  CHECK(std::fabs(acceptance_rate(sparse_row<double>(ids, values, 3), p, policy) - 1.0 / 3) <
        1e-15);
  // three models
  std::array<dense_row<double>, 3> three{dense_row<double>(p), dense_row<double>(p),
                                         dense_row<double>(p)};
  const status s =
      with_models(last_model_of_even_ids(), three, [](const auto& rows, const auto& pi) {
        CHECK(as_double(pi(at(rows, 0))) == Approx(2.0 / 3));
        CHECK(as_double(pi(at(rows, 1))) == 0);
        return status::ok;
      });
  CHECK(s == status::ok);
}

TEST_CASE("a tree of drafts towards a policy that reads ids emits only what the policy allows") {
  const without_token policy{1};
  const row q{0.2, 0.6, 0.2}, p{0.4, 0.3, 0.3};
  const std::array<std::uint32_t, 2> parents{0, 0};
  std::array<tree_node, 3> nodes;
  std::array<double, 6> residual;
  std::array<double, verify_scratch(3)> scratch;
  std::array<emission, 2> out;
  const std::vector<row> rows(3, q), target(3, p);
  std::array<int, 3> seen{};
  for (std::uint32_t start = 0; start < 2000; ++start) {
    random_streams chooser(7);
    std::array<token_id, 2> y;
    for (std::uint32_t i = 1; i <= 2; ++i)
      y[i - 1] = draw_node(dense_row<double>(q), start, i, 1, chooser, scratch);
    const tree_verdict v =
        verify_tree(draft_tree{y, parents, start, no_token, false}, rows, rows, target, policy,
                    chooser, tree_memory<double>{out, nodes, residual, scratch});
    REQUIRE(v.emitted > 0);
    ++seen[std::size_t(out[0].token)];
  }
  CHECK(seen[1] == 0);
  // 4/7 of 2,000 is 1,143; five standard deviations are 111
  CHECK(std::abs(seen[0] - 1143) < 111);
}

TEST_CASE("is_one_of compares every lane with every token") {
  const std::array<token_id, 3> tokens{3, 100, 1000000};
  for (const token_id first : {0, 90, 999990}) {
    using V = vec<float, 16>;
    const V found =
        select(is_one_of(V::iota(float(first)), std::span<const token_id>(tokens)), V(1), V(0));
    float x[16];
    found.store(x);
    for (int i = 0; i < 16; ++i)
      CHECK((x[i] == 1) == (std::ranges::count(tokens, token_id(first + i)) > 0));
  }
}
