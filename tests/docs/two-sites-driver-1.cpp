// SPDX-License-Identifier: Apache-2.0
// The token has the law of both sites, whose weights are 0.75 and 0.25; and it says which drafts it
// confirmed.
#include <array>
#include <cmath>
#include <cstdio>

int main() {
  const std::array<float, 3> p_l{0.5f, 0.25f, 0.25f}, p_r{0.125f, 0.125f, 0.75f};
  std::array<double, 3> seen = {};
  double l = 0, r = 0;
  constexpr int n = 40000;
  for (std::uint32_t i = 0; i < n; ++i) {
    const aggregation a = next_token(p_l, std::log(3.0), p_r, 0, i, 7);
    if (a.why != status::ok) return 1;
    seen[std::size_t(a.token)] += 1.0 / n;
    l += a.accepted_l / double(n);
    r += a.accepted_r / double(n);
  }
  const agreement due = agreement_of(p_l, p_r, weigh_sites(std::log(3.0), 0));
  std::printf("l %.3f (%.3f), r %.3f (%.3f)\n", l, due.l(), r, due.r());
  for (std::size_t v = 0; v < 3; ++v) {
    const double pi = 0.75 * double(p_l[v]) + 0.25 * double(p_r[v]);
    std::printf("token %zu: %.3f, pi %.3f\n", v, seen[v], pi);
    if (std::fabs(seen[v] - pi) > 0.01) return 1;
  }
  return std::fabs(l - due.l()) > 0.01 || std::fabs(r - due.r()) > 0.01;
}
