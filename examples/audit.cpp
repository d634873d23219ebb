// SPDX-License-Identifier: Apache-2.0
// Is my engine's sampler biased? Three bugs of real engines and a right sampler, by their tokens.
#include <specagg/decoders.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

#include <specagg/audit/sampler.hpp>

using namespace specagg;
using row = std::vector<double>;

const row q{0.50, 0.30, 0.15, 0.05}, p{0.25, 0.35, 0.10, 0.30};  // draft and target, everywhere

token_id pick(const row& w, double u) {
  for (const double total = w[0] + w[1] + w[2] + w[3]; const double& x : w)
    if ((u -= x / total) < 0) return token_id(&x - w.data());
  return 3;
}

// The engine, written by hand: one drafted token, then its replacement or a bonus. What it verifies
// the draft with, and whether the residual is drawn with the number that drew the draft.
struct engine {
  row verified_with = q;
  bool reuses_noise = false;

  std::vector<token_id> operator()(std::size_t request) const {
    const random_streams noise(2026, request);
    const double u = noise.uniform({stream::draft, 0, 0});
    const auto y = std::size_t(pick(q, u));
    if (noise.uniform({stream::coin, 0, 0}) * verified_with[y] < p[y])
      return {token_id(y), pick(p, noise.uniform({stream::bonus, 1, 0}))};
    row residual(4);
    for (std::size_t v = 0; v < 4; ++v) residual[v] = std::max(0.0, p[v] - verified_with[v]);
    const token_id z = pick(residual, reuses_noise ? u : noise.uniform({stream::residual, 0, 0}));
    return {z, pick(p, noise.uniform({stream::bonus, 2, 0}))};
  }
};

void audit(const char* what, const engine& e) {
  const auto law = [](const auto& t) { return p[std::size_t(t[0])] * p[std::size_t(t[1])]; };
  const fit f = audit_sampler(/*vocabulary=*/4, /*length=*/2, /*n=*/200000, e, law);
  std::printf("%-42s %s, TV %.4f (%.4f is found)\n", what, f.passed ? "passed" : "BIASED",
              f.distance, f.detectable);
}

int main() {
  audit("a right sampler", {});
  audit("draft and residual drawn with one number", {.reuses_noise = true});
  audit("rows of draft and target merged by index", {.verified_with = {q[1], q[0], q[2], q[3]}});
  audit("tested with the row truncated to be sent", {.verified_with = {0.625, 0.375, 0, 0}});
}

// Output:
// a right sampler                            passed, TV 0.0027 (0.0135 is found)
// draft and residual drawn with one number   BIASED, TV 0.0358 (0.0135 is found)
// rows of draft and target merged by index   BIASED, TV 0.1690 (0.0135 is found)
// tested with the row truncated to be sent   BIASED, TV 0.1289 (0.0135 is found)
