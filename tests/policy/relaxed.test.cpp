// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/relaxed.hpp>
#include <specagg/policy/token_cascade.hpp>

#include <cmath>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

// at_1: p at temperature 1.
row due(const relaxed& x, const row& q, const row& p, const row& at_1, double floor) {
  row pi;
  double eta = 0;
  std::vector<bool> stands;
  for (std::size_t v = 0; v < p.size(); ++v) {
    const auto larger =
        std::count_if(at_1.begin(), at_1.end(), [&](double x) { return x > at_1[v]; });
    stands.push_back(at_1[v] >= floor && double(larger) < x.k);
    eta += stands[v] ? 0 : q[v];
  }
  for (std::size_t v = 0; v < p.size(); ++v) pi.push_back((stands[v] ? q[v] : 0) + eta * p[v]);
  return pi;
}
double top(const row& x) { return *std::max_element(x.begin(), x.end()); }
row due(const relaxed& x, const row& q, const row& p, const row& at_1) {
  return due(x, q, p, at_1, top(at_1) - x.delta);
}
row due(const relative& x, const row& q, const row& p, const row& at_1) {
  return due({x.k}, q, p, at_1, (1 - x.alpha) * top(at_1));
}

}  // namespace

TEMPLATE_TEST_CASE("relaxed and relative are their formulas, with ties, for every k and distance",
                   "", relaxed, relative) {
  numbers n(1);
  int same = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const std::size_t size = 1 + n.below(90);
    row l = random_logits(n, size, n.below(2) == 0);
    if (n.below(2) == 0)
      for (double& x : l) x = std::round(x);  // ties
    const std::array<row, 2> rows{softmax(random_logits(n, size)), softmax(l)};
    const double far = std::is_same_v<TestType, relative> ? 1.1 : 0.2;
    const TestType policy{double(1 + n.below(64)), n.between(-0.1, far)};
    const row pi = law_of(policy, rows);
    CHECK(near(pi, due(policy, rows[0], rows[1], rows[1])));
    same += near(pi, rows[0]);
  }
  CHECK(same < 300);
}
TEST_CASE(
    "relaxed and relative read the target's row at temperature 1, their law is of sampled ones") {
  const row l{2, 0, 1, -1}, m{0, 1, 0.5, 3};  // m: 0.04, 0.11, 0.06, 0.79
  const softmax_row<double> q(l, 0.5), p(m, 0.5);
  const row sampled_q = target_law(lossless{}, q, q), sampled_p = target_law(lossless{}, p, p);
  for (const double k : {1., 2., 4.})
    for (const double far : {0.69, 0.74, 0.88, 0.93, 0.97}) {
      const auto compare = [&](const auto& x) {
        CHECK(near(target_law(x, q, p), due(x, sampled_q, sampled_p, softmax(m))));
      };
      compare(relaxed{k, far});
      compare(relative{k, far});
    }
}
TEST_CASE("relaxed keeps a distance of probabilities, as TensorRT-LLM: the case of its documents") {
  const std::array<row, 2> rows{row{0.1, 0.1, 0.8}, row{0.5, 0.45, 0.05}};
  CHECK(near(law_of(relaxed{10, 0.6}, rows), rows[0]));
  CHECK(law_of(relaxed{64, 0.3}, rows) == law_of(token_v2{0.3}, rows));
  CHECK(near(law_of(relative{10, 0.6}, rows), {0.5, 0.46, 0.04}));
}
TEST_CASE("relative with one token, with all, and as token-v3, and margin with two") {
  const std::array<row, 2> rows{row{0.1, 0.2, 0.3, 0.4}, row{0.4, 0.3, 0.2, 0.1}};
  CHECK(near(law_of(relative{1, 1}, rows), due(relative{1, 1}, rows[0], rows[1], rows[1])));
  CHECK(near(law_of(relative{4, 1}, rows), rows[0]));
  CHECK(law_of(relative{64, 0.3}, rows) == law_of(token_v3{0.3}, rows));
  CHECK(law_of(margin(0.25), rows) == law_of(relative{2, 0.25}, rows));
  // 0.3 is a quarter less than 0.4: it stands; at 0.2 it does not
  CHECK(law_of(margin(0.26), rows)[1] == Approx(0.2 + 0.7 * 0.3));
  CHECK(law_of(margin(0.2), rows)[1] == Approx(0.9 * 0.3));
}
TEMPLATE_TEST_CASE("k is 1 to 64, and ends where the target has fewer tokens", "", relaxed,
                   relative) {
  using policy = TestType;
  CHECK((valid(policy{}) && valid(policy{1, -1}) && valid(policy{64, 2})));
  for (const double bad : {0., 0.9, 64.1, double(NAN), inf}) CHECK_FALSE(valid(policy{bad, 0.5}));
  CHECK_FALSE(valid(policy{2, double(NAN)}));
  CHECK(law_of(policy{64, 2}, std::array{row{0.5, 0.5, 0}, row{1, 0, 0}}) == row{0.5, 0.5, 0});
  row q(70, 1. / 70), p(70);  // 64 of 70 tokens stand
  for (std::size_t v = 0; v < 70; ++v) p[v] = double(v + 1) / 2485;
  CHECK(near(law_of(policy{64, 1}, std::array{q, p}), due(policy{64, 1}, q, p, p)));
  // by the formula a token that the target never emits stands where the distance is above 1
  CHECK(law_of(policy{1, 2}, std::array{row{0.5, 0.5, 0}, row{1, 0, 0}}) == row{1, 0, 0});
}
