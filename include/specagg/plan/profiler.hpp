// SPDX-License-Identifier: Apache-2.0
// Turns measured times into the numbers that plans need: decode time as a function of context
// length, links, acceptance rates. Liu et al. 2025, DRAGON, section 5.2. Times in seconds.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include <specagg/plan/dragon.hpp>

SPECAGG_BEGIN
namespace plan {

// A moving average: x <- (1 - z) x + z new, z in (0, 1]. The first observation becomes x.
struct moving_average {
  double value = 0;
  bool empty = true;
  constexpr void observe(double x, double z) {
    value = empty ? x : value + z * (x - value);
    empty = false;
  }
};

// Time to decode one token after a context of t tokens: (k_a / k_b) t + k_c.
struct decode_time {
  double k_a = 0, k_b = 1, k_c = 0;
  constexpr double slope() const { return k_b > 0 ? k_a / k_b : 0; }
  constexpr double operator()(double t) const { return slope() * t + k_c; }
  // Adds one measured token: the slope changes with weight z in (0, 1]; k_c stays fixed.
  constexpr void observe(double t, double seconds, double z) {
    k_a = (1 - z) * k_a + z * (seconds - k_c) * t;
    k_b = (1 - z) * k_b + z * t * t;
  }
};

// Least squares through the points (t_i, seconds_i). Points further from the line than 3 standard
// deviations are left out, and the fit is repeated until nothing changes. The deviation is 1.4826
// times the median distance of all points; outliers that are fewer than half of the points cannot
// move it far. Over the points kept, k_b = mean(t^2) and k_a = mean((seconds - k_c) t) = slope k_b.
// scratch: as many doubles as points. With fewer than two different t: the flat line through the
// median. No points: zeros. Points that are not finite are left out.
inline decode_time fit_decode_time(std::span<const double> t, std::span<const double> seconds,
                                   std::span<double> scratch) {
  const std::size_t n = std::min({t.size(), seconds.size(), scratch.size()});
  if (n == 0) return {};
  constexpr double largest = std::numeric_limits<double>::max();
  const auto median = [&] {  // of the scratch; a value that is not finite counts as far away
    for (double& x : scratch.first(n))
      if (!(x <= largest)) x = largest;
    const auto middle = scratch.begin() + std::ptrdiff_t(n / 2);
    std::nth_element(scratch.begin(), middle, scratch.begin() + std::ptrdiff_t(n));
    return *middle;
  };
  std::copy_n(seconds.begin(), n, scratch.begin());
  double slope = 0, k_c = median(), reach = largest;
  std::size_t kept = 0;
  double mean_tt = 0;
  for (int pass = 0; pass < 20; ++pass) {
    const auto distance = [&](std::size_t i) {
      return std::fabs(seconds[i] - (slope * t[i] + k_c));
    };
    std::size_t in = 0;
    double st = 0, sc = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (distance(i) <= reach) {
        ++in;
        st += t[i];
        sc += seconds[i];
      }
    if (in == 0) return {};
    const double t0 = st / double(in), c0 = sc / double(in);
    double stt = 0, stc = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (distance(i) <= reach) {
        stt += (t[i] - t0) * (t[i] - t0);
        stc += (t[i] - t0) * (seconds[i] - c0);
      }
    const double next = stt > 0 ? stc / stt : 0, next_c = stt > 0 ? c0 - next * t0 : k_c;
    mean_tt = stt / double(in) + t0 * t0;
    const bool same = in == kept && next == slope && next_c == k_c;
    kept = in;
    slope = next;
    k_c = next_c;
    if (same) break;
    for (std::size_t i = 0; i < n; ++i) scratch[i] = distance(i);
    reach = std::min(std::max(3 * 1.4826 * median(), 1e-12 * std::fabs(c0)), largest);
  }
  return {slope * mean_tt, mean_tt, k_c};
}

// The line y = base + slope x through observations that fade by z, slope >= 0 (0 while all x are
// alike). Use: y is the time of a scoring in seconds, x its number of drafted tokens; then
// draft_costs{.target = base(), .verify = slope()}.
struct moving_line {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  constexpr void observe(double at, double value, double z) {
    for (double* sum : {&n, &x, &y, &xx, &xy}) *sum *= 1 - z;
    n += 1;
    x += at;
    y += value;
    xx += at * at;
    xy += at * value;
  }
  constexpr double slope() const {
    const double spread = n * xx - x * x;
    return spread > 1e-9 * n * xx ? std::max(0.0, (n * xy - x * y) / spread) : 0;
  }
  constexpr double base() const { return n > 0 ? (y - slope() * x) / n : 0; }
};

// Time of a message of g bytes: L + g / B, with latency L in seconds and bandwidth B in bytes per
// second.
struct transmission_time {
  moving_average latency, bandwidth;
  constexpr double operator()(double g) const {
    return latency.value + (bandwidth.value > 0 ? g / bandwidth.value : 0);
  }
};

// The measurements that two sites share. One-way times cannot be measured without a common clock,
// so each is half of the round trip. z: weight of a new observation.
struct profile {
  decode_time decode_l, decode_r;
  transmission_time from_l, from_r;
  moving_average both, only_l, only_r;  // joint acceptance

  // Adds real outcomes (0 or 1), or their probabilities from agreement_of(rows), which give the
  // better estimate.
  constexpr void observe(const agreement& a, double z) {
    both.observe(a.both, z);
    only_l.observe(a.only_l, z);
    only_r.observe(a.only_r, z);
  }
  // Half of the round trip counts as the latency of each way.
  constexpr void observe_round_trip(double seconds, double z) {
    from_l.latency.observe(seconds / 2, z);
    from_r.latency.observe(seconds / 2, z);
  }
  // The setting for the next token: context_l, context_r are tokens of context, bytes_l, bytes_r
  // the sizes of the messages.
  constexpr dragon setting(double context_l, double context_r, double bytes_l,
                           double bytes_r) const {
    return {decode_l(context_l),
            decode_r(context_r),
            from_l(bytes_l),
            from_r(bytes_r),
            {both.value, only_l.value, only_r.value}};
  }
};

}  // namespace plan
SPECAGG_END
