// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/sampler.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// Two tokens of 0.5, 0.3, 0.2, independent.
const std::vector<double> p{0.5, 0.3, 0.2};
double joint(const std::vector<token_id>& y) { return p[std::size_t(y[0])] * p[std::size_t(y[1])]; }
token_id drawn(double u, double more_of_token_0 = 0) {
  return u < p[0] + more_of_token_0 ? 0 : u < p[0] + p[1] ? 1 : 2;
}

}  // namespace

TEST_CASE("a right sampler passes. One that is off by more than `detectable` does not") {
  const std::size_t n = 20000;
  const auto sampler = [&](double bias) {
    return [=](std::size_t request) {
      numbers u(request);
      const token_id first = drawn(u.uniform());
      // longer than asked for
      return std::vector{first, drawn(u.uniform(), first == 2 ? bias : 0), token_id(0)};
    };
  };
  const fit right = audit_sampler(3, 2, n, sampler(0), joint);
  CHECK(right.passed);
  CHECK(right.detectable < 0.06);
  // In one text of five the second token has another law.
  CHECK_FALSE(audit_sampler(3, 2, n, sampler(0.3), joint).passed);
}
TEST_CASE(
    "a bonus drawn from q is not seen where first tokens alone are audited, and is found in "
    "pairs") {
  const std::vector<double> q{0.6, 0.2, 0.2}, residual{0, 1, 0};  // norm((p - q)+)
  const auto pick = [](const std::vector<double>& row, double u) {
    return token_id(u < row[0] ? 0 : u < row[0] + row[1] ? 1 : 2);
  };
  const auto engine = [&](bool wrong) {
    return [&, wrong](std::size_t request) {
      numbers u(request);
      const token_id y = pick(q, u.uniform());
      const auto v = std::size_t(y);
      if (u.uniform() * q[v] < p[v]) return std::vector{y, pick(wrong ? q : p, u.uniform())};
      const token_id z = pick(residual, u.uniform());
      return std::vector{z, pick(p, u.uniform())};  // the next round's first token
    };
  };
  const auto first = [](const std::vector<token_id>& y) { return p[std::size_t(y[0])]; };
  CHECK(audit_sampler(3, 2, 20000, engine(false), joint).passed);
  CHECK(audit_sampler(3, 1, 20000, engine(true), first).passed);
  CHECK_FALSE(audit_sampler(3, 2, 20000, engine(true), joint).passed);
}
TEST_CASE("the audit of a point mass fails, although each text is expected four times only") {
  const auto uniform = [](const std::vector<token_id>&) { return 0.001; };
  const auto always_0 = [](std::size_t) { return std::vector<token_id>{0}; };
  CHECK_FALSE(audit_sampler(1000, 1, 4000, always_0, uniform).passed);
}
TEST_CASE(
    "a text that is too short, or has a token outside the vocabulary, fails the audit at once") {
  for (const std::vector<token_id>& wrong : {std::vector<token_id>{1}, {}, {1, 3}, {-1, 1}}) {
    const fit f = audit_sampler(
        3, 2, 5000,
        [&](std::size_t request) {
          numbers u(request);
          const token_id first = drawn(u.uniform());
          return request == 4321 ? wrong : std::vector{first, drawn(u.uniform())};
        },
        joint);
    CHECK_FALSE(f.passed);
  }
}
