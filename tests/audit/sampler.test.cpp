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

TEST_CASE("a right sampler passes; one that is off by more than `detectable` does not") {
  const std::size_t n = 20000;
  const auto sampler = [&](double bias) {
    return [=](std::size_t request) {
      numbers u(request);
      const token_id first = drawn(u.uniform());
      return std::vector{first, drawn(u.uniform(), first == 2 ? bias : 0), token_id(0)};  // longer than asked for
    };
  };
  const fit right = audit_sampler(3, 2, n, sampler(0), joint);
  CHECK(right.passed);
  CHECK(right.freedom == 8);
  CHECK(right.detectable < 0.06);
  // In one text of five the second token has another law.
  CHECK_FALSE(audit_sampler(3, 2, n, sampler(0.3), joint).passed);
}
TEST_CASE("a text that is too short, or has a token outside the vocabulary, fails the audit at once") {
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
