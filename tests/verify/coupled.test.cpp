// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/coupled.hpp>

#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/specagg.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

std::vector<double> random_row(std::uint32_t seed, std::size_t size, double spread = 4) {
  const random_streams noise(seed);
  std::vector<double> row(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; ++v)
    sum += row[v] = std::exp(spread * noise.uniform({stream::side, std::uint32_t(v), 0}));
  for (double& x : row) x /= sum;
  return row;
}
dense_row<double> ready(const std::vector<double>& x) {
  dense_row<double> row(x);
  REQUIRE(row.normalise() == status::ok);
  return row;
}

}  // namespace

TEST_CASE("draft and output under shared noise have their closed joint law, and match at the closed rate") {
  constexpr double false_alarm = 1e-8;
  for (std::uint32_t trial = 0; trial < 4; ++trial) {
    const auto q = random_row(10 + trial, 4), pi = random_row(20 + trial, 4);
    const auto joint = coupled_joint_law(q, pi);
    std::vector<double> counts(16);
    double matches = 0;
    constexpr std::uint32_t n = 200000;
    const shared_noise noise(99, trial);
    const auto qr = ready(q), pr = ready(pi);
    for (std::uint32_t t = 0; t < n; ++t) {
      const token_id y = race(qr, noise, t), x = race(pr, noise, t);
      counts[std::size_t(4 * y + x)] += 1, matches += x == y;
    }
    const fit f = goodness_of_fit(counts, joint, false_alarm);
    const double due = coupled_acceptance(q, pi);
    std::printf("joint law: p-value %.3g, finds TV >= %.4f; match rate %.5f, due %.5f\n", f.p_value, f.detectable,
                matches / n, due);
    CHECK(f.passed);
    CHECK(f.detectable < 0.0125);
    CHECK(std::fabs(matches / n - due) < 5.5 * std::sqrt(due * (1 - due) / n));
    double tv = 0;
    for (std::size_t v = 0; v < 4; ++v) tv += std::max(0.0, q[v] - pi[v]);
    CHECK(due >= (1 - tv) / (1 + tv));
  }
}
TEST_CASE("a race has the winner, and every next one, of scores computed one by one") {
  for (const std::size_t size : {1u, 63u, 64u, 65u, 1000u, 1100u, 3000u}) {
    auto p = random_row(std::uint32_t(size), size, 9);
    for (std::size_t v = 0; v < size; ++v)
      if (size > 64 && (v % 5 == 0 || v / 64 == 1)) p[v] = 0;
    double sum = 0;
    for (const double x : p) sum += x;
    for (double& x : p) x /= sum;
    const auto row = ready(p);
    const auto itself = [](auto at) { return at; };
    const shared_noise noise(5, size);
    for (std::uint32_t position = 0; position < 20; ++position) {
      std::vector<contender> all;
      for (std::size_t v = 0; v < size; ++v)
        if (row[v] > 0) all.push_back({token_id(v), row[v] / noise(position, token_id(v))});
      std::ranges::sort(all, before);
      contender last{no_token, infinity};
      for (std::size_t i = 0; i < all.size() && i < 5; ++i) {
        last = race(row, itself, noise, position, last);
        CHECK(last.token == all[i].token);
        CHECK(last.score == all[i].score);
      }
    }
  }
}

TEST_CASE("a token wins by the second word of its noise, and by nothing less") {
  // Its first word is the largest there is: 1 - u < 2^-32. Its noise is 0x1.905ep-36.
  constexpr std::uint32_t position = 30589;
  constexpr token_id rare = 102386;
  const shared_noise noise(1);
  const auto check = [&]<class T>(T) {
    std::vector<T> p(rare + 10);
    p[5] = 1;
    const double win = noise(position, rare) / noise(position, 5);
    for (const double factor : {0.999, 1.001}) {
      p[rare] = T(win * factor);
      dense_row<T> row(p);
      REQUIRE(row.normalise() == status::ok);
      CHECK(race(row, noise, position) == (factor > 1 ? rare : 5));
    }
  };
  check(1.0);
  check(1.0f);
}

TEST_CASE("one seed gives one text: gamma, and for pi = p the draft model, change no token") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<token_id> reference;
    for (const std::uint64_t draft_seed : {1u, 2u, 3u})
      for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
        toy_source<float> d(60, draft_seed), m(60, 50);
        std::vector<token_id> buffer(80);
        text t{buffer, 1};
        speculative_workspace<float> work(60, gamma);
        no_processor none;
        random_streams unused(0);
        REQUIRE(speculative_decode(
                    t, 60, d, m, lossless{}, unused, none, {.gamma = gamma}, work, [](const emission&) { return true; },
                    [](auto&&...) {}, coupled_verifier{shared_noise(seed)}) == status::ok);
        if (reference.empty()) reference = buffer;
        CHECK(buffer == reference);
      }
  }
}
TEST_CASE("with a policy that reads the draft, gamma still changes no token") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<token_id> reference;
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      toy_source<float> d(60, 1), m(60, 50);
      std::vector<token_id> buffer(80);
      text t{buffer, 1};
      speculative_workspace<float> work(60, gamma);
      no_processor none;
      random_streams unused(0);
      REQUIRE(speculative_decode(
                  t, 60, d, m, token_v3{0.4}, unused, none, {.gamma = gamma}, work,
                  [](const emission&) { return true; }, [](auto&&...) {},
                  coupled_verifier{shared_noise(seed)}) == status::ok);
      if (reference.empty()) reference = buffer;
      CHECK(buffer == reference);
    }
  }
}

namespace {
// Sites with one row each under a monotone 1-homogeneous F, against one machine that sees all rows.
template <std::size_t N, class Policy>
void sites_agree_with_one_machine(const Policy& policy, const char* name) {
  constexpr std::size_t size = 200;
  std::size_t named = 0, disagreements = 0, unanimous_trials = 0, blind_errors = 0;
  constexpr std::uint32_t trials = 2000;
  for (std::uint32_t trial = 0; trial < trials; ++trial) {
    const shared_noise noise(7, trial);
    std::array<std::vector<double>, N> x;
    for (std::size_t k = 0; k < N; ++k) {
      x[k] = random_row(trial, size, 6);  // related rows
      const auto own = random_row(trial * 31 + 7 * std::uint32_t(k) + 1, size, 6);
      for (std::size_t v = 0; v < size; ++v) x[k][v] = 0.6 * x[k][v] + 0.4 * own[v];
    }
    std::vector<dense_row<double>> rows;
    for (const auto& r : x) rows.push_back(ready(r));
    const auto all = [&]<std::size_t... I>(std::index_sequence<I...>) { return std::array{rows[I]...}; }
    (std::make_index_sequence<N>());
    const model_rows<dense_row<double>, N> together(all);
    const contender due = race(together, policy.bind(together), noise, 0);
    const auto next = [&](std::size_t s, contender last) {
      return race(
          rows[s], [](auto v) { return v; }, noise, 0, last);
    };
    const auto score = [&](std::size_t s, token_id v) { return rows[s][std::size_t(v)] / noise(0, v); };
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
  std::printf("%-12s %zu sites: unanimous %zu, exchanges %zu with %.2f contenders a side; without answers %zu wrong\n",
              name, N, unanimous_trials, disagreements, double(named) / std::max(1.0, double(disagreements * N)),
              blind_errors);
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

TEST_CASE("1, 2 and 3 sites find the token of one machine: unanimity where they agree, the exchange where not") {
  sites_agree_with_one_machine<1>(mixture<1>{{1}}, "mixture");
  sites_agree_with_one_machine<2>(mixture<2>{{0.3, 0.7}}, "mixture");
  sites_agree_with_one_machine<3>(mixture<3>{{0.2, 0.3, 0.5}}, "mixture");
  sites_agree_with_one_machine<2>(ensemble{0.3}, "ensemble");
  sites_agree_with_one_machine<2>(maximum<2>{}, "max");
  sites_agree_with_one_machine<3>(minimum<3>{}, "min");
  sites_agree_with_one_machine<2>(geometric{0.4}, "geometric");
  sites_agree_with_one_machine<3>(log_linear<3>{{0.2, 0.3, 0.5}}, "log-linear");
  sites_agree_with_one_machine<3>(power_mean<3>{{0.2, 0.3, 0.5}, -2}, "power");
}

namespace {
// Two models whose logits are those of their mixture w a + (1 - w) b: one site that holds the documents of two.
template <class B>
struct mixed_source {
  using value_type = double;
  toy_source<double> a;
  B b;
  double w;
  std::size_t vocab_size() const { return a.vocab_size(); }
  std::size_t capacity() const { return a.capacity(); }
  std::size_t position() const { return a.position(); }
  status rollback(std::size_t n) { return a.rollback(n), b.rollback(n); }
  status extend(std::span<const token_id> tokens, std::span<double> logits) {
    std::vector<double> other(logits.size());
    const status s = a.extend(tokens, logits);
    if (b.extend(tokens, other) != s || s != status::ok) return s == status::ok ? status::model_failed : s;
    for (std::size_t i = 0, v = vocab_size(); i < logits.size(); i += v) {
      softmax_row<double> x(&logits[i], v), y(&other[i], v);
      if (x.normalise() != status::ok || y.normalise() != status::ok) return status::invalid_row;
      std::vector<double> mixed(v);
      for (std::size_t j = 0; j < v; ++j) mixed[j] = std::log(w * x[j] + (1 - w) * y[j]);
      std::copy(mixed.begin(), mixed.end(), logits.begin() + std::ptrdiff_t(i));
    }
    return s;
  }
};
// A text by sites that never show each other a row: each draws its own winner, and they agree or exchange scores.
template <class Policy, class... Site>
std::vector<token_id> text_of_sites(const shared_noise& noise, std::size_t size, const Policy& policy, Site... site) {
  constexpr std::size_t N = sizeof...(Site);
  const std::size_t v = std::get<0>(std::tie(site...)).vocab_size();
  std::vector<token_id> text(1);
  while (text.size() < size) {
    std::array<std::vector<double>, N> logits;
    std::array<softmax_row<double>, N> rows;
    std::size_t k = 0;
    const auto see = [&](auto& model) {
      logits[k].resize(v);
      REQUIRE(model.extend(std::span(text).last(1), logits[k]) == status::ok);
      rows[k] = softmax_row<double>(logits[k]);
      REQUIRE(rows[k++].normalise() == status::ok);
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
      const auto score = [&](std::size_t s, token_id i) { return rows[s][std::size_t(i)] / noise(t, i); };
      x = exchange<N>(policy, next, score).token;
    }
    text.push_back(x);
  }
  return text;
}
}  // namespace

TEST_CASE("one seed gives one text whether 1, 2 or 3 sites hold the models, and for gamma 0, 1, 4 and 8") {
  constexpr std::size_t v = 60, size = 80;
  const toy_source<double> a(v, 1), b(v, 2), c(v, 3);
  const mixed_source<toy_source<double>> bc{b, c, 0.4};
  const mixed_source<mixed_source<toy_source<double>>> abc{a, bc, 0.3};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const shared_noise noise(seed);
    const auto together = text_of_sites(noise, size, mixture<3>{{0.3, 0.28, 0.42}}, a, b, c);
    CHECK(text_of_sites(noise, size, mixture<1>{{1}}, abc) == together);
    CHECK(text_of_sites(noise, size, ensemble{0.3}, a, bc) == together);
    CHECK(text_of_sites(shared_noise(seed + 100), size, ensemble{0.3}, a, bc) != together);
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      auto drafter = a;
      auto other = bc;
      std::vector<token_id> buffer(size);
      text t{buffer, 1};
      speculative_workspace<double> work(v, gamma);
      no_processor none;
      random_streams unused(0);
      REQUIRE(speculative_decode(
                  t, size - 1, drafter, other, ensemble{0.3}, unused, none, {.gamma = gamma}, work,
                  [](const emission&) { return true; }, [](auto&&...) {}, coupled_verifier{noise}) == status::ok);
      CHECK(buffer == together);
    }
  }
}
TEST_CASE("agreement decides nothing for a combiner that is not monotone and 1-homogeneous, and none is claimed") {
  const std::array<token_id, 2> same{7, 7};
  CHECK(unanimous(geometric{0.4}, same) == 7);
  CHECK(unanimous(geometric{1.5}, same) == no_token);
  CHECK(unanimous(log_linear<2>{{1, 1}}, same) == no_token);  // increasing, but not 1-homogeneous
  CHECK(unanimous(mixture<2>{{-1, 2}}, same) == no_token);    // no valid parameters
  const auto never = [](auto&&...) -> contender { throw 0; };
  const auto no_score = [](auto&&...) -> double { throw 0; };
  CHECK(exchange<2>(geometric{1.5}, never, no_score).token == no_token);
  // And it would be wrong: how often do two models agree on a token that realign with lambda = 2 does not draw?
  std::size_t wrong = 0;
  for (std::uint32_t trial = 0; trial < 500; ++trial) {
    const shared_noise noise(7, trial);
    const auto x = random_row(2 * trial, 20), y = random_row(2 * trial + 1, 20);
    const auto q = ready(x), p = ready(y);
    const row_pair<false, dense_row<double>, dense_row<double>> rows(q, p);
    const token_id i = race(q, noise, 0), j = race(p, noise, 0);
    wrong += i == j && race(rows, geometric{2}.bind(rows), noise, 0).token != i;
  }
  CHECK(wrong > 10);
}
TEST_CASE("defects and the end of the text are handled as in token verification") {
  const std::vector<double> r{0.5, 0.5}, bad{0.5, std::nan("")};
  std::vector<emission> out(4);
  const shared_noise noise(3);
  std::vector<token_id> y;
  for (std::uint32_t j = 0; j < 3; ++j) y.push_back(race(ready(r), noise, j));
  const auto all =
      verify_coupled(coupled_draft{{.tokens = y}}, std::vector(4, r), std::vector(4, r), lossless{}, noise, out);
  CHECK(all.accepted == 3);
  CHECK(all.emitted == 4);
  std::vector<std::vector<double>> p(4, r);
  p[2] = bad;
  const auto broken = verify_coupled(coupled_draft{{.tokens = y}}, std::vector(4, r), p, lossless{}, noise, out);
  CHECK(broken.why == status::invalid_row);
  CHECK(broken.emitted == 2);
  const auto ended = verify_coupled(coupled_draft{{.tokens = y, .end_of_text = y[0]}}, std::vector(4, r),
                                    std::vector(4, r), lossless{}, noise, out);
  CHECK(ended.emitted == 1);
}
