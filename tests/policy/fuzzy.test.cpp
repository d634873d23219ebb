// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/fuzzy.hpp>

#include <cmath>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

double divergence(const row& q, const row& p) {
  double js = 0;
  for (std::size_t v = 0; v < q.size(); ++v)
    for (const double x : {q[v], p[v]})
      if (x > 0) js += x * std::log(x / ((q[v] + p[v]) / 2)) / 2;
  return js;
}

}  // namespace

TEST_CASE("fuzzy is q where the divergence of Jensen and Shannon is at most alpha, else p") {
  numbers n(1);
  int drafts = 0, targets = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t size = 1 + n.below(60);
    const bool holes = n.below(2) == 0;
    const std::array<row, 2> rows{softmax(random_logits(n, size, holes)),
                                  softmax(random_logits(n, size, holes))};
    const auto& [q, p] = rows;
    const double js = divergence(q, p);
    CHECK(js <= std::log(2) + 1e-12);
    if (size > 1) {
      CHECK(near(law_of(fuzzy{js * (1 - 1e-9) - 1e-12}, rows), p));
      CHECK(near(law_of(fuzzy{js * (1 + 1e-9) + 1e-12}, rows), q));
    }
    (near(law_of(fuzzy{0.3}, rows), q) ? drafts : targets)++;
  }
  CHECK((drafts > 10 && targets > 10));
}
TEST_CASE("fuzzy compares rows at temperature 1, and its law is one of the sampled rows") {
  const row l{2, 0, 1, -1}, m{0, 1, 0.5, 3};
  const double js = divergence(softmax(l), softmax(m));
  for (const double temperature : {0.5, 3.0}) {
    const softmax_row<double> q(l, temperature), p(m, temperature);
    const row sampled_q = target_law(lossless{}, q, q), sampled_p = target_law(lossless{}, p, p);
    CHECK(near(target_law(fuzzy{js - 1e-9}, q, p), sampled_p));
    CHECK(near(target_law(fuzzy{js + 1e-9}, q, p), sampled_q));
  }
}
TEST_CASE("fuzzy between rows that share no token is ln 2, and between equal rows 0") {
  const std::array<row, 2> apart{row{1, 0}, row{0, 1}}, equal{row{0.5, 0.5}, row{0.5, 0.5}};
  CHECK(law_of(fuzzy{0.6931}, apart) == row{0, 1});
  CHECK(law_of(fuzzy{0.6932}, apart) == row{1, 0});
  CHECK(law_of(fuzzy{specagg::log(2.0)}, apart) == row{1, 0});  // not more than alpha
  CHECK(law_of(fuzzy{0}, equal) == row{0.5, 0.5});
  CHECK(valid(fuzzy{-1}));
  CHECK_FALSE((valid(fuzzy{double(NAN)}) || valid(fuzzy{inf})));
}
