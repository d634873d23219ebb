// SPDX-License-Identifier: Apache-2.0
// The planned statistics of the suite's decoders; goodness_of_fit.bounds.test.cpp tests the fit
// itself. Every test here has fixed seeds; false_alarm below is the suite-wide rate 1e-6 split over
// the planned tests (Bonferroni), so that a changed seed is not a changed verdict.
#include <specagg/audit/goodness_of_fit.hpp>

#include <cstdio>
#include <map>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

constexpr double planned_tests = 24, false_alarm = 1e-6 / planned_tests;

// Counts of the texts of `length` tokens that speculative_decode emits for requests 0..n-1 through
// real random streams, against the joint law of the target. `streams(request)` makes the chooser.
template <class Policy, class Streams, class Verifier = token_verifier>
fit joint_fit(const Policy& policy, std::size_t gamma, std::size_t n, Streams streams,
              const Verifier& verifier = {}) {
  using T = double;
  constexpr std::size_t vocabulary = 3, length = 5;
  std::map<std::vector<token_id>, double> seen;
  toy_source<T> d(vocabulary, 11, 2, 2), m(vocabulary, 12, 2, 2);
  speculative_workspace<T> work(vocabulary, {.gamma = gamma});
  std::vector<token_id> buffer(16);
  for (std::size_t request = 0; request < n; ++request) {
    (void)d.rollback(0);
    (void)m.rollback(0);
    buffer[0] = 0;
    text t{buffer, 1};
    auto chooser = streams(request);
    const status s = speculative_decode(d, m, policy, chooser,
                                        {.text = t, .most = length, .work = work}, verifier);
    if (s != status::ok) return {.passed = false};
    seen[{buffer.begin() + 1, buffer.begin() + 1 + length}] += 1;
  }
  std::vector<double> counts, law;
  std::vector<token_id> y(length);
  for (std::size_t i = 0, all = 243; i < all; ++i) {
    double p = 1;
    std::vector<token_id> context{0};
    for (std::size_t j = 0, rest = i; j < length; ++j, rest /= vocabulary) {
      std::vector<T> ql(vocabulary), pl(vocabulary);
      d.row(context, ql);
      m.row(context, pl);
      y[j] = token_id(rest % vocabulary);
      p *= target_law(policy, softmax_row<T>(ql), softmax_row<T>(pl))[std::size_t(y[j])];
      context.push_back(y[j]);
    }
    law.push_back(p);
    counts.push_back(seen[y]);
  }
  return goodness_of_fit(counts, law, false_alarm);
}

void report(const char* name, const fit& f) {
  std::printf("%-44s distance %.4f, expected %.4f, p %.3g, finds TV >= %.4f\n", name, f.distance,
              f.expected_distance, f.p_value, f.detectable);
}

// A chooser that draws the residual with the noise of the draft: a bug shipped by a real engine.
struct reused_noise {
  random_streams inner;
  bool coin(moment m, double w, double t) { return inner.coin(m, w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return inner.draw({m.use == stream::residual ? stream::draft : m.use, m.position, m.start}, w);
  }
};

}  // namespace

TEST_CASE("many rounds through the production streams emit the joint law", "[more]") {
  const auto streams = [](std::size_t request) { return random_streams(2024, request); };
  const std::size_t n = 50000;
  for (const std::size_t gamma : {std::size_t(1), std::size_t(3)}) {
    const fit a = joint_fit(lossless{}, gamma, n, streams);
    const fit b = joint_fit(token_v3{0.4}, gamma, n, streams);
    const fit c = joint_fit(lossy{0.2}, gamma, n, streams);
    report("lossless", a);
    report("token-v3", b);
    report("lossy, exact beta", c);
    CHECK(a.passed);
    CHECK(b.passed);
    CHECK(c.passed);
    CHECK(a.detectable < 0.048);  // what a pass is worth
    CHECK(c.detectable < 0.048);
  }
}
namespace {
// Block verification's noise beyond the accepted prefix is seen again by the next round if numbers
// are keyed by position alone.
struct without_start {
  random_streams inner;
  bool coin(moment m, double w, double t) { return inner.coin({m.use, m.position, 0}, w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return inner.draw({m.use, m.position, 0}, w);
  }
};
}  // namespace
TEST_CASE(
    "block verification over many rounds emits the joint law. With noise keyed by position alone "
    "it does not",
    "[slow]") {
  const std::size_t n = 400000;
  const fit a = joint_fit(
      lossless{}, 3, n, [](std::size_t request) { return random_streams(5, request); },
      block_verifier{});
  const fit b = joint_fit(
      token_v3{0.4}, 2, n, [](std::size_t request) { return random_streams(6, request); },
      block_verifier{});
  const fit broken = joint_fit(
      lossless{}, 3, n,
      [](std::size_t request) { return without_start{random_streams(5, request)}; },
      block_verifier{});
  report("block, lossless", a);
  report("block, token-v3", b);
  report("block, keyed by position alone", broken);
  CHECK(a.passed);
  CHECK(b.passed);
  CHECK(a.detectable < 0.017);
  CHECK_FALSE(broken.passed);
}
TEST_CASE(
    "the p-value of one outcome is its tail, times both tails of each outcome and both tests") {
  const double tail = 0x1p-20;  // of twenty heads
  const std::vector<double> heads{20, 0}, coin{0.5, 0.5}, three{0.5, 0.25, 0.25};
  CHECK(goodness_of_fit(heads, coin, 1e-6).p_value == Approx(2 * 4 * tail).epsilon(1e-12));
  CHECK(goodness_of_fit(std::vector<double>{20, 0, 0}, three, 1e-6).p_value ==
        Approx(2 * 6 * tail).epsilon(1e-12));
  // The rate of false alarms that it may have, from one side and from the other.
  CHECK(goodness_of_fit(heads, coin, 7.999 * tail).passed);
  CHECK_FALSE(goodness_of_fit(heads, coin, 8.001 * tail).passed);
}
TEST_CASE("exact-match verification emits the joint law over many rounds") {
  const std::size_t n = 100000;
  const auto streams = [](std::size_t request) { return random_streams(8, request); };
  const fit a = joint_fit(lossless{}, 3, n, streams, match_verifier{});
  CHECK(a.passed);
  report("match, lossless", a);
}
TEST_CASE("mutant: a residual drawn with the draft's noise fails the planned fit") {
  const fit f = joint_fit(lossless{}, 3, 50000, [](std::size_t request) {
    return reused_noise{random_streams(2024, request)};
  });
  report("residual reuses the draft's noise", f);
  CHECK_FALSE(f.passed);
}
TEST_CASE("mutant: one noise for all requests fails the planned fit") {
  const fit f = joint_fit(lossless{}, 3, 50000, [](std::size_t) { return random_streams(2024); });
  CHECK_FALSE(f.passed);
}
