// SPDX-License-Identifier: Apache-2.0
// What the tests of all adapters of engines ask of a source.
#pragma once
#include <specagg/decoders.hpp>
#include <specagg/error.hpp>

#include <specagg/audit/goodness_of_fit.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/difference.hpp"
#include "support/catch.hpp"

namespace test {

using specagg::status;
using specagg::token_id;

inline std::vector<token_id> random_tokens(std::size_t count, std::size_t vocab,
                                           unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<token_id> tokens(count);
  for (auto& t : tokens) t = token_id(random() % vocab);
  return tokens;
}
// The rows after all these tokens, appended in calls of at most `most`.
std::vector<float> rows_in_calls_of(std::size_t most, auto& source,
                                    std::span<const token_id> tokens) {
  const std::size_t V = source.vocab_size();
  std::vector<float> rows(tokens.size() * V);
  for (std::size_t i = 0; i < tokens.size(); i += most) {
    const std::size_t n = std::min(most, tokens.size() - i);
    REQUIRE(source.extend(tokens.subspan(i, n), std::span(rows).subspan(i * V, n * V)) ==
            status::ok);
  }
  return rows;
}
// What is refused appends nothing; after a rollback, over wrong tokens, rows differ from what they
// were by at most `tolerance`.
void check_engine(auto& source, double tolerance) {
  const std::size_t V = source.vocab_size(), n = source.capacity() / 2;
  REQUIRE(source.rollback(0) == status::ok);
  const auto tokens = random_tokens(n, V);
  const auto due = rows_in_calls_of(1, source, tokens);
  CHECK(difference(std::span(due).first(V), std::span(due).last(V)) > 10 * tolerance);
  CHECK(std::ranges::equal(source.tokens(), tokens));
  std::mt19937 random(5);
  for (int i = 0; i < 30; ++i) {
    const std::size_t at = random() % n, again = 1 + random() % (n - at);
    REQUIRE(source.rollback(at + 1) == status::ok);  // and from there
    REQUIRE(source.rollback(at) == status::ok);
    REQUIRE(source.position() == at);
    rows_in_calls_of(4, source, random_tokens(1 + random() % 4, V, unsigned(i)));
    REQUIRE(source.rollback(at) == status::ok);
    const auto some = std::span(tokens).subspan(at, again);
    // Of some of them, the rows of the last ones alone.
    const std::size_t rows = 1 + random() % again;
    std::vector<float> got(rows * V);
    REQUIRE(source.extend(some, got) == status::ok);
    const auto expected = std::span(due).subspan((at + again - rows) * V, rows * V);
    CHECK(difference(got, expected) <= tolerance);
    REQUIRE(source.extend(std::span(tokens).subspan(at + again), {}) == status::ok);
  }
  REQUIRE(source.rollback(n + 1) == status::ok);  // beyond what there is: nothing is removed
  CHECK(source.position() == n);
  std::vector<float> logits(3 * V);
  const std::vector<token_id> outside = {1, 2, token_id(V)}, negative = {1, specagg::no_token};
  CHECK(source.extend(outside, {}) == status::token_out_of_range);
  CHECK(source.extend(negative, {}) == status::token_out_of_range);
  CHECK(source.extend(std::span(tokens).first(2), logits) == status::invalid_parameter);
  CHECK(source.extend(std::span(tokens).first(3), std::span(logits).first(V + 1)) ==
        status::invalid_parameter);
  const auto many = random_tokens(source.capacity() - n + 1, V);
  CHECK(source.extend(many, {}) == status::context_full);
  CHECK(source.position() == n);
  REQUIRE(source.extend(std::span(many).first(many.size() - 1), {}) == status::ok);
  CHECK(source.position() == source.capacity());
  REQUIRE(source.rollback(n - 1) == status::ok);
  const auto last = rows_in_calls_of(1, source, std::span(tokens).last(1));
  CHECK(difference(last, std::span(due).last(V)) <= tolerance);
}

// Rows of a half type, whose unit is that of 1, are those of floats that are due, rounded.
inline void check_rounded(std::span<const float> rows, std::span<const float> due, double unit,
                          double tolerance) {
  REQUIRE(rows.size() == due.size());
  std::size_t wrong = 0, rounded = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    wrong += !(std::fabs(rows[i] - due[i]) <= unit * std::fabs(due[i]) + tolerance);
    rounded += rows[i] != due[i];
  }
  CHECK(wrong == 0);
  CHECK(rounded > rows.size() / 2);
}

// Three fresh sources of one model: rows of the second are the first's, though the third, which
// shares the second's weights, gets other tokens in between.
void check_texts_apart(auto& alone, auto& first, auto& second, double tolerance) {
  const std::size_t V = alone.vocab_size();
  const auto tokens = random_tokens(20, V), other = random_tokens(20, V, 9);
  const auto due = rows_in_calls_of(1, alone, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto row = rows_in_calls_of(1, first, std::span(tokens).subspan(i, 1));
    CHECK(difference(row, std::span(due).subspan(i * V, V)) <= tolerance);
    rows_in_calls_of(1, second, std::span(other).subspan(i, 1));
  }
}

// Opening throws an error whose message has this part.
bool is_refused(auto&& open, const std::string& part) {
  try {
    open();
  } catch (const specagg::error& e) {
    return std::string(e.what()).find(part) != std::string::npos;
  }
  return false;
}

// A text of `most` tokens after the token `first`.
std::vector<token_id> text_of(auto& draft, auto& target, token_id first, std::size_t most,
                              double temperature, std::uint64_t seed) {
  constexpr std::size_t gamma = 3;
  std::vector<token_id> buffer(1 + most + gamma, first);
  specagg::text t{buffer, 1};
  const specagg::decode_options options{.gamma = gamma, .sample = {.temperature = temperature}};
  specagg::speculative_workspace<float> work(target.vocab_size(), options);
  specagg::random_streams random(seed);
  REQUIRE(specagg::speculative_decode(draft, target, specagg::lossless{}, random,
                                      {.text = t, .most = most, .work = work}) == status::ok);
  return {buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size)};
}

// At temperature 0 a text with drafts is the target's own, after each token of the vocabulary.
void check_texts_at_0(auto& draft, auto& target, std::size_t most) {
  const std::size_t V = target.vocab_size();
  std::vector<float> row(V);
  std::size_t rejected = 0;
  for (token_id first = 0; std::size_t(first) < V; ++first) {
    std::vector<token_id> alone, drafted;
    for (auto* model : {&target, &draft}) {
      REQUIRE(model->rollback(0) == status::ok);
      auto& into = model == &target ? alone : drafted;
      for (token_id t = first; into.size() < most;) {
        REQUIRE(model->extend(std::span(&t, 1), row) == status::ok);
        into.push_back(t = token_id(std::max_element(row.begin(), row.end()) - row.begin()));
      }
    }
    rejected += drafted != alone;
    CHECK(text_of(draft, target, first, most, 0, 1) == alone);
  }
  CHECK(rejected > 0);  // some drafts are not the target's
}

// Texts of two tokens with drafts at temperature 1 have the target's law, and the draft model's own
// texts have not: the p-values of as many texts of each say so.
void check_law(auto& draft, auto& target, std::size_t texts) {
  const std::size_t V = target.vocab_size();
  const token_id first = 3;
  std::vector<float> row(V);
  const auto after = [&](auto& model, std::size_t at, token_id token) {
    REQUIRE(model.rollback(at) == status::ok);
    REQUIRE(model.extend(std::span(&token, 1), row) == status::ok);
    const double most = *std::max_element(row.begin(), row.end());
    std::vector<double> p;
    double sum = 0;
    for (const float x : row) sum += p.emplace_back(std::exp(double{x} - most));
    for (double& x : p) x /= sum;
    return p;
  };
  std::vector<double> law(V * V);
  const auto one = after(target, 0, first);
  after(draft, 0, first);
  double accepted = 0, compared = 0;  // of a drafted second token, after a first one of the target
  for (token_id x = 0; std::size_t(x) < V; ++x) {
    const auto two = after(target, 1, x), q = after(draft, 1, x);
    for (std::size_t y = 0; y < V; ++y) {
      law[std::size_t(x) * V + y] = one[std::size_t(x)] * two[y];
      accepted += one[std::size_t(x)] * std::min(two[y], q[y]);
      compared += one[std::size_t(x)] * two[y] * q[y];
    }
  }
  std::printf(
      "of drafted tokens lossless accepts %.3f; comparing with a token of the target %.3f\n",
      accepted, compared);
  CHECK(accepted >= compared);
  for (auto* writer : {&target, &draft}) {
    std::vector<double> counts(V * V);
    for (std::size_t i = 0; i < texts; ++i) {
      const auto text = text_of(draft, *writer, first, 2, 1, i);
      ++counts[std::size_t(text[0]) * V + std::size_t(text[1])];
    }
    const auto fit = specagg::goodness_of_fit(counts, law, specagg::usual_false_alarm);
    std::printf("%zu texts of the %s: p-value %.2g, distance %.4f where %.4f is due\n", texts,
                writer == &target ? "target" : "draft model", fit.p_value, fit.distance,
                fit.expected_distance);
    CHECK(fit.passed == (writer == &target));
  }
}

}  // namespace test
