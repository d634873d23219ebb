// SPDX-License-Identifier: Apache-2.0
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
#include "verify/random_rows.hpp"

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
      const auto row = dense_row<T>(p).normalise();
      REQUIRE(row.why() == status::ok);
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
        speculative_workspace<float> work(60, {.gamma = gamma});
        random_streams unused(0);
        REQUIRE(speculative_decode(t, 60, d, m, lossless{}, unused, work,
                                   with::verifier{coupled_verifier{coupled_noise(seed)}}) ==
                status::ok);
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
      speculative_workspace<float> work(60, {.gamma = gamma});
      random_streams unused(0);
      REQUIRE(speculative_decode(t, 60, d, m, token_v3{0.4}, unused, work,
                                 with::verifier{coupled_verifier{coupled_noise(seed)}}) ==
              status::ok);
      if (reference.empty()) reference = buffer;
      CHECK(buffer == reference);
    }
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
