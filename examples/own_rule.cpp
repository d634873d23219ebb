// SPDX-License-Identifier: Apache-2.0
// A new decoding rule: its equation, its exact law, its trade-off curve, and a text decoded with
// it; and what a rule that is no law is told. usage: own_rule [FILE.csv], the curve's file.
// docs/write-your-own-rule.md explains it line by line.
#include <specagg/specagg.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <specagg/audit/audit_rule.hpp>
#include <specagg/audit/toy_source.hpp>

// pi = p if the two models differ by more than alpha in total variation, else q.
struct distant {
  double alpha = 0;

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {  // SPECAGG_FUNCTION: on the GPU, too
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

int main(int argc, char** argv) {
  using namespace specagg;
  // 1. Its exact law under every verifier, on every pair of rows of a grid.
  const distant rule{0.3};
  const auto tell = [](const char* what, const rule_audit& found) {
    std::printf(
        "%s: %s\n  largest error of any conditional probability %.1e, no law for %zu of %zu pairs "
        "of rows\n",
        what, found.passed() ? "exact" : "WRONG", found.worst.error, found.no_law, found.pairs);
    std::printf(
        "  the worst under the %s verifier with gamma %zu, after %zu tokens of text, rows q %.3f "
        "%.3f %.3f and "
        "p %.3f %.3f %.3f\n",
        found.verifier, found.gamma, found.worst.prefix.size(), found.q[0], found.q[1], found.q[2],
        found.p[0], found.p[1], found.p[2]);
  };
  const rule_audit right = audit_rule(rule), slipped = audit_rule(slip{});
  tell("distant", right);
  tell("slip", slipped);

  // 2. What it buys: rejections against the distance from the target, over the pairs of the grid;
  // with a file's name, all columns for each pair.
  const std::vector<double> alphas{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};
  if (argc > 1) {
    std::ofstream file(argv[1]);
    write_trade_off(file, alphas, [](double alpha) { return distant{alpha}; });
    if (!file.flush()) {
      std::fprintf(stderr, "own_rule: %s: cannot be written\n", argv[1]);
      return 2;
    }
  }
  std::printf("\nalpha  rejected  at least  TV(pi, p)\n");
  for (const double alpha : alphas) {
    trade_off mean;
    const auto n = double(grid_round<double>::rounds());
    for (const auto& q : eighths<double>())
      for (const auto& p : eighths<double>()) {
        const trade_off t = trade_off_of(target_law(distant{alpha}, q, p), q, p);
        mean.token += t.token / n;
        mean.distance += t.distance / n;
        mean.least_rejection += t.least_rejection / n;
      }
    const double rejected = std::max(0., 1 - mean.token);
    std::printf("%.1f    %.3f     %.3f     %.3f  %s%s\n", alpha, rejected, mean.least_rejection,
                mean.distance, std::string(std::size_t(60 * rejected), '#').c_str(),
                std::string(std::size_t(60 * mean.distance), '.').c_str());
  }

  // 3. A text. While a rule is new, hand it over as checked{rule}: where it is no law, decoding
  // ends and says so.
  toy_source<float> d(50, 1), m(50, 2);
  std::vector<token_id> buffer(64);
  text t{buffer, 1};
  speculative_workspace<float> work(50, 4);
  random_streams random(42);
  no_processor none;
  std::size_t rounds = 0;
  const status why = speculative_decode(
      t, 40, d, m, checked{rule}, random, none, {.gamma = 4}, work,
      [](const emission& e) {
        return std::printf("%s%d", e.from == origin::accepted ? " " : " *", e.token) > 0;
      },
      [&](auto&&...) { ++rounds; });
  std::printf("\n%zu tokens in %zu rounds (* not drafted)\n", t.size - 1, rounds);
  return why == status::ok && right.passed() && !slipped.passed() ? 0 : 1;
}
