// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/best_of_independent.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/tree_law.hpp>

#include "verify/random_rows.hpp"

using namespace specagg;

namespace {

using probabilities = std::vector<double>;

// What choose() does with every tuple of drafts and every branch of its decisions.
struct found {
  probabilities law;
  double drafted = 0;  // the probability that the emitted token is one of the drafts
};
found enumerated(const probabilities& q, const probabilities& p, std::size_t n) {
  const best_of_independent best(q, p, n);
  found all{probabilities(q.size()), 0};
  std::vector<token_id> drafts(n);
  for (bool more = true; more;) {
    double probability = 1;
    for (const token_id y : drafts) probability *= q[std::size_t(y)];
    exhaustive_chooser chooser;
    do {
      const token_id y = best.choose(drafts, {stream::coin, 0, 0}, chooser);
      if (y == no_token) break;  // a draft has q = 0
      all.law[std::size_t(y)] += probability * chooser.probability;
      for (const token_id x : drafts)
        if (x == y) {
          all.drafted += probability * chooser.probability;
          break;
        }
      REQUIRE(chooser.reused == 0);
    } while (chooser.next());
    more = false;
    for (token_id& y : drafts) {
      if (std::size_t(++y) < q.size()) {
        more = true;
        break;
      }
      y = 0;
    }
  }
  return all;
}

double worst = 0, far = 0;
void check(const probabilities& q, const probabilities& p, std::size_t n) {
  const found all = enumerated(q, p, n);
  for (std::size_t v = 0; v < q.size(); ++v) worst = std::max(worst, std::fabs(all.law[v] - p[v]));
  const double optimum = optimum_of_independent(q, p, n);
  far = std::max({far, std::fabs(all.drafted - optimum),
                  std::fabs(best_of_independent(q, p, n).accepted() - optimum)});
}

}  // namespace

TEST_CASE("the best of independent drafts has the law pi, and accepts the optimum") {
  worst = far = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const std::size_t V = 2 + seed % 4, n = 1 + seed / 4 % 4;
    const double spread = 0.5 + seed % 7;
    check(random_row(2 * seed, V, spread), random_row(2 * seed + 1, V, spread), n);
  }
  CHECK(worst < 1e-12);
  CHECK(far < 1e-12);
  std::printf("best of independent drafts: error of the law %.1e, from the optimum %.1e\n", worst,
              far);
}
TEST_CASE("the best of independent drafts at the edges: zeros, equal rows, disjoint rows") {
  worst = far = 0;
  for (const std::size_t n : {1u, 2u, 3u, 5u}) {
    check({0.5, 0.3, 0.2}, {0.5, 0.3, 0.2}, n);
    check({1, 0}, {0.25, 0.75}, n);
    check({0.5, 0.5, 0}, {0, 0, 1}, n);
    check({0.5, 0.5, 0}, {0, 0.5, 0.5}, n);
    check({0.25, 0.25, 0.25, 0.25}, {0.5, 0.5, 0, 0}, n);
    check({0.9, 0.05, 0.05}, {0.02, 0.49, 0.49}, n);
    check({1e-9, 1 - 1e-9}, {1 - 1e-9, 1e-9}, n);
  }
  CHECK(worst < 1e-12);
  CHECK(far < 1e-12);
}
TEST_CASE("the best of independent drafts reaches the optimum on large vocabularies") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const std::size_t n = 2 + seed % 4;
    const auto q = random_row(2 * seed, 3000, 9), p = random_row(2 * seed + 1, 3000, 9);
    const best_of_independent best(q, p, n);
    CHECK(std::fabs(best.accepted() - optimum_of_independent(q, p, n)) < 1e-12);
    CHECK(best.accepted() > optimum_of_independent(q, p, 1) + 0.05);
  }
}
TEST_CASE("the best of independent drafts refuses other drafts than it was made for") {
  const probabilities q{0.5, 0.5, 0}, p{0.2, 0.3, 0.5};
  const best_of_independent best(q, p, 2);
  const random_streams chooser(1);
  const auto chosen = [&](std::vector<token_id> drafts) {
    return best.choose(drafts, {stream::coin, 0, 0}, chooser);
  };
  CHECK(chosen({0, 1}) != no_token);
  CHECK(chosen({0}) == no_token);
  CHECK(chosen({0, 2}) == no_token);
  CHECK(chosen({0, 3}) == no_token);
  CHECK(chosen({0, -1}) == no_token);
}
