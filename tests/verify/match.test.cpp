// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/match.hpp>

#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/policy/lossless.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;
const row q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};

// A draft y, verified against the same target row at every position.
struct seen {
  std::vector<emission> out;
  std::vector<draft_acceptance> acceptances;
  verdict v;
};
template <class P = row>
seen verified(const std::vector<token_id>& y, const P& target = p, std::uint64_t seed = 1) {
  seen r{std::vector<emission>(y.size() + 1), std::vector<draft_acceptance>(y.size()), {}};
  std::vector<double> scratch(verify_scratch(3, y.size()));
  random_streams chooser(seed);
  r.v = verify_match({.tokens = y, .acceptances = r.acceptances}, std::vector(y.size() + 1, q),
                     std::vector(y.size() + 1, target), lossless{}, chooser, r.out, scratch);
  return r;
}

}  // namespace

TEST_CASE("exact match accepts with probability sum q p, and says so for every drafted position") {
  const auto accepted = exact_law([&](auto& chooser) {
    std::vector<double> scratch(verify_scratch(3, 1));
    std::vector<emission> out(2);
    const auto drafting = normalise(dense_row<double>(q));
    REQUIRE(drafting.why() == status::ok);
    const std::vector<token_id> y{draw(drafting, {stream::draft, 0, 0}, chooser, scratch)};
    return verify_match({y}, std::vector(2, q), std::vector(2, p), lossless{}, chooser, out,
                        scratch)
        .accepted;
  });
  const double due = 0.5 * 0.125 + 0.25 * 0.25 + 0.25 * 0.625;
  CHECK(accepted.at(1) == Approx(due).epsilon(1e-15));
  const seen r = verified({0, 1, 2});
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(r.acceptances[j].of_row == Approx(due).epsilon(1e-15));
    CHECK(r.acceptances[j].of_token == Approx(p[j]).epsilon(1e-15));
  }
}
TEST_CASE("a round of exact matches emits p, token after token") {
  const auto first = [](const std::vector<token_id>&) { return q; };
  const auto after = [](const std::vector<token_id>& prefix) {
    return prefix.empty() ? p : row{0.25, 0.5, 0.25};
  };
  const auto by_match = [](auto&&... a) { return verify_match(a...); };
  CHECK(worst_error_of_round(lossless{}, 2, first, after, by_match, after).error < 1e-15);
}
TEST_CASE("a target that is sure keeps exactly its own token") {
  const row sure{0, 1, 0};
  const seen all = verified({1, 1}, sure), none = verified({0, 1}, sure);
  CHECK((all.v.accepted == 2 && all.v.emitted == 3 && all.out[2].from == origin::bonus));
  CHECK((none.v.accepted == 0 && none.v.emitted == 1 && none.out[0].token == 1));
  CHECK((none.out[0].from == origin::residual && none.out[0].log_pi == 0));
}
TEST_CASE(
    "the target's own draw decides, from the noise of residuals: another draft changes no token") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const seen a = verified({0}, p, seed), b = verified({2}, p, seed);
    std::vector<double> scratch(verify_scratch(3));
    random_streams chooser(seed);
    const auto target = normalise(dense_row<double>(p));
    REQUIRE(target.why() == status::ok);
    const token_id due = draw(target, {stream::residual, 0, 0}, chooser, scratch);
    CHECK((a.out[0].token == due && a.v.accepted == std::size_t(due == 0)));
    CHECK((b.out[0].token == due && b.v.accepted == std::size_t(due == 2)));
  }
}
TEST_CASE("exact match ends before a token outside the support, and before a row that is none") {
  const seen outside_support = verified({7, 1});
  CHECK((outside_support.v.accepted == 0 && outside_support.v.emitted == 1 &&
         outside_support.v.why == status::ok));
  CHECK((outside_support.out[0].from == origin::bonus &&
         outside_support.out[0].why == status::token_out_of_range));
  const seen bad = verified({1, 1}, row{0.5, -0.5, 1});
  CHECK((bad.v.emitted == 0 && bad.v.why == status::invalid_row));
  CHECK((bad.acceptances[0].of_row == 0 && bad.acceptances[1].of_token == 0));
}
