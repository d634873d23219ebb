// SPDX-License-Identifier: Apache-2.0
#include "verify/random_rows.hpp"

#include <specagg/verify/coupled.hpp>

#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE(
    "draft and output under the Gumbel-max coupling have their closed joint law, and match at the "
    "closed "
    "rate") {
  constexpr double false_alarm = 1e-8;
  for (std::uint32_t trial = 0; trial < 4; ++trial) {
    const auto q = random_row(10 + trial, 4), pi = random_row(20 + trial, 4);
    const auto joint = coupled_joint_law(q, pi);
    std::vector<double> counts(16);
    double matches = 0;
    constexpr std::uint32_t n = 200000;
    const coupled_noise noise(99, trial);
    const auto qr = ready(q), pr = ready(pi);
    for (std::uint32_t t = 0; t < n; ++t) {
      const token_id y = race(qr, noise, t), x = race(pr, noise, t);
      counts[std::size_t(4 * y + x)] += 1;
      matches += x == y;
    }
    const fit f = goodness_of_fit(counts, joint, false_alarm);
    const double due = coupled_acceptance(q, pi);
    std::printf("joint law: p-value %.3g, finds TV >= %.4f; match rate %.5f, due %.5f\n", f.p_value,
                f.detectable, matches / n, due);
    CHECK(f.passed);
    CHECK(f.detectable < 0.015);
    CHECK(goodness_of_fit(std::vector{matches, n - matches}, std::vector{due, 1 - due}, false_alarm)
              .passed);
    double tv = 0;
    for (std::size_t v = 0; v < 4; ++v) tv += std::max(0.0, q[v] - pi[v]);
    CHECK(due >= (1 - tv) / (1 + tv));
  }
}
namespace {
// H_x = sum_k 1/k - 1/(k + x), for real x.
double harmonic(double x) {
  double sum = 0;
  constexpr int n = 100000;
  for (int k = n; k >= 1; --k) sum += x / (k * (k + x));
  return sum + x / n;
}
}  // namespace

TEST_CASE("a Gumbel-max watermark keeps its score with drafts, and loses it with other verifiers") {
  // The detector scores a token by -ln(1 - u), its noise being -ln u. The mean is H_(1/p) if the
  // token won a race with probability p: so sum p H_(1/p) for a text, and 1 without the key.
  const auto q = random_row(31, 6, 2), p = random_row(32, 6, 2);
  double due = 0, tv = 0;
  for (std::size_t v = 0; v < 6; ++v) {
    due += p[v] * harmonic(1 / p[v]);
    tv += std::max(0.0, p[v] - q[v]);
  }
  constexpr std::uint32_t most = 30000;
  const coupled_noise key(2026, 3);
  const std::vector q_rows(5, ready(q)), p_rows(5, ready(p));
  std::vector<emission> out(5);
  std::vector<double> scratch(verify_scratch(6, 4));
  const auto text_of = [&](const auto& verifier, std::size_t gamma, double& accepted) {
    std::vector<token_id> text;
    random_streams random(5);
    double drafted = 0;
    accepted = 0;
    while (text.size() < most) {
      const auto start = std::uint32_t(text.size());
      std::vector<token_id> y;
      for (std::size_t j = 0; j < gamma; ++j)
        y.push_back(verifier.propose(q_rows[j], start, j, random, scratch));
      const verdict v = verifier.verify(draft{y, start}, q_rows, p_rows, lossless{}, random,
                                        std::span(out), std::span(scratch));
      REQUIRE(v.why == status::ok);
      for (std::size_t i = 0; i < v.emitted; ++i) text.push_back(out[i].token);
      accepted += double(v.accepted);
      drafted += double(std::min(gamma, v.accepted + 1));
    }
    accepted /= drafted;
    text.resize(most);
    return text;
  };
  const auto score = [&](const std::vector<token_id>& text) {
    double sum = 0;
    for (std::uint32_t t = 0; t < most; ++t) sum -= std::log(-std::expm1(-key(t, text[t])));
    return sum / most;
  };
  double none = 0, accepted = 0, unmarked = 0;
  const auto alone = text_of(coupled_verifier{key}, 0, none);
  CHECK(text_of(coupled_verifier{key}, 4, accepted) == alone);
  const double marked = score(alone), plain = score(text_of(token_verifier{}, 4, unmarked));
  std::printf(
      "watermark: score %.3f, due %.3f; without the key %.3f; accepted %.3f of 1 - TV %.3f\n",
      marked, due, plain, accepted, 1 - tv);
  CHECK(std::fabs(marked - due) < 0.06);  // 5 standard errors of about 0.01
  CHECK(std::fabs(plain - 1) < 0.04);
  CHECK(due > 1.5);
  CHECK(accepted >= (1 - tv) / (1 + tv) - 0.02);
  CHECK(std::fabs(accepted - coupled_acceptance(q, p)) < 0.02);
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
    const coupled_noise noise(5, size);
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
  const coupled_noise noise(1);
  const auto check = [&]<class T>(T) {
    std::vector<T> p(rare + 10);
    p[5] = 1;
    const double win = noise(position, rare) / noise(position, 5);
    for (const double factor : {0.999, 1.001}) {
      p[rare] = T(win * factor);
      const auto row = normalise(dense_row<T>(p));
      REQUIRE(row.why() == status::ok);
      CHECK(race(row, noise, position) == (factor > 1 ? rare : 5));
    }
  };
  check(1.0);
  check(1.0f);
}

namespace {
using any_policy = compiled_once<any_of<lossless, token_v3>>;
// A text by two models, under the coupling.
std::vector<token_id> written(const any_policy& policy, std::uint64_t seed,
                              std::uint64_t draft_seed, std::size_t gamma) {
  toy_source<double> d(60, draft_seed), m(60, 50);
  std::vector<token_id> buffer(80);
  text t{buffer, 1};
  speculative_workspace<double> work(60, {.gamma = gamma});
  random_streams unused(0);
  REQUIRE(speculative_decode(d, m, policy, unused, {.text = t, .most = 60, .work = work},
                             coupled_verifier{coupled_noise(seed)}) == status::ok);
  return buffer;
}
}  // namespace

TEST_CASE("one seed gives one text: gamma, and for pi = p the draft model, change no token") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<token_id> reference = written(lossless{}, seed, 1, 0);
    for (const std::uint64_t draft_seed : {1u, 2u, 3u})
      for (const std::size_t gamma : {0u, 1u, 4u, 8u})
        CHECK(written(lossless{}, seed, draft_seed, gamma) == reference);
  }
}
TEST_CASE("with a policy that reads the draft, gamma still changes no token") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<token_id> reference = written(token_v3{0.4}, seed, 1, 0);
    for (const std::size_t gamma : {1u, 4u, 8u})
      CHECK(written(token_v3{0.4}, seed, 1, gamma) == reference);
  }
}

TEST_CASE("defects and the end of the text are handled as in token verification") {
  const std::vector<double> r{0.5, 0.5}, bad{0.5, std::nan("")};
  std::vector<emission> out(4);
  const coupled_noise noise(3);
  std::vector<token_id> y;
  for (std::uint32_t j = 0; j < 3; ++j) y.push_back(race(ready(r), noise, j));
  const auto all = verify_coupled(coupled_draft{{.tokens = y}}, std::vector(4, r),
                                  std::vector(4, r), lossless{}, noise, out);
  CHECK(all.accepted == 3);
  CHECK(all.emitted == 4);
  std::vector<std::vector<double>> p(4, r);
  p[2] = bad;
  const auto broken =
      verify_coupled(coupled_draft{{.tokens = y}}, std::vector(4, r), p, lossless{}, noise, out);
  CHECK(broken.why == status::invalid_row);
  CHECK(broken.emitted == 2);
  const auto ended = verify_coupled(coupled_draft{{.tokens = y, .end_of_text = y[0]}},
                                    std::vector(4, r), std::vector(4, r), lossless{}, noise, out);
  CHECK(ended.emitted == 1);
}
