// SPDX-License-Identifier: Apache-2.0
// Lossy speculative sampling: more drafted tokens are kept, for a law further from the target.
#include <specagg/decoders.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/exact_law.hpp>

using namespace specagg;

// The rows of draft and target at one position.
const std::vector<double> q{0.50, 0.30, 0.15, 0.05}, p{0.25, 0.35, 0.10, 0.30};
const std::vector<dense_row<double>> q_rows{dense_row<double>(q)}, p_rows{dense_row<double>(p)};

// How many of n tokens drawn from q verify_token keeps.
double kept(const auto& policy, std::size_t n) {
  std::vector<double> scratch(verify_scratch(q.size()));
  std::size_t accepted = 0;
  for (std::size_t request = 0; request < n; ++request) {
    random_streams random(/*seed=*/42, request);
    const token_id y[] = {draw_draft(dense_row<double>(q), 0, 0, random, scratch)};
    emission out[2];
    const draft drafted{.tokens = y, .bonus = false};
    accepted += verify_token(drafted, q_rows, p_rows, policy, random, out, scratch).accepted;
  }
  return double(accepted) / double(n);
}

void show(const char* what, const auto& policy) {
  const std::vector<double> law = target_law(policy, q, p);  // pi
  const dense_row<double> pi(law);
  std::printf("%-22s  %.3f  %.3f          %.3f      %.4f\n", what, kept(policy, 20000),
              1 - total_variation(q_rows[0], pi), total_variation(pi, p_rows[0]),
              kl_divergence(p_rows[0], pi));
}

int main() {
  std::printf("policy                  kept   1 - TV(q, pi)  TV(pi, p)  KL(p || pi)\n");
  show("lossless", lossless{});
  show("lossy 0.2, beta exact", lossy{.alpha = 0.2});
  show("lossy 0.2, beta 1", lenient(0.2));
  show("lossy 0.2, beta 0.8", lossy{.alpha = 0.2, .beta = 0.8});
  show("ensemble 0.29", ensemble{0.29});
  show("mentored, KL 0.02", mentored{0.02});
}

// Output:
// policy                  kept   1 - TV(q, pi)  TV(pi, p)  KL(p || pi)
// lossless                0.697  0.700          0.000      0.0000
// lossy 0.2, beta exact   0.789  0.788          0.088      0.0159
// lossy 0.2, beta 1       0.789  0.788          0.088      0.0203
// lossy 0.2, beta 0.8     0.789  0.788          0.101      0.0316
// ensemble 0.29           0.788  0.787          0.087      0.0206
// mentored, KL 0.02       0.801  0.798          0.098      0.0200
