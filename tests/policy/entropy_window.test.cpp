// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/entropy_window.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/policy/lossless.hpp>

#include "support/advanced.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;
double entropy_of(row p) {  // of the three most likely
  std::sort(p.rbegin(), p.rend());
  double h = 0;
  for (std::size_t i = 0; i < 3; ++i) h -= p[i] > 0 ? p[i] * std::log(p[i]) : 0;
  return h;
}

}  // namespace

TEST_CASE("an entropy gate measures rows at temperature 1, its law is a sampled one") {
  const row l{2, 0, 1, -1}, m{0, 1, 0.5, 3};
  const softmax_row<double> q(l, 0.5), p(m, 0.5), at_1(m);
  const double h = entropy_of(target_law(lossless{}, at_1, at_1));
  const auto law = [&](double threshold) {
    return target_law(entropy_window{threshold}.at({}), q, p);
  };
  CHECK(law(h - 1e-9) == target_law(lossless{}, q, q));
  CHECK(law(h + 1e-9) == target_law(lossless{}, p, p));
}
TEST_CASE("an entropy gate counts three tokens, with ties and where there are fewer") {
  const auto opens_at = [](const row& p, double h) {
    const row q = p.size() > 1 ? row(p.rbegin(), p.rend()) : p;
    const auto law = [&](double x) { return target_law(entropy_window{x}.at({}), q, p); };
    return law(h - 1e-9) != target_law(lossless{}, q, p) &&
           law(h + 1e-9) == target_law(lossless{}, q, p);
  };
  CHECK(opens_at({0.4, 0.3, 0.2, 0.1},
                 -0.4 * std::log(0.4) - 0.3 * std::log(0.3) - 0.2 * std::log(0.2)));
  CHECK(opens_at({0.4, 0.15, 0.15, 0.15, 0.15}, -0.4 * std::log(0.4) - 0.3 * std::log(0.15)));
  CHECK(opens_at({0.3, 0.3, 0.3, 0.1}, -0.9 * std::log(0.3)));
  CHECK(opens_at({0.7, 0.3}, -0.7 * std::log(0.7) - 0.3 * std::log(0.3)));
}
TEST_CASE("an open gate keeps q where p can be, and a window shuts it") {
  const row q{0.25, 0.25, 0.5}, p{0.75, 0.25, 0};
  const entropy_window policy{0.3, 1.5};
  CHECK(target_law(policy.at({}), q, p) == row{0.25 + 0.5 * 0.75, 0.25 + 0.5 * 0.25, 0});
  CHECK(target_law(policy.at({0.5}), q, p) == p);
  CHECK(target_law(entropy_window{2}.at({}), q, p) == p);

  CHECK(advanced(policy, {}, p, 0).left == 0);    // p's most likely token
  CHECK(advanced(policy, {}, p, 1).left == 1.5);  // another one
  CHECK(advanced(entropy_window{2}, {}, p, 1).left == 0);
  CHECK(advanced(policy, {1.5}, p, 1).left == 0.5);
  CHECK(advanced(policy, {0.5}, p, 1).left == 0);
}
TEST_CASE("which parameters and states an entropy window has") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK((valid(entropy_window{}) && valid(entropy_window{-1, 0})));
  CHECK((!valid(entropy_window{nan}) && !valid(entropy_window{infinity})));
  CHECK((!valid(entropy_window{0, -1}) && !valid(entropy_window{0, infinity})));
  const entropy_window policy{0.3, 2};
  CHECK((policy.is_state(policy.begin()) && policy.is_state({2})));
  CHECK((!policy.is_state({2.5}) && !policy.is_state({-0.5}) && !policy.is_state({nan})));
}
