// SPDX-License-Identifier: Apache-2.0
#include "verify/random_rows.hpp"

#include <specagg/verify/unanimous.hpp>

#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {
// Policies for two and for three sites, each list compiled once.
using of_two = compiled_once<any_of<mixture<2>, ensemble, maximum<2>, geometric>>;
using of_three = compiled_once<any_of<mixture<3>, minimum<3>, log_linear<3>, power_mean<3>>>;

// Sites with one row each under a monotone 1-homogeneous F, against one machine that sees all rows.
template <std::size_t N, class Policy>
void sites_agree_with_one_machine(const Policy& policy, const char* name) {
  constexpr std::size_t size = 200;
  std::size_t named = 0, disagreements = 0, unanimous_trials = 0, blind_errors = 0;
  constexpr std::uint32_t trials = 2000;
  for (std::uint32_t trial = 0; trial < trials; ++trial) {
    const coupled_noise noise(7, trial);
    std::array<std::vector<double>, N> x;
    for (std::size_t k = 0; k < N; ++k) {
      x[k] = random_row(trial, size, 6);  // related rows
      const auto own = random_row(trial * 31 + 7 * std::uint32_t(k) + 1, size, 6);
      for (std::size_t v = 0; v < size; ++v) x[k][v] = 0.6 * x[k][v] + 0.4 * own[v];
    }
    std::vector<normal_form<dense_row<double>>> rows;
    for (const auto& r : x) rows.push_back(ready(r));
    const auto all = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array{rows[I]...};
    }(std::make_index_sequence<N>());
    const model_rows<normal_form<dense_row<double>>, N> together(all);
    const contender due = race(together, policy.bind(together), noise, 0);
    const auto next = [&](std::size_t s, contender last) {
      return race(rows[s], [](auto v) { return v; }, noise, 0, last);
    };
    const auto score = [&](std::size_t s, token_id v) {
      return rows[s][std::size_t(v)] / noise(0, v);
    };
    std::array<token_id, N> winners;
    for (std::size_t k = 0; k < N; ++k) winners[k] = race(rows[k], noise, 0);
    CHECK(exchange<N>(policy, next, score).token == due.token);
    if (const token_id agreed = unanimous(policy, winners); agreed != no_token) {
      ++unanimous_trials;
      CHECK(agreed == due.token);
      continue;
    }
    ++disagreements;
    exchange<N>(policy, next, score, &named);
    // Judging by the winners' own scores, without asking the others, is wrong now and then.
    contender best;
    for (std::size_t k = 0; k < N; ++k) {
      std::array<double, N> only{};
      only[k] = score(k, winners[k]);
      const contender c{winners[k], policy.unnormalised(view_of(only)).v};
      if (best.token == no_token || before(c, best)) best = c;
    }
    blind_errors += best.token != due.token;
  }
  std::printf(
      "%-12s %zu sites: unanimous %zu, exchanges %zu with %.2f contenders a side; without answers "
      "%zu wrong\n",
      name, N, unanimous_trials, disagreements,
      double(named) / std::max(1.0, double(disagreements * N)), blind_errors);
  CHECK(unanimous_trials > 100);
  if (N == 1) {
    CHECK(disagreements == 0);
    return;
  }
  CHECK(disagreements > 100);
  if (std::string_view(name) == "mixture") CHECK(blind_errors > 0);
  CHECK(double(named) / double(disagreements * N) < 5);
}
}  // namespace

TEST_CASE(
    "1, 2 and 3 sites find the token of one machine: unanimity where they agree, the exchange "
    "where not") {
  sites_agree_with_one_machine<1>(mixture<1>{{1}}, "mixture");
  sites_agree_with_one_machine<2, of_two>(mixture<2>{{0.3, 0.7}}, "mixture");
  sites_agree_with_one_machine<3, of_three>(mixture<3>{{0.2, 0.3, 0.5}}, "mixture");
  sites_agree_with_one_machine<2, of_two>(ensemble{0.3}, "ensemble");
  sites_agree_with_one_machine<2, of_two>(maximum<2>{}, "max");
  sites_agree_with_one_machine<3, of_three>(minimum<3>{}, "min");
  sites_agree_with_one_machine<2, of_two>(geometric{0.4}, "geometric");
  sites_agree_with_one_machine<3, of_three>(log_linear<3>{{0.2, 0.3, 0.5}}, "log-linear");
  sites_agree_with_one_machine<3, of_three>(power_mean<3>{{0.2, 0.3, 0.5}, -2}, "power");
}

namespace {
// Two models whose logits are those of their mixture w a + (1 - w) b: one site that holds the
// documents of two.
template <class B>
struct mixed_source {
  using value_type = double;
  toy_source<double> a;
  B b;
  double w;
  std::size_t vocab_size() const { return a.vocab_size(); }
  std::size_t capacity() const { return a.capacity(); }
  std::size_t position() const { return a.position(); }
  status rollback(std::size_t n) {
    (void)a.rollback(n);
    return b.rollback(n);
  }
  status extend(std::span<const token_id> tokens, std::span<double> logits) {
    std::vector<double> other(logits.size());
    const status s = a.extend(tokens, logits);
    if (b.extend(tokens, other) != s || s != status::ok)
      return s == status::ok ? status::model_failed : s;
    for (std::size_t i = 0, v = vocab_size(); i < logits.size(); i += v) {
      const auto x = normalise(softmax_row<double>(&logits[i], v)),
                 y = normalise(softmax_row<double>(&other[i], v));
      if (x.why() != status::ok || y.why() != status::ok) return status::invalid_row;
      std::vector<double> mixed(v);
      for (std::size_t j = 0; j < v; ++j) mixed[j] = std::log(w * x[j] + (1 - w) * y[j]);
      std::copy(mixed.begin(), mixed.end(), logits.begin() + std::ptrdiff_t(i));
    }
    return s;
  }
};
// A text by sites that never show each other a row: each draws its own winner, and they agree or
// exchange scores.
template <class Policy, class... Site>
std::vector<token_id> text_of_sites(const coupled_noise& noise, std::size_t size,
                                    const Policy& policy, Site... site) {
  constexpr std::size_t N = sizeof...(Site);
  const std::size_t v = std::get<0>(std::tie(site...)).vocab_size();
  std::vector<token_id> text(1);
  while (text.size() < size) {
    std::array<std::vector<double>, N> logits;
    std::array<normal_form<softmax_row<double>>, N> rows;
    std::size_t k = 0;
    const auto see = [&](auto& model) {
      logits[k].resize(v);
      REQUIRE(model.extend(std::span(text).last(1), logits[k]) == status::ok);
      rows[k] = normalise(softmax_row<double>(logits[k]));
      REQUIRE(rows[k++].why() == status::ok);
    };
    (see(site), ...);
    const auto t = std::uint32_t(text.size());
    std::array<token_id, N> winners;
    for (k = 0; k < N; ++k) winners[k] = race(rows[k], noise, t);
    token_id x = unanimous(policy, winners);
    if (x == no_token) {
      const auto next = [&](std::size_t s, contender last) {
        return race(rows[s], [](auto p) { return p; }, noise, t, last);
      };
      const auto score = [&](std::size_t s, token_id i) {
        return rows[s][std::size_t(i)] / noise(t, i);
      };
      x = exchange<N>(policy, next, score).token;
    }
    text.push_back(x);
  }
  return text;
}
}  // namespace

TEST_CASE(
    "one seed gives one text whether 1, 2 or 3 sites hold the models, and for gamma 0, 1, 4 and "
    "8") {
  constexpr std::size_t v = 60, size = 80;
  const toy_source<double> a(v, 1), b(v, 2), c(v, 3);
  const mixed_source<toy_source<double>> bc{b, c, 0.4};
  const mixed_source<mixed_source<toy_source<double>>> abc{a, bc, 0.3};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const coupled_noise noise(seed);
    const auto together = text_of_sites(noise, size, mixture<3>{{0.3, 0.28, 0.42}}, a, b, c);
    CHECK(text_of_sites(noise, size, mixture<1>{{1}}, abc) == together);
    CHECK(text_of_sites(noise, size, ensemble{0.3}, a, bc) == together);
    CHECK(text_of_sites(coupled_noise(seed + 100), size, ensemble{0.3}, a, bc) != together);
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      auto drafter = a;
      auto other = bc;
      std::vector<token_id> buffer(size);
      text t{buffer, 1};
      speculative_workspace<double> work(v, {.gamma = gamma});
      random_streams unused(0);
      REQUIRE(speculative_decode(drafter, other, ensemble{0.3}, unused,
                                 {.text = t, .most = size - 1, .work = work},
                                 coupled_verifier{noise}) == status::ok);
      CHECK(buffer == together);
    }
  }
}
TEST_CASE("sites that share no token name each contender once under min, and end without a token") {
  const std::vector<double> x{0.5, 0, 0.3, 0.2, 0}, y{0, 0.6, 0, 0, 0.4};
  const std::array rows{ready(x), ready(y)};
  const coupled_noise noise(3);
  std::array<std::size_t, 2> turns{};
  std::size_t named = 0;
  const auto next = [&](std::size_t s, contender last) {
    ++turns[s];
    return race(rows[s], [](auto v) { return v; }, noise, 0, last);
  };
  const auto score = [&](std::size_t s, token_id v) {
    return rows[s][std::size_t(v)] / noise(0, v);
  };
  CHECK(exchange<2>(minimum<2>{}, next, score, &named).token == no_token);
  CHECK(named == 5);
  CHECK(turns == std::array<std::size_t, 2>{4, 3});  // one more than each has: at most V + 1
}
TEST_CASE(
    "agreement decides nothing for a combiner that is not monotone and 1-homogeneous, and none is "
    "claimed") {
  const std::array<token_id, 2> same{7, 7};
  CHECK(unanimous(geometric{0.4}, same) == 7);
  CHECK(unanimous(geometric{1.5}, same) == no_token);
  CHECK(unanimous(log_linear<2>{{1, 1}}, same) == no_token);  // increasing, but not 1-homogeneous
  CHECK(unanimous(mixture<2>{{-1, 2}}, same) == no_token);    // no valid parameters
  const auto never = [](auto&&...) -> contender { throw 0; };
  const auto no_score = [](auto&&...) -> double { throw 0; };
  CHECK(exchange<2>(geometric{1.5}, never, no_score).token == no_token);
  // And it would be wrong: how often do two models agree on a token that realign with lambda = 2
  // does not draw?
  std::size_t wrong = 0;
  for (std::uint32_t trial = 0; trial < 500; ++trial) {
    const coupled_noise noise(7, trial);
    const auto x = random_row(2 * trial, 20), y = random_row(2 * trial + 1, 20);
    const auto q = ready(x), p = ready(y);
    const row_pair rows(q, p);
    const token_id i = race(q, noise, 0), j = race(p, noise, 0);
    wrong += i == j && race(rows, geometric{2}.bind(rows), noise, 0).token != i;
  }
  CHECK(wrong > 10);
}
