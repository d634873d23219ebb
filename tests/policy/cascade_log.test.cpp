// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/cascade_log.hpp>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

double entropy(const row& x) {
  double h = 0;
  for (const double p : x) h -= p > 0 ? p * std::log(p) : 0;
  return h;
}
double tv(const row& a, const row& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += std::max(0.0, a[v] - b[v]);
  return sum;
}
double cross(const row& q, const row& p) {
  double h = 0;
  for (std::size_t v = 0; v < q.size(); ++v) h -= q[v] > 0 ? q[v] * std::log(p[v]) : 0;
  return h;
}
// The policy defers for every alpha below `threshold`, and for none above.
template <class Policy>
void defers_below(double threshold, const row& q, const row& p) {
  for (const double step : {1e-12, 1e-3, 1.0}) {
    CHECK(target_law(Policy{threshold - step}, q, p) == p);
    CHECK(target_law(Policy{threshold + step}, q, p) == q);
  }
}

}  // namespace

TEST_CASE(
    "chow-log, diff-log, opt-log and bild defer below the alpha of their formulas, holes or not") {
  numbers n(6);
  for (int trial = 0; trial < 100; ++trial) {
    const bool holes = trial % 2;
    const std::size_t size = 2 + n.below(30);
    row q, p;
    do {  // rows whose sum is 1 in doubles come back bit by bit
      const auto sixteenths = [&] {
        row x(size);
        for (int i = 0; i < 1024; ++i) x[n.below(holes ? (size + 1) / 2 : size)] += 0x1p-10;
        return x;
      };
      q = sixteenths();
      p = sixteenths();
    } while (tv(q, p) == 0);
    defers_below<chow_log>(entropy(q), q, p);
    defers_below<diff_log>(entropy(q) - entropy(p), q, p);
    defers_below<opt_log>((entropy(q) - entropy(p)) / tv(q, p), q, p);
    if (cross(q, p) < inf) defers_below<bild>(cross(q, p), q, p);
  }
}
TEST_CASE("ties do not defer") {
  const row q{1, 0}, p{0, 1};  // entropies of exactly 0
  CHECK(target_law(chow_log{0}, q, p) == q);
  CHECK(target_law(diff_log{0}, q, p) == q);
  CHECK(target_law(opt_log{0}, q, p) == q);
  CHECK(target_law(bild{0}, q, q) == q);
  CHECK(target_law(chow_log{-1e-300}, q, p) == p);
  CHECK(target_law(diff_log{-1e-300}, q, p) == p);
}
TEST_CASE("zeros cost no entropy, and bild's is infinite where p lacks a token of q") {
  const row q{0.5, 0.5, 0}, p{0.5, 0.25, 0.25}, lacking{1, 0, 0};
  defers_below<chow_log>(std::log(2), q, p);
  defers_below<bild>(1.5 * std::log(2), q, p);
  CHECK(target_law(bild{1e300}, q, lacking) == lacking);
  CHECK(target_law(bild{1e300}, lacking, q) == lacking);  // -log 0.5 is little
}
TEST_CASE("entropies are those of rows at temperature 1, TV and the law those of sampled ones") {
  const row l{1, 0, 0}, m{0.4, 0, 1.3};
  const double t = 0.25;
  const row q1 = softmax(l), p1 = softmax(m), qt = softmax({4, 0, 0}), pt = softmax({1.6, 0, 5.2});
  REQUIRE(entropy(q1) - entropy(qt) > 0.1);
  const softmax_row<double> q(l, t), p(m, t);
  const auto defers_below_alpha = [&](auto policy, double threshold) {
    for (const double step : {1e-9, 1e-3}) {
      policy.alpha = threshold - step;
      const row deferred = target_law(policy, q, p);
      policy.alpha = threshold + step;
      const row kept = target_law(policy, q, p);
      for (std::size_t v = 0; v < 3; ++v) {
        CHECK(deferred[v] == Approx(pt[v]).epsilon(1e-12));
        CHECK(kept[v] == Approx(qt[v]).epsilon(1e-12));
      }
    }
  };
  defers_below_alpha(chow_log{}, entropy(q1));
  defers_below_alpha(diff_log{}, entropy(q1) - entropy(p1));
  defers_below_alpha(opt_log{}, (entropy(q1) - entropy(p1)) / tv(qt, pt));
  defers_below_alpha(bild{}, cross(q1, p1));
}
TEST_CASE(
    "greedy bild defers below -log p of the draft's most likely token, of several the lowest id, "
    "by "
    "rows at temperature 1") {
  const row q{1, 0, 0}, p{0, 1, 0}, cq{.5, .3, .2}, cp{.3, .5, .2};
  const auto with = [](const row& x, const row& c) {
    return confident_row(dense_row<double>(x), dense_row<double>(c));
  };
  const auto law = [&](const bild& policy) { return target_law(policy, with(q, cq), with(p, cp)); };
  CHECK(law({1.15, true}) == p);   // -ln .3 = 1.204
  CHECK(law({1.15, false}) == q);  // -(.5 ln .3 + .3 ln .5 + .2 ln .2) = 1.132
  CHECK(law({1.203, true}) == p);
  CHECK(law({1.205, true}) == q);
  CHECK(target_law(bild{1e300, true}, q, p) == p);  // p lacks the token: D is infinite
  // the other of two
  CHECK(target_law(bild{1e300, true}, row{.5, .5, 0}, row{.9, 0, .1}) == row{.5, .5, 0});

  numbers n(11);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t size = 1 + n.below(3000), first = n.below(size);
    row x(size), y = softmax(random_logits(n, size));
    for (double& v : x) v = n.between(0, 1);
    x[first] = 2;
    for (int tie = 0; tie < trial % 4; ++tie) x[first + n.below(size - first)] = 2;
    const row drafted = norm(x);
    const std::vector<float> xf(drafted.begin(), drafted.end()), yf(y.begin(), y.end());
    const double d = -std::log(y[first]);
    for (const double step : {-1e-5, 1e-5}) {
      // tells by a token in which the rows differ
      const auto deferred = [&](const auto& a, const auto& b) {
        const row pi = target_law(bild{d + step, true}, a, b);
        REQUIRE(pi.size() == size);
        for (std::size_t v = 0; v < size; ++v)
          if (std::fabs(drafted[v] - y[v]) > 1e-5)
            return std::fabs(pi[v] - y[v]) < std::fabs(pi[v] - drafted[v]);
        return step < 0;
      };
      REQUIRE(deferred(drafted, y) == (step < 0));
      REQUIRE(deferred(xf, yf) == (step < 0));
    }
  }
}
TEST_CASE("any finite alpha will do") {
  CHECK(valid(chow_log{-1e300}));
  CHECK_FALSE(valid(diff_log{inf}));
  CHECK_FALSE(valid(opt_log{std::nan("")}));
  CHECK_FALSE(valid(bild{-inf}));
  CHECK_FALSE(valid(bild{std::nan(""), true}));
}
