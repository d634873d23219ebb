// SPDX-License-Identifier: Apache-2.0
// A new decoding rule: its equation, its exact law, its trade-off curve, and a text decoded with it; and what a rule
// that is no law is told.
// docs/write-your-own-rule.md explains it line by line.
#include <specagg/specagg.hpp>

#include <cstdio>
#include <string>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>

// pi = p if the two models differ by more than alpha in total variation, else q.
struct distant {
  double alpha = 0;

  template <class Rows>
  auto bind(const Rows& rows) const {
    const double tv = rows.sum([](auto at) { return positive(at.p - at.q); });
    return specagg::target_if(tv > alpha);
  }
};

// Half of q and, by a slip, .4 of p: its sum is .9.
struct slip {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return fma(0.4, at.p, 0.5 * at.q); };
  }
};

int main() {
  using namespace specagg;
  // 1. Its exact law through the verifier, on rows that depend on the tokens before.
  const toy_source<double> draft_model(3, 1), target_model(3, 2);
  const auto rows_of = [](const toy_source<double>& model) {
    return [&](const std::vector<token_id>& prefix) {
      std::vector<double> x(3);
      model.row(prefix, x);
      softmax_row<double> row(x);
      if (row.normalise() != status::ok) x = {1, 0, 0};
      for (std::size_t v = 0; v < 3; ++v) x[v] = row[v];
      return x;
    };
  };
  const auto q = rows_of(draft_model), p = rows_of(target_model);
  const auto audit = [&](const auto& rule) {
    return worst_error_of_round(
        rule, 3, q, p, [](auto&&... a) { return verify_block(a...); },
        [&](const std::vector<token_id>& prefix) { return target_law(rule, q(prefix), p(prefix)); });
  };
  const distant rule{0.3};
  const round_error worst = audit(rule);
  std::printf("block verification, gamma 3: largest error of any conditional probability %.1e,\n", worst.error);
  std::printf("of token %d after a text of %zu tokens\n", worst.token, worst.prefix.size());
  const round_error slipped = audit(slip{});
  std::printf("a rule that is no law: error %.0f after a text of %zu tokens, %s\n\n", slipped.error,
              slipped.prefix.size(), name(slipped.why).data());

  // 2. What it buys: rejections against the distance from the target, over many pairs of rows.
  std::printf("alpha  rejected  TV(pi, p)\n");
  for (double alpha = 0; alpha < 1; alpha += 0.1) {
    double rejected = 0, distance = 0;
    for (token_id a = 0; a < 3; ++a)
      for (token_id b = 0; b < 3; ++b) {
        const auto qx = q({a, b}), px = p({a, b});
        const auto pi = target_law(distant{alpha}, qx, px);
        for (std::size_t v = 0; v < 3; ++v) {
          rejected += std::max(0.0, qx[v] - pi[v]) / 9, distance += std::max(0.0, px[v] - pi[v]) / 9;
        }
      }
    std::printf("%.1f    %.3f     %.3f     %s%s\n", alpha, rejected, distance,
                std::string(std::size_t(60 * rejected), '#').c_str(),
                std::string(std::size_t(60 * distance), '.').c_str());
  }

  // 3. A text. While a rule is new, hand it over as checked{rule}: where it is no law, decoding ends and says so.
  toy_source<float> d(50, 1), m(50, 2);
  std::vector<token_id> buffer(64);
  text t{buffer, 1};
  speculative_workspace<float> work(50, 4);
  random_streams random(42);
  no_processor none;
  std::size_t rounds = 0;
  const status why = speculative_decode(
      t, 40, d, m, checked{rule}, random, none, {.gamma = 4}, work,
      [](const emission& e) { return std::printf("%s%d", e.from == origin::accepted ? " " : " *", e.token) > 0; },
      [&](auto&&...) { ++rounds; });
  std::printf("\n%zu tokens in %zu rounds (* not drafted)\n", t.size - 1, rounds);
  const bool right = why == status::ok && worst.error < 1e-12 && slipped.why == status::undefined_target;
  return right ? 0 : 1;
}
