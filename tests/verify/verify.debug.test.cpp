// SPDX-License-Identifier: Apache-2.0
// What verification checks in builds without NDEBUG.
#undef NDEBUG
#include <specagg/specagg.hpp>

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

verdict verified(const slip& rule, const auto& verifier) {
  const std::vector<double> q{0.5, 0.3, 0.2}, p{0.1, 0.3, 0.6};
  const std::vector<token_id> drafted{0};
  random_streams random(1);
  std::vector<emission> out(2);
  std::vector<double> scratch(verify_scratch(3, 1));
  return verifier.verify(draft{drafted}, std::vector(2, q), std::vector(2, p), rule, random, out, scratch);
}

}  // namespace

TEST_CASE("without NDEBUG a pi that is no law is an undefined target, in every verifier that draws from it") {
  const auto check = [](const auto& verifier) {
    CHECK(verified({0.5, 0}, verifier).why == status::ok);
    for (const slip& rule : {slip{2, 0}, slip{0.5, 0.1}, slip{0.5, -0.1}}) {
      const verdict v = verified(rule, verifier);
      CHECK(v.why == status::undefined_target);
      CHECK(v.emitted == 0);
    }
  };
  check(token_verifier{});
  check(block_verifier{});
  check(match_verifier{});
  check(coupled_verifier{shared_noise(1, 2)});
}
