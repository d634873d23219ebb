// SPDX-License-Identifier: Apache-2.0
#include "verify/every_policy.hpp"

#include <specagg/verify/block.hpp>

#include <specagg/verify/detail/kept.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;
using namespace every_policy;

namespace {

// Walks drafts and coins; what replaces a rejected token does not matter here and is not branched
// on.
struct counting_chooser : exhaustive_chooser {
  template <class W>
  token_id draw(moment m, const W& w) {
    return m.use == stream::draft ? exhaustive_chooser::draw(m, w) : inverse_transform(w, 0);
  }
};

// The expected number of accepted tokens, exactly: a context-free pair of rows per position.
double expected_accepted(const any_policy& policy, const table& q, const table& p, bool by_blocks) {
  const std::size_t gamma = q.size() - 1;
  counting_chooser chooser;
  std::vector<double> scratch(verify_scratch(q[0].size(), gamma));
  std::vector<emission> out(gamma + 1);
  std::vector<token_id> y(gamma);
  double expected = 0;
  do {
    for (std::size_t j = 0; j < gamma; ++j) {
      auto row = as_row(q[j]);
      y[j] = draw_draft(row, 0, j, chooser, scratch);
    }
    const draft d{y, 0, no_token, false};
    const verdict v = by_blocks ? by_block(d, q, p, policy, chooser, out, scratch)
                                : by_token(d, q, p, policy, chooser, out, scratch);
    expected += chooser.probability * double(v.accepted);
  } while (chooser.next());
  return expected;
}

std::vector<double> random_row(std::uint32_t seed, std::size_t size) {
  const random_streams noise(seed);
  std::vector<double> row(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; ++v) {
    const double u = noise.uniform({stream::side, std::uint32_t(v), 0});
    sum += row[v] = u < 0.15 ? 0 : u * u;
  }
  if (sum == 0) sum = row[0] = 1;
  for (double& x : row) x /= sum;
  return row;
}

}  // namespace

TEST_CASE(
    "the example of the block verification paper: 10/9 accepted tokens by token, 11/9 by block") {
  const std::vector<double> q{2.0 / 3, 1.0 / 3}, p{1.0 / 3, 2.0 / 3};
  CHECK(expected_accepted(lossless{}, std::vector(3, q), std::vector(3, p), false) ==
        Approx(10.0 / 9).epsilon(1e-14));
  CHECK(expected_accepted(lossless{}, std::vector(3, q), std::vector(3, p), true) ==
        Approx(11.0 / 9).epsilon(1e-14));
}
namespace {
void never_fewer_tokens(std::size_t wanted) {  // instances per policy
  std::uint32_t seed = 0;
  for (const auto& [name, policy] : all_policies()) {
    double least = 1, most = 0;
    std::size_t instances = 0;
    while (instances < wanted) {
      std::vector<std::vector<double>> q, p;
      for (int j = 0; j < 3; ++j) {
        q.push_back(random_row(++seed, 3));
        p.push_back(random_row(++seed, 3));
      }
      bool defined = true;
      for (std::size_t j = 0; j < 2; ++j) defined &= !target_law(policy, q[j], p[j]).empty();
      if (!defined) continue;
      ++instances;
      const double gain =
          expected_accepted(policy, q, p, true) - expected_accepted(policy, q, p, false);
      least = std::min(least, gain);
      most = std::max(most, gain);
    }
    std::printf("%-22s %zu instances, gain in accepted tokens from %.1e to %.3f\n", name, instances,
                least, most);
    CHECK(least > -1e-14);
    CHECK(most > 0.001);  // and is not token verification again
  }
}
}  // namespace
TEST_CASE(
    "block verification never accepts fewer tokens in expectation, on 200 random instances per "
    "policy") {
  never_fewer_tokens(200);
}
TEST_CASE(
    "block verification never accepts fewer tokens in expectation, on 10,000 random instances",
    "[slow]") {
  never_fewer_tokens(10000);
}
TEST_CASE("gamma 1 is token verification, coin for coin") {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    const auto q = random_row(2 * seed, 40), p = random_row(2 * seed + 1, 40);
    const std::vector<token_id> y{token_id(seed % 40)};
    std::vector<emission> a(2), b(2);
    std::vector<double> scratch(verify_scratch(40, 1));
    some_noise chooser(seed);
    const table q_rows(2, q), p_rows(2, p);
    const auto s = by_token({.tokens = y}, q_rows, p_rows, ensemble{0.3}, chooser, a, scratch);
    const auto t = by_block({.tokens = y}, q_rows, p_rows, ensemble{0.3}, chooser, b, scratch);
    REQUIRE(s.emitted == t.emitted);
    for (std::size_t i = 0; i < s.emitted; ++i) CHECK(a[i].token == b[i].token);
  }
}
TEST_CASE("a defect in a row ends a block before it. The prefix is verified as a shorter draft") {
  const row good{0.5, 0.5}, bad{0.5, std::numeric_limits<double>::quiet_NaN()};
  const std::vector<token_id> y{0, 1, 0};
  std::vector<emission> out(4);
  std::vector<double> scratch(verify_scratch(2, 3));
  for (std::size_t at = 0; at < 4; ++at) {
    table p(4, good);
    p[at] = bad;
    some_noise chooser(at);
    const auto v = by_block({.tokens = y}, table(4, good), p, lossless{}, chooser, out, scratch);
    CHECK(v.why == status::invalid_row);
    CHECK(v.accepted == at);
    CHECK(v.emitted == at);
  }
}
TEST_CASE("an id out of range ends a block before it, and is reported") {
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(3, 2));
  const std::vector<std::vector<double>> q(3, {0.5, 0.5, 0}), p(3, {0.25, 0.25, 0.5});
  for (const token_id y0 : {7, -5}) {
    const std::vector<token_id> y{y0, 0};
    const auto law = exact_law([&](auto& chooser) {
      const auto v = by_block({.tokens = y}, q, p, lossless{}, chooser, out, scratch);
      CHECK(v.accepted == 0);
      CHECK(out[0].why == status::token_out_of_range);
      return out[0].token;
    });
    CHECK(law.at(2) == Approx(0.5).epsilon(1e-15));  // drawn from pi
  }
}
TEST_CASE("mutant: stopping at the first failed coin of a block is found by the audit") {
  const auto stops_early = [](const draft& d, const table& q, const table& p,
                              const any_policy& policy, exhaustive_chooser& chooser,
                              std::span<emission> out, std::span<double> scratch) {
    // Coins from the first to the last, ending at the first that fails: token verification's habit.
    std::vector<double> w{1};
    for (std::size_t i = 0; i < d.size(); ++i) {
      const double share = w[i] * p[i][std::size_t(d.tokens[i])] / q[i][std::size_t(d.tokens[i])];
      w.push_back(std::min(1.0, share));
    }
    std::size_t tau = 0;
    for (std::size_t i = 1; i <= d.size(); ++i) {
      double h = w[i];
      if (i < d.size()) {
        double s = 0;
        for (std::size_t v = 0; v < 3; ++v) s += std::max(0.0, w[i] * p[i][v] - q[i][v]);
        h = s + 1 - w[i] > 0 ? s / (s + 1 - w[i]) : 1;
      }
      if (!chooser.coin({stream::coin, std::uint32_t(i - 1), 0}, h, 1)) break;
      tau = i;
    }
    verdict result{tau, tau, status::ok};
    for (std::size_t i = 0; i < tau; ++i) out[i].token = d.tokens[i];
    const detail::drawing by{0, chooser, scratch};
    (void)detail::law_source{policy, q, p}.template with_law<detail::draft_row::always>(
        tau, [&](const auto& rows, const auto& pi) {
          if (tau == d.size())
            return by.draw_token(rows, pi, pi, by.at(stream::bonus, tau), out[tau]);
          out[tau].why = status::ok;
          return by.draw_residual(rows, pi, w[tau], tau, out[tau]);
        });
    ++result.emitted;
    return result;
  };
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.5, 0.25};
  const auto q_model = [&](const std::vector<token_id>&) { return q; };
  const auto p_model = [&](const std::vector<token_id>&) { return p; };
  const auto law = [&](const std::vector<token_id>&) { return p; };
  CHECK(error_of_round(lossless{}, 2, q_model, p_model, stops_early, law).error > 0.01);
  CHECK(error_of_round(lossless{}, 2, q_model, p_model, by_block<exhaustive_chooser>, law).error <
        1e-15);
}

namespace {
// Count how often a row is normalised, and a policy is bound.
struct counted_row : dense_row<double> {
  std::size_t* times = nullptr;
  counted_row(const std::vector<double>& x, std::size_t& n) : dense_row<double>(x), times(&n) {}
  auto normalise(bool confidence = false) const {
    ++*times;
    return specagg::normalise(static_cast<const dense_row<double>&>(*this), confidence);
  }
};
struct counted_policy {
  std::size_t* times;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    ++*times;
    return [](auto at) { return at.p; };
  }
};
}  // namespace

TEST_CASE("no row is normalised twice and no policy bound twice, whatever is rejected") {
  using row = normal_form<dense_row<double>>;  // a copy's rows and pi would refer to the original
  static_assert(!std::is_copy_constructible_v<detail::position<lossless, row, row>>);
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.25, 0.5, 0.25};
  const std::vector<token_id> y{0, 0, 0, 0};
  for (const bool accepted : {false, true}) {
    std::size_t of_q = 0, of_p = 0, bound = 0;
    // the bonus of a policy that may read the draft is one more
    const std::size_t drafts = accepted ? 4 : 0, looks = accepted ? 5 : 4;
    const auto row = [](const std::vector<double>& x, std::size_t& n) {
      return lasting_rows_of(5, [&](std::size_t) { return counted_row(x, n); });
    };
    some_noise chooser(1, accepted);
    std::vector<emission> out(5);
    std::vector<double> scratch(verify_scratch(3, 4));
    const auto v = verify_block({.tokens = y}, row(q, of_q), row(p, of_p), counted_policy{&bound},
                                chooser, out, scratch);
    CHECK(v.accepted == drafts);
    CHECK(of_q == looks);
    CHECK(of_p == looks);
    CHECK(bound == looks);
  }
  // One number less than verify_scratch() says is too little.
  std::vector<double> less(verify_scratch(3, 4) - 1);
  std::vector<emission> out(5);
  some_noise chooser(1);
  CHECK(by_block({.tokens = y}, table(5, q), table(5, p), lossless{}, chooser, out, less).why ==
        status::invalid_parameter);
}

namespace {
// A list of an engine's own. Its rows are made in one buffer.
struct own_list {
  const std::vector<std::vector<double>>& rows;
  std::vector<double>& buffer;
  std::size_t size() const { return rows.size(); }
  dense_row<double> operator[](std::size_t j) const {
    buffer = rows[j];
    return dense_row<double>(buffer);
  }
};
}  // namespace

TEST_CASE("rows made in one buffer, each in the place of the one before, give the same tokens") {
  constexpr std::size_t V = 5, gamma = 4;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    some_noise random(seed);
    const any_policy target = lossless{};
    std::uint32_t drawn = 0;
    const auto some_rows = [&] {
      std::vector<std::vector<double>> rows(gamma + 1, std::vector<double>(V));
      for (auto& row : rows) {
        double sum = 0;
        for (double& x : row) sum += x = 0.05 + double(random.uniform({stream::draft, drawn++, 0}));
        for (double& x : row) x /= sum;
      }
      return rows;
    };
    const auto q = some_rows(), p = some_rows();
    std::vector<token_id> y(gamma);
    for (token_id& t : y) t = token_id(5 * double(random.uniform({stream::draft, drawn++, 0})));
    std::vector<double> scratch(verify_scratch(V, gamma)), q_buffer(V), p_buffer(V);
    const auto in_a_buffer = [](const auto& rows, std::vector<double>& buffer) {
      return rows_of(rows.size(), [&](std::size_t j) {
        buffer = rows[j];
        return dense_row<double>(buffer);
      });
    };
    std::vector<emission> own(gamma + 1), shared(gamma + 1);
    const auto a = by_block({.tokens = y}, q, p, target, random, own, scratch);
    const auto b = verify_block({.tokens = y}, in_a_buffer(q, q_buffer), in_a_buffer(p, p_buffer),
                                target, random, shared, scratch);
    REQUIRE(a.why == status::ok);
    REQUIRE(b.emitted == a.emitted);
    for (std::size_t i = 0; i < a.emitted; ++i) CHECK(shared[i].token == own[i].token);
    const auto c = verify_block({.tokens = y}, own_list{q, q_buffer}, own_list{p, p_buffer}, target,
                                random, shared, scratch);
    REQUIRE(c.emitted == a.emitted);
    for (std::size_t i = 0; i < a.emitted; ++i) CHECK(shared[i].token == own[i].token);
  }
}
