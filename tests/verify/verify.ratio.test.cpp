// SPDX-License-Identifier: Apache-2.0
// Importance ratios of texts that a policy wrote (docs/engine.md, "Rollouts").
#include "verify/every_policy.hpp"

#include <specagg/verify/verify.hpp>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "verify/random_rows.hpp"

using namespace specagg;
using namespace every_policy;

namespace {

constexpr std::size_t V = 3, length = 3, gamma_of_round = 2;
using text_of_ids = std::vector<token_id>;

std::vector<double> after(const text_of_ids& prefix, std::uint32_t which) {
  std::uint32_t k = which;
  for (const token_id t : prefix) k = k * 31 + std::uint32_t(t) + 7;
  return random_row(k, V, 3);
}
// A text of `length` tokens that rounds have written, and the sums of what they reported.
struct written {
  text_of_ids tokens;
  double log_pi = 0, log_p = 0;
};
written write(const cli::any_policy& policy, exhaustive_chooser& chooser,
              const verify_round& verify) {
  written all;
  std::vector<double> scratch(verify_scratch(V, gamma_of_round));
  while (all.tokens.size() < length) {
    const auto start = std::uint32_t(all.tokens.size());
    std::vector<token_id> y;
    std::vector<std::vector<double>> q, p;
    for (std::size_t j = 0;; ++j) {
      text_of_ids prefix = all.tokens;
      prefix.insert(prefix.end(), y.begin(), y.end());
      q.push_back(after(prefix, 1));
      p.push_back(after(prefix, 2));
      if (j == gamma_of_round) break;
      y.push_back(draw_draft(dense_row<double>(q[j]), start, j, chooser, scratch));
    }
    std::vector<emission> out(gamma_of_round + 1);
    const verdict v = verify(draft{.tokens = y, .start = start}, q, p, policy, chooser,
                             std::span(out), std::span(scratch));
    REQUIRE(v.why == status::ok);
    for (std::size_t i = 0; i < v.emitted && all.tokens.size() < length; ++i) {
      all.tokens.push_back(out[i].token);
      all.log_pi += out[i].log_pi;
      all.log_p += out[i].log_p;
    }
  }
  return all;
}

struct errors {
  double with_pi = 0;    // |E (p / pi recorded) 1[text] - p(text)|, the largest
  double with_p = 0;     // sum over texts of (E (p / p recorded) 1[text] - p(text))+
  double tv = 0;         // of the texts' laws under pi and p
  double uncovered = 0;  // p of the texts that pi never writes
};
errors ratios_of(const cli::any_policy& policy, const verify_round& verify) {
  std::map<text_of_ids, std::pair<double, double>> seen;  // with log_pi recorded, with log_p
  std::map<text_of_ids, double> p, pi;
  exhaustive_chooser chooser;
  do {
    const written w = write(policy, chooser, verify);
    double log_p = 0, log_pi = 0;  // computed again from the models
    for (std::size_t t = 0; t < length; ++t) {
      const text_of_ids prefix(w.tokens.begin(), w.tokens.begin() + std::ptrdiff_t(t));
      const auto y = std::size_t(w.tokens[t]);
      const auto q_row = after(prefix, 1), p_row = after(prefix, 2);
      log_p += std::log(p_row[y]);
      log_pi += std::log(target_law(policy, q_row, p_row)[y]);
    }
    CHECK(w.log_p == Approx(log_p).epsilon(1e-12));
    CHECK(w.log_pi == Approx(log_pi).epsilon(1e-12));
    p[w.tokens] = std::exp(log_p);
    pi[w.tokens] = std::exp(log_pi);
    seen[w.tokens].first += chooser.probability * std::exp(log_p - w.log_pi);
    seen[w.tokens].second += chooser.probability * std::exp(log_p - w.log_p);
  } while (chooser.next());
  errors e;
  double covered = 0;
  for (const auto& [text, estimates] : seen) {
    covered += p[text];
    e.with_pi = std::max(e.with_pi, std::fabs(estimates.first - p[text]));
    e.with_p += std::max(0.0, estimates.second - p[text]);
    e.tv += std::max(0.0, pi[text] - p[text]);
  }
  e.uncovered = 1 - covered;
  return e;
}

}  // namespace

TEST_CASE(
    "with log_pi recorded an importance ratio is exact, with log_p the mean under p is off by TV") {
  std::printf("largest bias of a mean if log_p is recorded, texts of %zu tokens:\n", length);
  const auto check = [](const char* name, const cli::any_policy& policy, bool print) {
    INFO(name);
    const errors token = ratios_of(policy, by_token<exhaustive_chooser>),
                 block = ratios_of(policy, by_block<exhaustive_chooser>);
    for (const errors& e : {token, block}) {
      CHECK(e.with_pi < 1e-12);
      CHECK(e.with_p == Approx(e.tv).margin(1e-12));
      CHECK(e.uncovered > -1e-12);
    }
    if (print)
      std::printf("  %-12s %.4f   never written: %.4f\n", name, token.with_p, token.uncovered);
  };
  for_each_in_catalogue([&](const auto& line) {
    for (const auto& policy : line.values) check(line.name, policy, &policy == &line.values[0]);
  });
}
TEST_CASE("once training has moved the new law away from p, log_p is wrong by more than any TV") {
  // E new(y) / recorded(y) of f = 1 for token 0: 1 by log_pi
  const std::vector<double> q{0.8, 0.2}, p{0.2, 0.8}, moved{1, 0};
  const std::vector rows_of_q{q, q}, rows_of_p{p, p};
  double with_pi = 0, with_p = 0;
  exhaustive_chooser chooser;
  std::vector<double> scratch(verify_scratch(2, 1));
  do {
    const std::vector y{draw_draft(dense_row<double>(q), 0, 0, chooser, scratch)};
    std::vector<emission> out(2);
    const verdict v =
        by_token(draft{.tokens = y}, rows_of_q, rows_of_p, ensemble{1}, chooser, out, scratch);
    REQUIRE(v.why == status::ok);
    const double made = chooser.probability * moved[std::size_t(out[0].token)];
    with_pi += made / std::exp(out[0].log_pi);
    with_p += made / std::exp(out[0].log_p);
  } while (chooser.next());
  CHECK(with_pi == Approx(1).epsilon(1e-14));
  CHECK(with_p == Approx(4).epsilon(1e-14));
}
