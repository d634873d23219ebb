// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/raw_logits.hpp>

#include "policy/plain.hpp"

using namespace specagg;

namespace {

// Rows of logits combined and then processed; empty unless everything was ok.
template <class T, class Policy, std::size_t N>
row raw(const Policy& policy, const std::array<row, N>& logits, const sampling& s,
        status* why = nullptr) {
  std::array<std::vector<T>, N> l;
  std::array<std::span<const T>, N> spans;
  for (std::size_t k = 0; k < N; ++k) {
    l[k].assign(logits[k].begin(), logits[k].end());
    spans[k] = l[k];
  }
  std::vector<T> out(l[0].size());
  status result = combine_logits(policy, spans, std::span(out));
  const auto combined = normalise(processed_row<T>(out, s));
  if (result == status::ok) result = combined.why();
  if (why) *why = result;
  if (result != status::ok) return {};
  row law;
  for (std::size_t v = 0; v < out.size(); ++v) law.push_back(double(combined[v]));
  return law;
}
// Rows of logits processed and then combined.
template <class Policy>
row processed(const Policy& policy, const std::array<row, 2>& logits, const sampling& s) {
  return target_law(policy, processed_row<double>(logits[0], s),
                    processed_row<double>(logits[1], s));
}
row process(const row& logits, const sampling& s) {
  const auto r = normalise(processed_row<double>(logits, s));
  if (r.why() != status::ok) FAIL("a row");
  row x;
  for (std::size_t v = 0; v < logits.size(); ++v) x.push_back(r[v]);
  return x;
}
double distance(const row& a, const row& b) {
  if (a.size() != b.size()) return inf;
  double d = 0;
  for (std::size_t v = 0; v < a.size(); ++v) d = std::max(d, std::fabs(a[v] - b[v]));
  return d;
}
const sampling settings[] = {
    {}, {0}, {0.5}, {2}, {1, 3}, {0.7, 0, 0.8}, {1.5, 0, 1, 0.2}, {0.8, 5, 0.9, 0.05}};

}  // namespace

TEST_CASE(
    "log-linear laws of raw logits are process(sum w l) at any temperature and filter, of two and "
    "three models") {
  numbers n(8);
  for (int trial = 0; trial < 100; ++trial)
    for (const sampling& s : settings) {
      const row l = random_logits(n, 20), m = random_logits(n, 20), k = random_logits(n, 20);
      row two(20), three(20);
      for (std::size_t v = 0; v < 20; ++v) {
        two[v] = 1.5 * l[v] - 0.5 * m[v];
        three[v] = l[v] + 0.7 * (m[v] - k[v]);
      }
      CHECK(distance(raw<double>(geometric{1.5}, std::array{l, m}, s), process(two, s)) < 1e-12);
      CHECK(distance(raw<double>(arithmetic<>{0.7}, std::array{l, m, k}, s), process(three, s)) <
            1e-12);
      const sampling unfiltered{s.temperature};
      const row in_floats = raw<float>(arithmetic<>{0.7}, std::array{l, m, k}, unfiltered);
      CHECK(distance(in_floats, process(three, unfiltered)) < 1e-5);
    }
}
TEST_CASE(
    "a mixture of raw rows gets its temperature after mixing: norm((lambda q + (1 - lambda) "
    "p)^(1/T))") {
  numbers n(9);
  for (const double t : {0.3, 0.5, 1.0, 2.0})
    for (int trial = 0; trial < 50; ++trial) {
      const std::array l{random_logits(n, 20, true), random_logits(n, 20, true)};
      const row q = softmax(l[0]), p = softmax(l[1]);
      row due(20);
      for (std::size_t v = 0; v < 20; ++v) due[v] = std::pow(0.3 * q[v] + 0.7 * p[v], 1 / t);
      CHECK(distance(raw<double>(ensemble{0.3}, l, {t}), norm(due)) < 1e-13);
    }
}
TEST_CASE(
    "spaces differ where they should: mixtures by temperature, log-linear laws by filters alone") {
  numbers n(10);
  for (int trial = 0; trial < 50; ++trial) {
    const std::array l{random_logits(n, 20), random_logits(n, 20)};
    CHECK(distance(raw<double>(ensemble{0.3}, l, {}), processed(ensemble{0.3}, l, {})) < 1e-14);
    CHECK(distance(raw<double>(ensemble{0.3}, l, {0.5}), processed(ensemble{0.3}, l, {0.5})) >
          1e-3);
    for (const double t : {0.5, 2.0})
      CHECK(distance(raw<double>(geometric{0.3}, l, {t}), processed(geometric{0.3}, l, {t})) <
            1e-12);
    // 3 tokens; processed: those that both rows kept
    const row combined = raw<double>(geometric{0.3}, l, {1, 3});
    CHECK(std::count_if(combined.begin(), combined.end(), [](double x) { return x > 0; }) == 3);
    CHECK(distance(combined, processed(geometric{0.3}, l, {1, 3})) > 1e-3);
  }
}
TEST_CASE(
    "at temperature 0 raw logits give the largest combined one. Processed rows may have nothing in "
    "common") {
  const std::array<row, 2> l{row{2, 1.9, 0}, row{0, 1.9, 2}};
  CHECK(raw<double>(geometric{0.5}, l, {0}) == row{0, 1, 0});
  CHECK(processed(geometric{0.5}, l, {0}).empty());
  CHECK(processed(ensemble{0.5}, l, {0}) == row{0.5, 0, 0.5});
}
TEST_CASE("masks, defects and undefined combinations of raw logits have their status") {
  status why = status::ok;
  CHECK(raw<double>(geometric{0.5}, std::array{row{0, -inf, 1}, row{0, 1, 1}}, {}, &why)[1] == 0);
  CHECK(why == status::ok);
  CHECK(raw<double>(contrastive{0.5}, std::array{row{0, -inf}, row{0, 0}}, {}, &why).empty());
  CHECK(why == status::undefined_target);
  CHECK(raw<double>(minimum<>{}, std::array{row{0, -inf}, row{-inf, 0}}, {}, &why).empty());
  CHECK(why == status::undefined_target);
  CHECK(raw<double>(ensemble{0.5}, std::array{row{0, std::nan("")}, row{0, 0}}, {}, &why).empty());
  CHECK(why == status::invalid_row);
  CHECK(raw<double>(ensemble{1.5}, std::array{row{0, 0}, row{0, 0}}, {}, &why).empty());
  CHECK(why == status::invalid_parameter);
  CHECK(raw<double>(ensemble{0.5}, std::array{row{0, 0}, row{0, 0, 0}}, {}, &why).empty());
  CHECK(why == status::vocabulary_mismatch);
}
TEST_CASE("rows longer than a vector, and not a multiple of one, are combined to the last token") {
  numbers n(11);
  for (const std::size_t size : {1u, 15u, 16u, 17u, 1023u, 1025u, 3000u}) {
    const std::array l{random_logits(n, size, true), random_logits(n, size, true)};
    const row q = softmax(l[0]), p = softmax(l[1]);
    row due(size);
    for (std::size_t v = 0; v < size; ++v) due[v] = std::max(q[v], p[v]);
    CHECK(distance(raw<double>(maximum<>{}, l, {}), norm(due)) < 1e-14);
  }
}

TEST_CASE("with_law_of binds the law of two or three rows, of their logits for raw_logits") {
  numbers n(9);
  const sampling s{0.7, 3};
  const auto law_of = [&](const auto& policy, const auto& logits) {
    constexpr std::size_t count = std::tuple_size_v<std::remove_cvref_t<decltype(logits)>>;
    std::array<processed_row<double>, count> rows;
    for (std::size_t k = 0; k < count; ++k) rows[k] = processed_row<double>(logits[k], s);
    std::vector<double> combined(logits[0].size());
    row law;
    const status why =
        with_law_of(policy, rows, s, std::span(combined), [&](const auto& all, const auto& pi) {
          const double total = all.sum(pi);
          for (std::size_t v = 0; v < combined.size(); ++v)
            law.push_back(as_double(pi(at(all, v))) / total);
          return status::ok;
        });
    CHECK(why == status::ok);
    return law;
  };
  const row l = random_logits(n, 20), m = random_logits(n, 20), k = random_logits(n, 20);
  const std::array<row, 2> two{l, m};
  const std::array<row, 3> three{l, m, k};
  const log_linear<3> of_three{{0.5, 1, -0.5}};
  CHECK(distance(law_of(ensemble{0.3}, two), processed(ensemble{0.3}, two, s)) < 1e-14);
  CHECK(distance(law_of(raw_logits{ensemble{0.3}}, two), raw<double>(ensemble{0.3}, two, s)) <
        1e-14);
  CHECK(distance(law_of(raw_logits{of_three}, three), raw<double>(of_three, three, s)) < 1e-14);
  std::array<processed_row<double>, 2> unequal{processed_row<double>(l, s),
                                               processed_row<double>(std::span(m).first(19), s)};
  std::vector<double> combined(20);
  CHECK(with_law_of(raw_logits{ensemble{0.3}}, unequal, s, std::span(combined),
                    [](auto&&...) { return status::ok; }) == status::vocabulary_mismatch);
}
