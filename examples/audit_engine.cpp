// SPDX-License-Identifier: Apache-2.0
// "Is my engine's sampler biased?" Three real bugs, re-stated in small, and a right sampler,
// through the same audit.
#include <specagg/audit/sampler.hpp>
#include <specagg/specagg.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace specagg;
using row = std::vector<double>;

namespace {

// draft and target, the same at every position
const row q{0.50, 0.30, 0.15, 0.05}, p{0.25, 0.35, 0.10, 0.30};
constexpr std::size_t length = 2;

// An engine of one drafted token and a residual or a bonus, written by hand: what it draws the
// draft from, what it judges with, and which uniform draws the residual.
struct engine {
  row drafted_from = q, judged_with = q, target = p;
  bool shares_noise = false;

  static token_id pick(const row& w, double u) {
    double total = 0;
    for (const double x : w) total += x;
    u *= total;
    for (std::size_t v = 0; v < w.size(); ++v)
      if ((u -= w[v]) < 0) return token_id(v);
    return token_id(w.size() - 1);
  }
  std::vector<token_id> operator()(std::size_t request) const {
    const random_streams noise(2026, request);
    const double u = noise.uniform({stream::draft, 0, 0});
    const token_id y = pick(drafted_from, u);
    const auto v = std::size_t(y);
    if (noise.uniform({stream::coin, 0, 0}) * judged_with[v] < target[v])
      return {y, pick(target, noise.uniform({stream::bonus, 1, 0}))};
    row residual(4);
    for (std::size_t i = 0; i < 4; ++i) residual[i] = std::max(0.0, target[i] - judged_with[i]);
    const token_id z = pick(residual, shares_noise ? u : noise.uniform({stream::residual, 0, 0}));
    return {z, pick(target, noise.uniform({stream::bonus, 2, 0}))};
  }
};

bool report(const char* what, const engine& e, bool right) {
  const auto joint = [](const std::vector<token_id>& t) {
    return p[std::size_t(t[0])] * p[std::size_t(t[1])];
  };
  const fit f = audit_sampler(4, length, 200000, e, joint);
  std::printf("%-62s p-value %8.2g  %s\n", what, f.p_value, f.passed ? "no bias found" : "BIASED");
  if (right)
    std::printf("%62s (a bias of %.4f in total variation would have been found)\n", "",
                f.detectable);
  return f.passed == right;
}

}  // namespace

int main() {
  bool as_expected = report("a right sampler", {}, true);
  as_expected &= report("the residual is drawn with the uniform that drew the draft",
                        {.shares_noise = true}, false);
  // Two sparse rows zipped by index: the target's list of ids is in another order than the draft's.
  as_expected &= report("rows of draft and target merged by index, not by id",
                        {.judged_with = {q[1], q[0], q[2], q[3]}}, false);
  // The draft sampled from its full row, and verified against the row truncated for sending (top-p
  // 0.8).
  as_expected &= report("drafted from the full row, verified against the truncated one",
                        {.judged_with = {0.625, 0.375, 0, 0}}, false);
  return as_expected ? 0 : 1;
}
