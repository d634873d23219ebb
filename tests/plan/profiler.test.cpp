// SPDX-License-Identifier: Apache-2.0
#include <specagg/plan/profiler.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

struct measured {
  std::vector<double> t, seconds, scratch;
};
measured measure(double slope, double intercept, double noise, double outliers,
                 std::uint64_t seed) {
  numbers n(seed);
  measured m;
  for (int t = 100; t < 1100; t += 5) {
    m.t.push_back(t);
    m.seconds.push_back(intercept + slope * t + noise * n.bell() +
                        (n.uniform() < outliers ? 0.5 * n.uniform() : 0));
  }
  m.scratch.resize(m.t.size());
  return m;
}

}  // namespace

TEST_CASE("exact lines are found exactly") {
  auto m = measure(1e-5, 0.02, 0, 0, 1);
  const auto f = plan::fit_decode_time(m.t, m.seconds, m.scratch);
  CHECK(f.slope() == Approx(1e-5).epsilon(1e-10));
  CHECK(f.k_c == Approx(0.02).epsilon(1e-10));
  CHECK(f(500) == Approx(0.025).epsilon(1e-10));
}
TEST_CASE(
    "k_a and k_b are the means of (c - k_c) t and t^2, and their ratio the least-squares slope") {
  auto m = measure(1e-5, 0.02, 0.001, 0, 2);
  const auto f = plan::fit_decode_time(m.t, m.seconds, m.scratch);
  double st = 0, sc = 0, stt = 0, stc = 0, kept = 0, tt = 0, ta = 0;
  for (std::size_t i = 0; i < m.t.size(); ++i) {
    kept += 1;
    st += m.t[i];
    sc += m.seconds[i];
    stt += m.t[i] * m.t[i];
    stc += m.t[i] * m.seconds[i];
    tt += m.t[i] * m.t[i];
    ta += (m.seconds[i] - f.k_c) * m.t[i];
  }
  // nothing is an outlier
  CHECK(f.slope() == Approx((kept * stc - st * sc) / (kept * stt - st * st)).epsilon(1e-6));
  CHECK(f.k_b == Approx(tt / kept));
  CHECK(f.k_a == Approx(ta / kept));
}
TEST_CASE("a fifth of the measurements half a second late moves plain least squares, not the fit") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto m = measure(1e-5, 0.02, 2e-4, 0.2, seed);
    const auto f = plan::fit_decode_time(m.t, m.seconds, m.scratch);
    CHECK(f(600) == Approx(0.026).epsilon(0.01));
    CHECK(f.slope() == Approx(1e-5).epsilon(0.1));
    double mean = 0;
    for (const double s : m.seconds) mean += s / double(m.seconds.size());
    CHECK(mean > 1.5 * 0.026);
  }
}
TEST_CASE("few, equal or no measurements still give a line") {
  std::vector<double> scratch(3);
  CHECK(plan::fit_decode_time({}, {}, scratch)(100) == 0);
  const std::vector<double> t{7, 7, 7}, c{1, 2, 9};
  CHECK(plan::fit_decode_time(t, c, scratch)(7) == Approx(2));
  const std::vector<double> one{5}, s{0.5};
  CHECK(plan::fit_decode_time(one, s, scratch)(5) == Approx(0.5));
}
TEST_CASE("at run time the slope follows the machine and the intercept stays") {
  plan::decode_time f{1e-5 * 1e5, 1e5, 0.02};
  for (int i = 0; i < 200; ++i) f.observe(400 + i, 0.02 + 3e-5 * (400 + i), 0.05);
  CHECK(f.slope() == Approx(3e-5).epsilon(0.001));
  CHECK(f.k_c == 0.02);
  // One step, by hand: (1 - z) k_a + z (c - k_c) t over (1 - z) k_b + z t^2.
  plan::decode_time g{2, 4, 1};
  g.observe(3, 2.5, 0.25);
  CHECK(g.k_a == Approx(0.75 * 2 + 0.25 * 1.5 * 3));
  CHECK(g.k_b == Approx(0.75 * 4 + 0.25 * 9));
}
TEST_CASE("a moving average starts at the first observation and forgets at rate z") {
  plan::moving_average m;
  m.observe(10, 0.1);
  CHECK(m.value == 10);
  m.observe(20, 0.1);
  CHECK(m.value == Approx(11));
}
TEST_CASE("a profile of two sites becomes a setting of the recursion") {
  plan::profile p;
  p.decode_l = {2e-5, 1, 0.2};
  p.decode_r = {0, 1, 0.05};
  p.observe_round_trip(0.6, 0.1);
  p.from_l.bandwidth.observe(1e6, 0.1);
  p.from_r.bandwidth.observe(2e6, 0.1);
  for (int i = 0; i < 100; ++i) p.observe(plan::agreement_of(0.5, 0.5), 0.05);
  const auto d = p.setting(1000, 1000, 1e5, 0);
  CHECK(d.c_l == Approx(0.22));
  CHECK(d.c_r == Approx(0.05));
  CHECK(d.t_l == Approx(0.4));
  CHECK(d.t_r == Approx(0.3));
  CHECK(d.accept.both == Approx(0.25));
  CHECK(d.accept.l() == Approx(0.5));
  CHECK(d.accept.neither() == Approx(0.25));
}
TEST_CASE("measurements that are no numbers are left out") {
  auto m = measure(1e-5, 0.02, 1e-4, 0, 3);
  const auto clean = plan::fit_decode_time(m.t, m.seconds, m.scratch);
  for (std::size_t i = 0; i < m.t.size(); i += 7)
    m.seconds[i] = i % 2 == 0 ? std::nan("") : i % 3 == 0 ? HUGE_VAL : -HUGE_VAL;
  const auto f = plan::fit_decode_time(m.t, m.seconds, m.scratch);
  CHECK(f(600) == Approx(clean(600)).epsilon(0.01));
  std::fill(m.seconds.begin(), m.seconds.end(), std::nan(""));
  CHECK(plan::fit_decode_time(m.t, m.seconds, m.scratch)(600) == 0);
}
TEST_CASE("a moving line finds base and slope of a machine, and follows it to another") {
  plan::moving_line line;
  numbers n(4);
  for (int i = 0; i < 10; ++i) line.observe(4, 3, 0.02);
  CHECK((line.slope() == 0 && line.base() == Approx(3)));
  for (const double slope : {0.1, 0.4}) {
    for (int i = 0; i < 1000; ++i) {
      const double g = double(n.below(6));
      line.observe(g, 1 + slope * g + 0.05 * n.bell(), 0.02);
    }
    CHECK(line.slope() == Approx(slope).margin(0.02));
    CHECK(line.base() == Approx(1).margin(0.05));
  }
}
