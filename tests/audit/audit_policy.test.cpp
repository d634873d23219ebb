// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/audit_policy.hpp>

#include <cstdio>
#include <sstream>
#include <string>

#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// Half of q and, by a slip, .4 of p: no law anywhere.
struct slip {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return fma(0.4, at.p, 0.5 * at.q); };
  }
};
// pi = 2 p - q, where that is nowhere negative: no law at some pairs of rows.
struct extrapolated {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return fma(2, at.p, -at.q); };
  }
};
struct nowhere {  // pi has no value for any rows
  static constexpr bool reads_confidence = false;
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [](auto at) { return at.p * std::nan(""); };
  }
};
// The audits are compiled once for these.
using any_policy = compiled_once<
    any_of<lossless, ensemble, lossy, token_v3, minimum<>, slip, extrapolated, nowhere>>;

// Right, but where everything was accepted the bonus is drawn from p.
verdict bonus_from_p(const draft& d, const auto& q, const auto& p, const auto& policy,
                     auto& chooser, std::span<emission> out, std::span<double> scratch) {
  draft without = d;
  without.bonus = false;
  verdict v = verify_token(without, q, p, policy, chooser, out, scratch);
  if (v.accepted < d.size()) return v;
  const auto row = normalise(as_row(p[d.size()]));
  if (row.why() != status::ok) return v;
  out[v.emitted++].token = draw(row, {stream::bonus, std::uint32_t(d.size()), 0}, chooser, scratch);
  return v;
}
// Draws residual and bonus with the number that drew the draft.
template <class C>
struct one_stream {
  C& inner;
  bool coin(moment m, double w, double t) { return inner.coin(m, w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return inner.draw({stream::draft, m.position, m.start}, w);
  }
};
verdict reuses_noise(const draft& d, const auto& q, const auto& p, const auto& policy,
                     auto& chooser, std::span<emission> out, std::span<double> scratch) {
  one_stream<std::remove_reference_t<decltype(chooser)>> same{chooser};
  return verify_token(d, q, p, policy, same, out, scratch);
}

}  // namespace

TEST_CASE("a right policy passes under every verifier, on every pair of rows of the grid") {
  const policy_audit found = audit_policy(any_policy(token_v3{0.3}));
  std::printf("token-v3: worst error %.1e by %s, gamma %zu\n", found.worst.error, found.verifier,
              found.gamma);
  CHECK(found.passed());
  CHECK(found.worst.error < 1e-14);
  CHECK(found.pairs == 2025);
  CHECK(found.undefined == 0);
  CHECK(found.no_law == 0);
}
TEST_CASE("a policy that is undefined where its own numbers are passes, and that is counted") {
  const policy_audit found = audit_policy(any_policy(minimum<>{}), "token",
                                          [](auto&&... a) { return verify_token(a...); });
  CHECK(found.passed());
  std::size_t disjoint = 0;  // pairs of rows without a token in common
  for (const auto& q : eighths<double>())
    for (const auto& p : eighths<double>())
      disjoint += q[0] * p[0] + q[1] * p[1] + q[2] * p[2] == 0;
  CHECK(found.undefined == disjoint);
  CHECK(found.no_law == 0);
}
TEST_CASE("a policy that is no law is reported with its place, checked or not") {
  const policy_audit found =
      audit_policy(any_policy(slip{}), "token", [](auto&&... a) { return verify_token(a...); });
  CHECK(!found.passed());
  CHECK(found.no_law == 2025);
  CHECK(found.worst.error == 1);
  CHECK(found.worst.why == status::undefined_target);
  CHECK(found.worst.prefix.empty());
  CHECK(found.verifier == std::string("token"));
  CHECK(found.gamma == 1);
  CHECK(found.q == grid_round<double>{found.round}.q({}));

  const policy_audit some = audit_coupled(any_policy(extrapolated{}));
  std::size_t negative = 0;
  for (const auto& q : eighths<double>())
    for (const auto& p : eighths<double>())
      negative += 2 * p[0] < q[0] || 2 * p[1] < q[1] || 2 * p[2] < q[2];
  CHECK(some.no_law == negative);
  CHECK(some.worst.error < 1e-14);
  CHECK(!some.passed());
  CHECK(audit_coupled(checked{extrapolated{}}).no_law == negative);
}
TEST_CASE("a wrong verifier is reported with verifier, gamma, rows, text and token") {
  const auto wrong = [](auto&&... a) { return bonus_from_p(a...); };
  const policy_audit found = audit_policy(any_policy(ensemble{0.5}), "bonus from p", wrong);
  CHECK(!found.passed());
  CHECK(found.no_law == 0);
  CHECK(found.verifier == std::string("bonus from p"));
  // p and the even mixture with q: at most half a probability apart
  CHECK(found.worst.error == Approx(.5));
  CHECK(found.worst.prefix.size() == found.gamma);
  const grid_round<double> rows{found.round};
  CHECK(found.q == rows.q(found.worst.prefix));
  CHECK(found.p == rows.p(found.worst.prefix));
  const auto v = std::size_t(found.worst.token);
  CHECK(std::fabs(found.q[v] - found.p[v]) == 1);
  CHECK(audit_policy(any_policy(lossless{}), "bonus from p", wrong).passed());
  CHECK(audit_policy(any_policy(lossless{}), "", [](auto&&... a) {
          return reuses_noise(a...);
        }).reused > 0);
}
TEST_CASE(
    "a verdict that does not fit its tokens is reported, though the tokens have the right law") {
  const policy_audit silent =
      audit_policy(any_policy(lossless{}), "silent", [](auto&&...) { return verdict{}; });
  CHECK(!silent.passed());
  CHECK(silent.worst.error == 1);
  CHECK(silent.worst.prefix.empty());
  CHECK(silent.worst.token == no_token);

  // counts the token that replaced a rejected one as accepted
  const auto boasts = [](auto&&... a) {
    verdict v = verify_token(a...);
    v.accepted = v.emitted;
    return v;
  };
  const policy_audit found = audit_policy(any_policy(lossless{}), "boasts", boasts);
  CHECK(!found.passed());
  CHECK(found.worst.error == 1);
  CHECK(found.worst.why == status::ok);
  REQUIRE(found.worst.token != no_token);
  CHECK(found.p[std::size_t(found.worst.token)] > 0);
}
TEST_CASE("a policy that has a value nowhere does not pass") {
  const policy_audit found = audit_policy(any_policy(nowhere{}), token_verifier());
  CHECK(found.undefined == found.pairs);
  CHECK(found.worst.error == 0);
  CHECK(!found.passed());
}
TEST_CASE("parameters out of range are reported") {
  CHECK(audit_policy(any_policy(lossy{-1})).worst.why == status::invalid_parameter);
  CHECK(!audit_policy(any_policy(lossy{-1})).passed());
  CHECK(!audit_coupled(any_policy(lossy{-1})).passed());
}
TEST_CASE("the trade-off: what it is for one pair of rows, and the table of all") {
  const std::vector<double> q{.5, .25, .25}, p{.125, .375, .5};
  const ensemble policy{0.25};
  const trade_off t = trade_off_of(target_law(policy, q, p), q, p);
  CHECK(t.distance == Approx(.25 * .375));  // lambda TV(q, p)
  // (1 - lambda) TV(q, p): a mixture is as good as can be
  CHECK(1 - t.token == Approx(.75 * .375));
  CHECK(t.least_rejection == Approx(1 - t.token));
  CHECK(t.match == Approx(.5 * .21875 + .25 * .34375 + .25 * .4375));
  CHECK(t.coupled <= t.token);
  CHECK(t.coupled >= t.token / (2 - t.token));

  std::ostringstream out;
  const std::vector<double> parameters{0, 0.25};
  // rho 0: undefined on disjoint rows
  write_trade_off(out, parameters, [](double rho) { return power{.5, rho}; });
  std::istringstream in(out.str());
  std::string line;
  std::getline(in, line);
  CHECK(line == "parameter,q,p,token,match,coupled,distance,least_rejection");
  std::size_t lines = 0, empty = 0;
  while (std::getline(in, line)) {
    ++lines;
    empty += line.ends_with(",,,,");
    CHECK(std::count(line.begin(), line.end(), ',') == 7);
    if (lines == 3) CHECK(line == "0,0 0 1,0 0.25 0.75,1,1,1,0.25,0");
    if (lines == 2025 + 3) CHECK(line.starts_with("0.25,0 0 1,0 0.25 0.75,"));
  }
  CHECK(lines == 2 * 2025);
  CHECK(empty > 0);
}
