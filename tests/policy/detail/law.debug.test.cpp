// SPDX-License-Identifier: Apache-2.0
// Builds without NDEBUG check every pi that a token is drawn from, whoever draws it.
#undef NDEBUG
#include <tuple>
#include <utility>
#include <vector>

#include <specagg/decoders.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

// a model 0 + b model 1: a law if both are at least 0 and sum to 1.
struct sum_of_two {
  double a, b;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [r = *this](auto at) { return fma(r.a, model<0>(at), r.b * model<1>(at)); };
  }
};
struct first_two_of_three : sum_of_two {
  static constexpr std::size_t models = 3;
};
// b p, and it does not look at q.
struct some_of_p {
  double b;
  static constexpr bool reads_draft = false, reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [b = b](auto at) { return at.p * b; };
  }
};

// Where a decoder ended that was asked for 6 tokens after the first one, and how many it wrote.
using ended = std::pair<status, std::size_t>;
const ended all{status::ok, 6}, none_at_all{status::undefined_target, 0};

// dead_end: the call of model 0 that gives a row from which nothing can be drawn.
template <std::size_t N, class Policy>
ended by_turns(const Policy& policy, std::size_t dead_end = 1000) {
  auto models = [&]<std::size_t... K>(std::index_sequence<K...>) {
    return std::array<faulty<double>, N>{faulty<double>(vocabulary, K + 1)...};
  }(std::make_index_sequence<N>());
  std::array<std::size_t, N> gamma;
  gamma.fill(2);
  models[0].nan_at = dead_end;
  std::vector<token_id> buffer(16);
  text t{buffer, 1};
  collaborative_workspace<double, N> work(vocabulary, {gamma});
  random_streams chooser(3);
  const auto decode = [&](auto&... m) {
    return collaborative_decode(std::tie(m...), policy, chooser,
                                {.text = t, .most = 6, .work = work});
  };
  const status why = std::apply(decode, models);
  return {why, t.size - 1};
}
template <class Policy>
ended by_oracle(const Policy& policy) {
  toy_source<double> q(vocabulary, 1), p(vocabulary, 2);
  std::vector<token_id> buffer(16);
  text t{buffer, 1};
  cascade_workspace<double> work(vocabulary, {});
  random_streams chooser(3);
  const status why = oracle_decode(q, p, policy, chooser, {.text = t, .most = 6, .work = work});
  return {why, t.size - 1};
}
template <class Policy>
ended by_raw_logits(const Policy& policy) {
  toy_source<double> q(vocabulary, 1), p(vocabulary, 2);
  std::vector<token_id> buffer(16);
  text t{buffer, 1};
  speculative_workspace<double> work(vocabulary, {.gamma = 2});
  std::vector<double> memory(vocabulary);
  random_streams chooser(3);
  const raw_logits_verifier verifier{token_verifier(), std::span(memory), sampling()};
  const status why = speculative_decode(q, p, raw_logits{policy}, chooser,
                                        {.text = t, .most = 6, .work = work}, verifier);
  return {why, t.size - 1};
}

}  // namespace

TEST_CASE("without NDEBUG CoS decoders report a pi that is no law") {
  CHECK(by_turns<2>(sum_of_two{0.5, 0.5}) == all);
  CHECK(by_turns<2>(some_of_p{1}) == all);
  CHECK(by_turns<2>(lossless()) == all);
  CHECK(by_turns<3>(first_two_of_three{{0.5, 0.5}}) == all);
  CHECK(by_turns<2>(sum_of_two{0.5, 0.4}) == none_at_all);
  CHECK(by_turns<2>(sum_of_two{2, -1}) == none_at_all);  // its sum is 1
  CHECK(by_turns<3>(first_two_of_three{{0.5, 0.4}}) == none_at_all);
  CHECK(by_turns<2>(any_of<lossless, sum_of_two>(sum_of_two{0.5, 0.4})) == none_at_all);
  CHECK(by_turns<2>(some_of_p{0.9}) == none_at_all);
  CHECK(by_turns<2>(some_of_p{1}, 0) == all);  // model 1 writes the first token alone
  CHECK(by_turns<2>(some_of_p{0.9}, 0) == none_at_all);
}
TEST_CASE("without NDEBUG an oracle cascade reports a pi that is no law") {
  CHECK(by_oracle(sum_of_two{0.5, 0.5}) == all);
  CHECK(by_oracle(lossless()) == all);
  CHECK(by_oracle(any_of<lossless, sum_of_two>(lossless())) == all);
  CHECK(by_oracle(sum_of_two{0.5, 0.4}) == none_at_all);
  CHECK(by_oracle(sum_of_two{2, -1}) == none_at_all);
  CHECK(by_oracle(any_of<lossless, sum_of_two>(sum_of_two{0.5, 0.4})) == none_at_all);
}
TEST_CASE("without NDEBUG raw logits are combined by a law, or not at all") {
  CHECK(by_raw_logits(sum_of_two{0.5, 0.5}) == all);
  CHECK(by_raw_logits(sum_of_two{0.5, 0.4}) == none_at_all);
  CHECK(by_turns<3>(raw_logits{first_two_of_three{{0.5, 0.5}}}) == all);
  CHECK(by_turns<3>(raw_logits{first_two_of_three{{0.5, 0.4}}}) == none_at_all);
}
