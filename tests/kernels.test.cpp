// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernels.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
using exact_row = std::vector<long double>;

// softmax of logits of any type, in long double.
template <class S>
exact_row exact_softmax(const std::vector<S>& logits) {
  long double top = -inf, sum = 0;
  for (const S l : logits) top = std::max(top, (long double)(detail::number(l)));
  exact_row row;
  for (const S l : logits) row.push_back(std::exp((long double)(detail::number(l)) - top));
  for (const long double x : row) sum += x;
  for (long double& x : row) x /= sum;
  return row;
}
struct exact_numbers {
  long double tv = 0, kl = 0, overlap = 0;
};
exact_numbers exact(const exact_row& q, const exact_row& p) {
  exact_numbers e;
  for (std::size_t v = 0; v < q.size(); ++v) {
    e.tv += std::max(0.0L, p[v] - q[v]);
    e.overlap += std::min(q[v], p[v]);
    if (q[v] > 0) e.kl += q[v] * std::log(q[v] / p[v]);
  }
  return e;
}

// The largest errors, in units of their bounds and in numbers.
struct errors {
  double of_bound = 0, overlap = 0, kl = 0;
  void see(const exact_numbers& due, double tv, double acceptance, double divergence, double bound,
           double kl_bound) {
    const double a =
        std::max(double(std::fabs(tv - due.tv)), double(std::fabs(acceptance - due.overlap)));
    const double k = double(std::fabs(divergence - due.kl) / (1 + due.kl));
    const double worse = std::max(a / bound, k / kl_bound);
    of_bound = worse <= of_bound ? of_bound : worse;  // NaN stays
    overlap = std::max(overlap, a);
    kl = std::max(kl, k);
  }
};

// Logits of a spread; some masked, where the draft is masked too if KL is to be finite.
template <class S>
std::vector<S> logits(numbers& n, std::size_t size, double spread,
                      const std::vector<bool>& masked) {
  std::vector<S> l(size);
  for (std::size_t v = 0; v < size; ++v)
    l[v] = detail::stored<S>(masked[v] ? -inf : spread * n.bell());
  return l;
}

template <class S>
errors errors_of(std::size_t trials) {
  using T = computed<S>;
  numbers n(5);
  errors worst;
  for (std::size_t trial = 0; trial < trials; ++trial) {
    const std::size_t size = trial % 5 == 0 ? 1 + n.below(40) : 1 + n.below(40000);
    std::vector<bool> masked(size);
    for (std::size_t v = 1; v < size && trial % 3 == 0; ++v) masked[v] = n.below(4) == 0;
    const double spread = trial % 2 == 0 ? 3 : 15;
    const auto q = logits<S>(n, size, spread, masked), p = logits<S>(n, size, spread, masked);
    const softmax_row<S> q_row(q), p_row(p);
    worst.see(exact(exact_softmax(q), exact_softmax(p)), total_variation(q_row, p_row),
              acceptance_rate(q_row, p_row), kl_divergence(q_row, p_row), overlap_error<T>(size),
              kl_error<T>(size));
  }
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "total_variation, kl_divergence and acceptance_rate of softmax rows are within their bounds",
    "", float, double, bf16, f16) {
  const errors worst = errors_of<TestType>(40);
  CHECK(worst.of_bound <= 1);
  // what is seen in rows like a model's
  CHECK(worst.overlap < (sizeof(computed<TestType>) == 4 ? 4e-7 : 1e-15));
  CHECK(worst.kl < (sizeof(computed<TestType>) == 4 ? 4e-7 : 2e-15));
}

TEMPLATE_TEST_CASE(
    "total_variation, kl_divergence and acceptance_rate of probabilities are within their bounds",
    "", float, double) {
  numbers n(6);
  errors worst;
  for (std::size_t trial = 0; trial < 60; ++trial) {
    const std::size_t size = 1 + n.below(trial % 2 ? 5000 : 20);
    std::vector<TestType> q(size), p(size);
    exact_row x(size), y(size);
    const auto fill = [&](std::vector<TestType>& row, exact_row& due, bool zeros) {
      double sum = 0;
      for (TestType& one : row) sum += one = zeros && n.below(3) == 0 ? 0 : TestType(n.uniform());
      row[0] += TestType(1);
      sum += 1;
      for (TestType& one : row) one = TestType(one / sum);
      long double total = 0;
      for (const TestType one : row) total += one;
      for (std::size_t v = 0; v < size; ++v) due[v] = row[v] / total;
    };
    fill(q, x, true);
    fill(p, y, false);
    worst.see(exact(x, y), total_variation(q, p), acceptance_rate(q, p), kl_divergence(q, p),
              overlap_error<TestType>(size), kl_error<TestType>(size));
  }
  CHECK(worst.of_bound <= 1);
}

TEST_CASE("the bounds of the errors are the stated ones") {
  CHECK(std::fabs(overlap_error<float>(131072) - 1.3e-5) < 0.5e-6);
  CHECK(std::fabs(kl_error<float>(131072) - 1.1e-4) < 0.5e-5);
  CHECK(std::fabs(overlap_error<double>(131072) - 1e-13) < 1e-14);
  CHECK(std::fabs(kl_error<double>(131072) - 1.4e-12) < 1e-13);
}

TEST_CASE("known distances: equal rows, disjoint rows, and numbers by hand") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625}, a{1, 0}, b{0, 1};
  CHECK(total_variation(q, p) == 0.375);
  CHECK(acceptance_rate(q, p) == 0.625);
  CHECK(std::fabs(kl_divergence(q, p) - (0.5 * std::log(4.0) + 0.25 * std::log(0.4))) < 1e-15);
  CHECK(std::fabs(kl_divergence(p, q) - (0.125 * std::log(0.25) + 0.625 * std::log(2.5))) < 1e-15);
  CHECK(total_variation(q, q) == 0);
  CHECK(kl_divergence(q, q) == 0);
  CHECK(acceptance_rate(q, q) == 1);
  CHECK(total_variation(a, b) == 1);
  CHECK(acceptance_rate(a, b) == 0);
  CHECK(kl_divergence(a, b) == inf);
  CHECK(kl_divergence(a, std::vector{0.5, 0.5}) == std::log(2.0));  // 0 ln 0 = 0
}

TEMPLATE_TEST_CASE("a stored probability that is subnormal changes no sum", "", float, double) {
  using row = std::vector<TestType>;
  const TestType small = std::numeric_limits<TestType>::min() / 16;
  const row q{1, small}, half{TestType(0.5), TestType(0.5)};
  CHECK(std::fabs(kl_divergence(q, half) - std::log(2.0)) < 1e-7);
  CHECK(std::fabs(kl_divergence(q, row{1, 0})) < 1e-7);
  CHECK(std::fabs(kl_divergence(q, q)) < 1e-7);
  CHECK(total_variation(q, half) == 0.5);
  CHECK(target_law(chow_log{1}, q, half) == target_law(lossless(), half, q));
}

TEST_CASE("every kind of row gives the same numbers") {
  const std::array q{0.5f, 0.f, 0.5f, 0.f}, p{0.25f, 0.25f, 0.25f, 0.25f};
  const std::array<token_id, 2> ids{0, 2};
  const std::array values{0.5f, 0.5f};
  const sparse_row<float> sparse(ids, values, 4);
  const any_row<one_hot_row<float>, sparse_row<float>> any(sparse);
  CHECK(total_variation(q, p) == 0.5);
  CHECK(total_variation(sparse, p) == 0.5);
  CHECK(total_variation(any, p) == 0.5);
  CHECK(acceptance_rate(any, p) == 0.5);
  CHECK(acceptance_rate(one_hot_row<float>(1, 4), p) == 0.25);
  CHECK(kl_divergence(any, dense_row<float>(p)) == std::log(2.0f));
  CHECK(kl_divergence(p, sparse) == inf);
  const std::array greedy{1.f, 2.f, 0.f, -1.f};
  CHECK(acceptance_rate(processed_row<float>(greedy, {.temperature = 0}), p) == 0.25);
}

TEMPLATE_TEST_CASE("invalid rows and rows of different sizes: NaN, and no token with its status",
                   "", float, double) {
  using row = std::vector<TestType>;
  const row good{TestType(0.5), TestType(0.5)};
  std::array<double, 2> scratch;
  const auto refused = [&](const auto& q, const auto& p, status why) {
    CHECK(std::isnan(total_variation(q, p)));
    CHECK(std::isnan(kl_divergence(q, p)));
    CHECK(std::isnan(acceptance_rate(q, p)));
    const emission e = sample_residual(q, p, 0.5, scratch);
    CHECK(e.token == no_token);
    CHECK(e.why == why);
  };
  const std::vector<row> bad_rows{{TestType(not_a_number), 1}, {TestType(inf), 1}, {2, -1}, {0, 0}};
  for (const row& bad : bad_rows) {
    refused(bad, good, status::invalid_row);
    refused(good, bad, status::invalid_row);
  }
  refused(row{TestType(0.5), TestType(0.4)}, good, status::not_normalised);
  refused(row{1}, good, status::vocabulary_mismatch);
  refused(row{}, row{}, status::invalid_row);
  const row masked{TestType(-inf), TestType(-inf)}, wrong{TestType(not_a_number), 0};
  const softmax_row<TestType> fine(good);
  for (const row& bad : std::vector<row>{masked, wrong}) {
    refused(softmax_row<TestType>(bad), fine, status::invalid_row);
    refused(fine, softmax_row<TestType>(bad), status::invalid_row);
  }
  CHECK(std::isnan(acceptance_rate(good, good, ensemble{2})));
  CHECK(std::isnan(acceptance_rate(row{1, 0}, row{0, 1}, minimum<>())));
  CHECK(sample_residual(good, good, ensemble{2}, 0.5, scratch).why == status::invalid_parameter);
  CHECK(sample_residual(row{1, 0}, row{0, 1}, minimum<>(), 0.5, scratch).why ==
        status::undefined_target);
  CHECK(sample_residual(good, good, 0.5, {}).why == status::invalid_parameter);
}

TEST_CASE("acceptance_rate with a policy is that of its law") {
  numbers n(7);
  for (std::size_t trial = 0; trial < 20; ++trial) {
    std::vector<double> q(300), p(300);
    double sum_q = 0, sum_p = 0;
    for (std::size_t v = 0; v < q.size(); ++v) {
      sum_q += q[v] = n.uniform();
      sum_p += p[v] = n.uniform() * n.uniform();
    }
    for (double& x : q) x /= sum_q;
    for (double& x : p) x /= sum_p;
    const auto holds = [&](const auto& policy) {
      const std::vector<double> pi = target_law(policy, q, p);
      CHECK(std::fabs(acceptance_rate(q, p, policy) - acceptance_rate(q, pi)) < 1e-12);
      CHECK(std::fabs(1 - total_variation(q, pi) - acceptance_rate(q, p, policy)) < 1e-12);
    };
    holds(lossless());
    holds(ensemble{0.3});
    holds(token_v3{0.2});
    holds(any_of<lossless, lossy>(lossy{0.3}));
  }
}

TEST_CASE(
    "sample_residual draws v with probability (pi - q)+ over its sum, and never a token of 0") {
  const std::vector<double> q{0.5, 0.25, 0.25, 0}, p{0.125, 0.25, 0.375, 0.25};
  std::array<double, 1> scratch;
  std::array<std::size_t, 4> seen{};
  constexpr std::size_t steps = 3000;
  for (std::size_t i = 0; i < steps; ++i) {
    const emission e = sample_residual(q, p, (double(i) + 0.5) / steps, scratch);
    REQUIRE(e.why == status::ok);
    CHECK(e.from == origin::residual);
    CHECK(e.log_p == std::log(p[std::size_t(e.token)]));
    ++seen[std::size_t(e.token)];
  }
  CHECK(seen == std::array<std::size_t, 4>{0, 0, steps / 3, 2 * steps / 3});
  // towards (q + p) / 2 the residual is half as large: the same tokens
  CHECK(sample_residual(q, p, ensemble{0.5}, 0.1, scratch).token == 2);
  CHECK(sample_residual(q, p, ensemble{0.5}, 0.9, scratch).token == 3);
  // no residual: a token of pi itself
  CHECK(sample_residual(q, q, 0, scratch).token == 0);
  CHECK(sample_residual(q, q, 0.999, scratch).token == 2);
  // one-hot drafts: pi without the token
  for (const double u : {0.0, 0.4, 0.999})
    CHECK(sample_residual(one_hot_row<double>(2, 4), p, u, scratch).token != 2);
  for (const double u : {-1.0, 1.0, 2.0, not_a_number})
    CHECK(p[std::size_t(sample_residual(q, p, u, scratch).token)] > 0);
}

TEST_CASE("sample_residual is what the verifiers draw after a rejection, bit by bit") {
  numbers n(8);
  std::size_t rejected = 0;
  std::vector<double> scratch(verify_scratch(2000, 1));
  for (std::uint32_t trial = 0; trial < 60; ++trial) {
    std::vector<float> q(2000), p(2000);
    for (float& l : q) l = float(4 * n.bell());
    for (float& l : p) l = float(4 * n.bell());
    const softmax_row<float> q_row(q), p_row(p);
    const random_streams chooser(trial);
    random_streams same = chooser;
    auto drawn = q_row;
    const token_id y = draw_draft(drawn, trial, 0, same, scratch);
    std::array<emission, 2> out;
    const auto compare = [&](const auto& policy) {
      const draft drafted{{&y, 1}, trial};
      const verdict v = verify_token(drafted, std::array{q_row}, std::array{p_row, p_row}, policy,
                                     same, out, scratch);
      if (v.accepted > 0) return;
      ++rejected;
      const double u = chooser.uniform({stream::residual, trial, trial});
      const emission e = sample_residual(q_row, p_row, policy, u, scratch);
      CHECK(e.token == out[0].token);
      CHECK(e.log_pi == out[0].log_pi);
      CHECK(e.log_p == out[0].log_p);
    };
    compare(lossless());
    compare(lossy{0.2});
  }
  CHECK(rejected > 60);
}

TEST_CASE("log_sum_exp takes any array of logits: span, vector, array") {
  const std::vector<float> l{1, 2, -std::numeric_limits<float>::infinity()};
  const double due = std::log(std::exp(1.0) + std::exp(2.0));
  CHECK(std::fabs(log_sum_exp(l) - due) < 1e-6);
  CHECK(log_sum_exp(std::span(l)) == log_sum_exp(l));
  CHECK(log_sum_exp(std::span(l).first(1)) == 1);
  CHECK(std::fabs(log_sum_exp(std::array{1.0, 2.0}, 0.5) - 2 * due) > 0.1);
  CHECK(std::isnan(log_sum_exp(std::vector<float>())));
  CHECK(std::isnan(log_sum_exp(std::array{1.0, not_a_number})));
  CHECK(std::isnan(log_sum_exp(std::array{-inf, -inf})));
}
