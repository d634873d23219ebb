// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/log_linear.hpp>

#include "policy/plain.hpp"

using namespace specagg;

TEST_CASE(
    "geometric is norm(q^lambda p^(1-lambda)), a softmax of logits, with holes for lambda in [0, "
    "1]") {
  for (const double l : {0.0, 0.3, 1.0}) {
    // pow(0, 0) = 1: 0 (-inf) = 0
    const auto due = [=](auto x) { return std::pow(x[0], l) * std::pow(x[1], 1 - l); };
    CHECK(worst_against<2>(geometric{l}, due, false) < 1e-14);
    CHECK(worst_against<2>(geometric{l}, due, true) < 1e-14);
  }
  for (const double l : {1.5, 3.0, -0.5})
    CHECK(worst_against<2>(
              geometric{l}, [=](auto x) { return std::pow(x[0], l) * std::pow(x[1], 1 - l); },
              false) < 1e-14);
  const auto raw = geometric{0.3}.unnormalised(view_of(std::array{0.2, 0.5}));
  CHECK(double(raw.v) == Approx(std::pow(0.2, 0.3) * std::pow(0.5, 0.7)).epsilon(1e-14));
}
TEST_CASE("weights of logits sum to anything: three rows against the softmax of sum w l") {
  for (const std::array<double, 3>& w :
       {std::array{0.2, 0.5, 0.3}, {1.0, 1.0, 1.0}, {1.0, 2.0, -2.0}, {0.0, 3.0, 0.0}})
    CHECK(worst_against<3>(
              log_linear<3>{w},
              [=](auto x) {
                return std::pow(x[0], w[0]) * std::pow(x[1], w[1]) * std::pow(x[2], w[2]);
              },
              false) < 1e-13);
}
TEST_CASE("logits of any size combine: nothing over- or underflows before the softmax") {
  const row l{700, 0, 699}, m{-700, 0, -700};
  const softmax_row<double> q(l), p(m);  // p = (0, 1, 0) up to e^-700
  const row law = target_law(geometric{0.5}, q, p);
  CHECK(law[0] == Approx(softmax({0, 0, -0.5})[0]).epsilon(1e-12));
  CHECK(law[1] == Approx(softmax({0, 0, -0.5})[1]).epsilon(1e-12));
  const row left{1, 1e-300}, right{1e-300, 1};  // scores of ln 1e-900
  CHECK(law_of(log_linear<2>{{3, 3}}, std::array{left, right})[1] == Approx(0.5).epsilon(1e-9));
}
TEST_CASE(
    "a row of positive weight masks what it lacks, one of weight 0 nothing, one of negative weight "
    "is refused") {
  const row q{0.5, 0, 0.5}, p{0.25, 0.75, 0};
  CHECK(target_law(geometric{0.5}, q, p) == row{1, 0, 0});
  for (std::size_t v = 0; v < 3; ++v) {
    CHECK(target_law(geometric{0}, q, p)[v] == Approx(p[v]).epsilon(1e-14).margin(0));
    CHECK(target_law(geometric{1}, q, p)[v] == Approx(q[v]).epsilon(1e-14).margin(0));
  }
  status why = status::ok;
  CHECK(target_law(geometric{2}, q, p, &why).empty());  // q^2 / p is infinite at token 2
  CHECK(why == status::undefined_target);
  const row both{0.5, 0.5, 0};
  CHECK(target_law(geometric{2}, both, p)[2] == 0);  // lacked by q, too: 0, not 0 / 0
  const std::array lacked{both, p};
  CHECK(law_of(log_linear<2>{{-1, 2}}, lacked)[2] == 0);  // nor inf - inf, in whichever order
  CHECK(law_of(log_linear<2>{{2, -1}}, lacked)[2] == 0);
  CHECK(target_law(geometric{0.5}, row{1, 0}, row{0, 1}).empty());
}
TEST_CASE("realign by lambda > 1 goes beyond q, away from p") {
  const row q{0.6, 0.4}, p{0.5, 0.5};
  CHECK(target_law(geometric{2}, q, p)[0] == Approx(0.36 / 0.52).epsilon(1e-14));
  CHECK_FALSE(valid(geometric{inf}));
  CHECK_FALSE(valid(log_linear<2>{{1, std::nan("")}}));
}
TEST_CASE("processed logits: at temperature T, log-linear laws are the softmax of (sum w l) / T") {
  const row l{2, 0, 1, -1}, m{0, 1, 0.5, 3};
  const softmax_row<double> q(l, 0.5), p(m, 0.5);
  row combined(4);
  for (std::size_t v = 0; v < 4; ++v) combined[v] = (1.5 * l[v] - 0.5 * m[v]) / 0.5;
  const row law = target_law(geometric{1.5}, q, p), due = softmax(combined);
  for (std::size_t v = 0; v < 4; ++v) CHECK(law[v] == Approx(due[v]).epsilon(1e-13));
}
