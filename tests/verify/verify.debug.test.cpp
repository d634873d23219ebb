// SPDX-License-Identifier: Apache-2.0
// What verification checks in builds without NDEBUG.
#undef NDEBUG
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/decoders.hpp>

#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// a q + (b + 1 - a) p: a law where b = 0 and 0 <= a <= 1.
struct slip {
  double a, b;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [r = *this](auto at) { return fma(r.a, at.q, (r.b + 1 - r.a) * at.p); };
  }
};

// w q + (1 - w) p, by a pi that refers to the policy.
struct refers {
  double w;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [this](auto at) { return fma(w, at.q, (1 - w) * at.p); };
  }
};

verdict verified(const slip& policy, const auto& verifier) {
  const std::vector<double> q{0.5, 0.3, 0.2}, p{0.1, 0.3, 0.6};
  const std::vector<token_id> drafted{0};
  random_streams random(1);
  std::vector<emission> out(2);
  std::vector<double> scratch(verify_scratch(3, 1));
  std::vector q_rows(2, q), p_rows(2, p);
  return verifier.verify(draft{drafted}, q_rows, p_rows, policy, random, out, scratch);
}

}  // namespace

TEST_CASE(
    "without NDEBUG a pi that is no law is an undefined target, in every verifier that draws from "
    "it") {
  const auto check = [](const auto& verifier) {
    CHECK(verified({0.5, 0}, verifier).why == status::ok);
    for (const slip& policy : {slip{2, 0}, slip{0.5, 0.1}, slip{0.5, -0.1}}) {
      const verdict v = verified(policy, verifier);
      CHECK(v.why == status::undefined_target);
      CHECK(v.emitted == 0);
    }
  };
  check(token_verifier{});
  check(block_verifier{});
  check(match_verifier{});
  check(coupled_verifier{coupled_noise(1, 2)});
}
TEST_CASE(
    "without NDEBUG a policy whose pi refers to the policy itself is not copied to a place that is "
    "gone") {
  const std::vector<double> q{0.5, 0.3, 0.2}, p{0.1, 0.3, 0.6};
  std::vector q_rows(2, q), p_rows(2, p);
  std::vector<emission> out(1);
  std::vector<double> scratch(verify_scratch(3)), counts(3);
  const refers policy{0.5};
  for (std::uint64_t request = 0; request < 20000; ++request) {
    random_streams random(1, request);
    REQUIRE(verify_token(draft{}, q_rows, p_rows, policy, random, out, scratch).why == status::ok);
    counts[std::size_t(out[0].token)] += 1;
  }
  CHECK(goodness_of_fit(counts, std::vector<double>{0.3, 0.3, 0.4}, 1e-9).passed);
}
