// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/synthetic.hpp>

#include <cmath>
#include <map>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;
const row q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};

struct seen {
  std::vector<emission> out;
  verdict v;
};
template <class C, class V = token_verifier>
seen verified(const std::vector<token_id>& y, const synthetic_acceptance* how, C&& chooser,
              std::uint32_t start = 0, end_tokens ends = {}, bonus_choice bonus = true,
              const V& by = V()) {
  seen r{std::vector<emission>(y.size() + 1), {}};
  std::vector<double> scratch(verify_scratch(3, y.size()));
  r.v = synthetic_verifier<V>(by, how).verify(
      draft{.tokens = y, .start = start, .end_of_text = ends, .bonus = bonus},
      std::vector(y.size() + 1, q), std::vector(y.size() + 1, p), lossless{}, chooser, r.out,
      scratch);
  return r;
}

// The probability of each number of accepted tokens, of a draft of g tokens.
std::map<std::size_t, double> law_of_count(double length, std::size_t g, std::uint32_t start) {
  const synthetic_acceptance how{length};
  std::map<std::size_t, double> law;
  for (const auto& [n, w] :
       exact_law([&](auto& chooser) { return how.accepted(g, start, chooser); }))
    law[n] += w;
  return law;
}

}  // namespace

TEST_CASE("synthetic acceptance has exactly the mean that is asked for, and the least variance") {
  for (const std::size_t g : {1u, 4u, 7u, 32u})
    for (std::size_t k = 0; k <= 8 * g; ++k)
      for (const std::uint32_t start : {0u, 1u, 1000u}) {
        const double length = 1 + double(k) / 8;  // eighths are exact in doubles
        double all = 0, mean = 0, square = 0;
        for (const auto& [n, w] : law_of_count(length, g, start)) {
          CHECK(n <= g);
          all += w;
          mean += w * double(n);
          square += w * double(n) * double(n);
        }
        CHECK(all == 1);
        CHECK(1 + mean == length);
        // of all laws of whole numbers with this mean: those next to it alone
        const double part = double(k % 8) / 8;
        CHECK(square - mean * mean == Approx(part * (1 - part)).margin(1e-12));
      }
}
TEST_CASE("synthetic acceptance: rates by position, a rate of a draft, and short drafts") {
  const synthetic_acceptance how{3.78};
  CHECK(how.rate(0) == 1);
  CHECK(how.rate(1) == 1);
  CHECK(how.rate(2) == Approx(0.78).epsilon(1e-12));
  CHECK(how.rate(3) == 0);
  double sum = 1;
  for (std::size_t j = 0; j < 7; ++j) sum += how.rate(j);
  CHECK(sum == Approx(3.78).epsilon(1e-12));
  CHECK(synthetic_acceptance::of_rate(0.5, 7).length == 4.5);
  CHECK(law_of_count(3.78, 2, 5) == std::map<std::size_t, double>{{2, 1.}});
  CHECK(law_of_count(3.78, 0, 5) == std::map<std::size_t, double>{{0, 1.}});
  CHECK((how.valid() && synthetic_acceptance{1}.valid()));
  for (const double bad : {0.999, -1., 1e9, double(NAN), double(INFINITY)})
    CHECK_FALSE(synthetic_acceptance{bad}.valid());
}
TEST_CASE("synthetic acceptance by rates has exactly these rates") {
  const std::vector<std::vector<double>> all{
      {0.75, 0.5, 0.5, 0.125}, {1, 1, 0.25}, {0}, {1, 0.5, 0, 0}, {0.5}};
  for (const std::vector<double>& rates : all)
    for (const std::size_t g : {0u, 1u, 3u, 4u, 6u}) {
      const auto how = synthetic_acceptance::of_rates(rates);
      CHECK(how.valid());
      double sum = 1;
      for (const double r : rates) sum += r;
      CHECK(how.length == sum);
      std::vector<double> at_least(g + 1);
      for (const auto& [n, w] :
           exact_law([&](auto& chooser) { return how.accepted(g, 7, chooser); })) {
        REQUIRE(n <= g);
        for (std::size_t j = 0; j <= n; ++j) at_least[j] += w;
      }
      for (std::size_t j = 0; j < g; ++j) {
        CHECK(how.rate(j) == (j < rates.size() ? rates[j] : 0));
        CHECK(at_least[j + 1] == Approx(how.rate(j)).margin(1e-12));
      }
    }
  for (const std::vector<double>& bad : std::vector<std::vector<double>>{
           {0.5, 0.6}, {1.1}, {-0.1}, {1, double(NAN)}, {double(NAN), 0}})
    CHECK_FALSE(synthetic_acceptance::of_rates(bad).valid());
}
TEST_CASE("a length's own rates are the same law as the length") {
  const std::vector<double> rates{1, 1, 0.25, 0};
  const synthetic_acceptance by_length{3.25}, by_rates = synthetic_acceptance::of_rates(rates);
  for (std::size_t j = 0; j < 6; ++j) CHECK(by_length.rate(j) == by_rates.rate(j));
  CHECK(by_length.length == by_rates.length);
  std::map<std::size_t, double> law;
  for (const auto& [n, w] :
       exact_law([&](auto& chooser) { return by_rates.accepted(4, 9, chooser); }))
    law[n] += w;
  CHECK(law == law_of_count(3.25, 4, 9));
}
TEST_CASE(
    "synthetic acceptance replaces what any verifier decides, and the next token is the target's") {
  const std::vector<token_id> y{1, 0, 0, 2};
  const synthetic_acceptance how{3.25};
  for_each_verifier(1, 1, [&](const auto& verifier) {
    std::map<std::size_t, double> counts;
    std::map<token_id, double> next;
    const auto law = exact_law([&](auto& chooser) {
      const seen r = verified(y, &how, chooser, 40, {}, true, verifier);
      CHECK(r.v.why == status::ok);
      REQUIRE(r.v.emitted == r.v.accepted + 1);
      for (std::size_t j = 0; j < r.v.accepted; ++j) {
        CHECK(r.out[j].token == y[j]);
        CHECK(r.out[j].from == origin::accepted);
        CHECK(std::isnan(r.out[j].log_pi));
      }
      const emission& last = r.out[r.v.accepted];
      CHECK(last.from == origin::residual);
      CHECK(last.log_p == Approx(std::log(p[std::size_t(last.token)])));
      CHECK(std::isnan(last.log_pi));
      return std::pair(r.v.accepted, last.token);
    });
    for (const auto& [what, w] : law) {
      counts[what.first] += w;
      next[what.second] += w;
    }
    CHECK(counts.size() == 2);
    CHECK(counts[2] == Approx(0.75).epsilon(1e-12));
    CHECK(counts[3] == Approx(0.25).epsilon(1e-12));
    for (token_id v = 0; v < 3; ++v) CHECK(next[v] == Approx(p[std::size_t(v)]).epsilon(1e-12));
  });
}
TEST_CASE("without synthetic acceptance the verifier's own result stays") {
  const std::vector<token_id> y{1, 0, 0, 2};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<emission> out(5);
    std::vector<double> scratch(verify_scratch(3, 4));
    random_streams chooser(seed), same(seed);
    const verdict due = verify_token({.tokens = y}, std::vector(5, q), std::vector(5, p),
                                     lossless{}, chooser, out, scratch);
    const seen r = verified(y, nullptr, same);
    CHECK(r.v.emitted == due.emitted);
    for (std::size_t j = 0; j < due.emitted; ++j) CHECK(r.out[j].token == out[j].token);
  }
}
TEST_CASE("synthetic acceptance: ends of texts, no bonus, and what cannot be used") {
  const synthetic_acceptance all{5}, two{3}, bad{0.5}, none{1};
  random_streams chooser(1);
  const seen whole = verified({1, 0, 0, 2}, &all, chooser);
  CHECK((whole.v.accepted == 4 && whole.v.emitted == 5));
  CHECK(whole.out[4].from == origin::bonus);
  const seen ended = verified({1, 0, 2, 2}, &all, chooser, 0, end_tokens(0));
  CHECK((ended.v.accepted == 2 && ended.v.emitted == 2 && ended.v.ended == 0));
  CHECK(verified({1, 0, 0, 2}, &all, chooser, 0, {}, false).v.emitted == 4);
  CHECK(verified({1, 0, 0, 2}, &two, chooser, 0, {}, false).v.emitted == 3);
  CHECK(verified({1, 0}, &none, chooser).v.emitted == 1);
  CHECK(verified({}, &two, chooser).out[0].from == origin::bonus);
  CHECK(verified({1, 0}, &bad, chooser).v.why == status::invalid_parameter);
  CHECK(verified({1, 3}, &two, chooser).v.why == status::token_out_of_range);
}
TEST_CASE("the token after the accepted ones is drawn from the row after them") {
  const std::vector<row> targets{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
  const std::vector<token_id> y{0, 0};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(3, 2));
  random_streams chooser(1);
  for (const token_id n : {0, 1, 2}) {
    const synthetic_acceptance how{double(1 + n)};
    const verdict v = synthetic_verifier<token_verifier>({}, &how).verify(
        draft{.tokens = y}, std::vector(3, q), targets, lossless{}, chooser, out, scratch);
    REQUIRE(v.emitted == std::size_t(n) + 1);
    CHECK(out[std::size_t(n)].token == n);
    CHECK(out[std::size_t(n)].log_p == 0);
  }
}
