// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/contrastive.hpp>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

// What p lacks has no mass, for any q; what q alone lacks has infinite weight for mu
// > 0.
double plain(double p_weight, double q_weight, double q, double p) {
  return p > 0 ? std::pow(p, p_weight) * std::pow(q, q_weight) : 0;
}

}  // namespace

TEST_CASE("contrastive is softmax(l_p - mu l_q). `plus` is softmax((1 + mu) l_p - mu l_q)") {
  for (const double mu : {0.0, 0.1, 0.5, 2.0, -0.5})
    for (const bool holes : {false, true}) {
      const auto minus = [=](auto x) { return plain(1, -mu, x[0], x[1]); };
      CHECK(worst_against<2>(contrastive{mu}, minus, holes) < 1e-13);
      const auto plus = [=](auto x) { return plain(1 + mu, -mu, x[0], x[1]); };
      CHECK(worst_against<2>(contrastive{mu, 0, true}, plus, holes) < 1e-13);
    }
}
TEST_CASE("the plausibility mask takes tokens with p < a max p, strictly, and only those") {
  const row q{0.25, 0.25, 0.375, 0.125}, p{0.5, 0.25, 0.125, 0.125};
  const auto weights = [&](std::size_t kept) {
    row w(4);
    for (std::size_t v = 0; v < kept; ++v) w[v] = p[v] / q[v];
    return norm(w);
  };
  const auto close = [](const row& law, const row& due) {
    REQUIRE(law.size() == due.size());
    for (std::size_t v = 0; v < due.size(); ++v) CHECK(law[v] == Approx(due[v]).margin(1e-15));
  };
  close(target_law(contrastive{1, 0}, q, p), weights(4));
  close(target_law(contrastive{1, 0.25}, q, p), weights(4));  // 0.125 = 0.25 * 0.5: a tie stays
  close(target_law(contrastive{1, 0.26}, q, p), weights(2));
  close(target_law(contrastive{1, 0.5}, q, p), weights(2));
  close(target_law(contrastive{1, 1}, q, p), {1, 0, 0, 0});
}
TEST_CASE("the mask saves a law that a token of q alone would make infinite") {
  const row q{0.5, 0.5, 0}, p{0.5, 0.375, 0.125};
  status why = status::ok;
  CHECK(target_law(contrastive{0.5}, q, p, &why).empty());
  CHECK(why == status::undefined_target);
  const row law = target_law(contrastive{0.5, 0.5}, q, p);
  CHECK(law[0] == Approx(0.5 / 0.875).epsilon(1e-14));
  CHECK(law[2] == 0);
}
TEST_CASE("what p lacks has no mass even where its weight is not positive") {
  const row q{0.5, 0.25, 0.25}, p{0.5, 0.5, 0};
  // softmax(l_q), masked
  CHECK(target_law(contrastive{-1, 0, true}, q, p)[0] == Approx(2.0 / 3).epsilon(1e-14));
  CHECK(target_law(contrastive{-2, 0, true}, q, p)[0] == Approx(0.8).epsilon(1e-14));  // q^2 / p
  CHECK(target_law(contrastive{-2, 0, true}, q, p)[2] == 0);
}
TEST_CASE("parameters of contrastive: any finite mu, plausibility in [0, 1]") {
  CHECK(valid(contrastive{-3, 1}));
  CHECK_FALSE(valid(contrastive{inf}));
  for (const double a : {-0.1, 1.1, double(NAN)}) CHECK_FALSE(valid(contrastive{0.1, a}));
}
TEST_CASE("arithmetic of three models is softmax(l + a (l_plus - l_minus))") {
  numbers n(5);
  for (const double a : {0.0, 0.5, 1.0, 2.0, -1.0})
    for (int trial = 0; trial < 50; ++trial) {
      const row l = random_logits(n, 30), plus = random_logits(n, 30), minus = random_logits(n, 30);
      row combined(30);
      for (std::size_t v = 0; v < 30; ++v) combined[v] = l[v] + a * (plus[v] - minus[v]);
      const row law =
          law_of(arithmetic<>{a}, std::array{softmax(l), softmax(plus), softmax(minus)});
      REQUIRE(law.size() == 30);
      for (std::size_t v = 0; v < 30; ++v)
        CHECK(law[v] == Approx(softmax(combined)[v]).epsilon(1e-12));
    }
}
TEST_CASE("arithmetic of two models is (1 + a) l_p - a l_q, p having read the context") {
  for (const double a : {0.0, 0.5, 1.0, -0.5})
    for (const bool holes : {false, true})
      CHECK(worst_against<2>(
                arithmetic<2>{a}, [=](auto x) { return plain(1 + a, -a, x[0], x[1]); }, holes) <
            1e-13);
}
TEST_CASE(
    "arithmetic masks what l lacks, or l_plus. What only l_minus lacks makes it an "
    "undefined_target") {
  const row full{0.25, 0.25, 0.5}, lacking{0.5, 0.5, 0};
  CHECK(law_of(arithmetic<>{1}, std::array{lacking, full, full})[2] == 0);
  CHECK(law_of(arithmetic<>{1}, std::array{full, lacking, full})[2] == 0);
  CHECK(law_of(arithmetic<>{1}, std::array{lacking, full, lacking})[2] == 0);
  // -inf - (-inf): masked
  CHECK(law_of(arithmetic<>{1}, std::array{full, lacking, lacking})[2] == 0);
  CHECK(law_of(arithmetic<>{1}, std::array{full, full, lacking}).empty());
  CHECK(law_of(arithmetic<>{-1}, std::array{full, lacking, full}).empty());
  CHECK(law_of(arithmetic<>{0}, std::array{full, full, lacking}) == full);  // 0 (-inf) = 0
  CHECK_FALSE(valid(arithmetic<>{inf}));
}
